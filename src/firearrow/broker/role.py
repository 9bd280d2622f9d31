"""Role of a broker, master or slave, as its core sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from firearrow.auth.metadata import Metadata
from firearrow.broker.access.control import ha_access_of
from firearrow.broker.admission import Condition
from firearrow.broker.config import BrokerConfig
from firearrow.broker.feature import Base, Handlers
from firearrow.broker.registering.registration import addresses_of
from firearrow.broker.replication.refusals import refused_by_slave
from firearrow.broker.replication.replicas import Replicas
from firearrow.broker.replication.slavesync import SlaveSync
from firearrow.events import Events
from firearrow.store import MessageStore
from firearrow.store.config import StoreConfig


class FixedRole:
    """The role that the configuration gives a broker, from its start to its stop.

    A subclass changes the role while the broker runs: the core is made again for each role.
    """

    registration_retry_ms: int | None = None
    """Pause before a slave asks name servers for its master again; None for the default."""

    def make_replicas(
        self, config: BrokerConfig, store_config: StoreConfig, users: Callable[[], Metadata | None], events: Events
    ) -> Replicas:
        """Make the broker's part in replication."""
        acts = config.enable_slave_acting_master
        return Replicas(store_config, ha_access_of(config, users, events), acts=acts)

    def name_servers(self, config: BrokerConfig) -> list[str]:
        """Addresses of the name servers that may know the broker now."""
        return addresses_of(config.namesrv_addr)

    def begin(self, store: MessageStore, *, is_slave: bool) -> None:
        """Prepare the opened store for the role, before the state beside it is loaded."""

    def begun(self, base: Base, sync: SlaveSync) -> None:
        """Finish the start of the role, when all features are connected."""

    def is_master_at(self, address: str) -> bool:
        """Tell whether a master that name servers know is the one to follow."""
        return True

    def handlers(self) -> Handlers:
        """Handlers of the requests that belong to the role."""
        return {}

    def conditions(self, base: Base) -> Sequence[Condition]:
        """Conditions on requests, by the role."""
        return [refused_by_slave] if base.replicas.is_slave else []
