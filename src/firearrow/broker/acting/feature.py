"""Slaves that act for their master while it is away."""

from __future__ import annotations

from collections.abc import Sequence

from firearrow.broker.acting.acting import Acting, MasterOnlyServices
from firearrow.broker.acting.grouplocks import GroupLocks
from firearrow.broker.admission import Condition
from firearrow.broker.context import BrokerContext
from firearrow.broker.delaying.feature import DelayFeature
from firearrow.broker.feature import Base, Feature, Handlers
from firearrow.broker.groups.locks import QueueLocks
from firearrow.broker.offsets.feature import OffsetFeature
from firearrow.broker.pop.feature import ENDS
from firearrow.broker.pulling.longpoll import HeldPulls
from firearrow.broker.registering.feature import RegistrationFeature
from firearrow.broker.replication.feature import ReplicationFeature
from firearrow.broker.replication.refusals import refused_by_acting_master, refused_by_acting_slave
from firearrow.broker.replication.replicas import SYNC_MASTER
from firearrow.broker.sending.feature import SendFeature
from firearrow.broker.storage.reconciling import pass_pops
from firearrow.broker.timing.feature import TimingFeature
from firearrow.net.server import BulkHandler, Handler
from firearrow.services import Service
from firearrow.wire.codes import RequestCode


class ActingFeature(Feature):
    """The part in a group of brokers whose slaves act (`enableSlaveActingMaster`)."""

    def __init__(
        self,
        base: Base,
        sending: SendFeature,
        offsets: OffsetFeature,
        delaying: DelayFeature,
        timing: TimingFeature,
        *,
        has_database: bool,
    ) -> None:
        self._base = base
        self._sending = sending
        self._offsets = offsets
        self._delaying = delaying
        self._timing = timing
        self._has_database = has_database

    def connect(
        self,
        context: BrokerContext,
        deliveries: Sequence[Service],
        registering: RegistrationFeature,
        replication: ReplicationFeature,
        locks: QueueLocks,
        held: HeldPulls,
    ) -> None:
        """Make the special services of the deliveries, and the part that decides which broker acts."""
        special = MasterOnlyServices(deliveries, self._before_acting)
        self.special: MasterOnlyServices = special
        self._sending.puts.moved.listen(lambda _: special.go_on())
        self.part: Acting = Acting(
            context, held, registering.identity, special, registering.registration, replication.sync, self._base.access
        )
        self._context, self._queue_locks = context, locks

    def _before_acting(self) -> None:
        """Mark the slave's state as later than its master's."""
        store = self._base.store
        store.catch_up()
        if self._base.replicas.is_slave:
            pass_pops(store, self._offsets.table)
            self._offsets.table.lead()
            self._delaying.offsets.lead()
            self._timing.lead()

    @property
    def conditions(self) -> Sequence[Condition]:
        """Conditions on requests, by the role."""
        if self._base.replicas.is_slave:
            return [refused_by_acting_slave(self._takes_pops, self._has_database)]
        if self._base.settings.store.broker_role == SYNC_MASTER:
            return [refused_by_acting_master(self._base.replicas, self._base.settings.store)]
        return []

    def _takes_pops(self) -> bool:
        """Return whether this slave notes pops, at another master."""
        escapes = self._base.settings.broker.enable_remote_escape
        return escapes and self.special.runs and not self._has_database

    def handlers(self) -> Handlers:
        """Handlers of the requests between the brokers of the group."""
        return {RequestCode(code): handler for code, handler in self.part.handlers().items()}

    def wrap(self, handlers: dict[int, Handler], bulk_handlers: dict[int, BulkHandler]) -> None:
        """Lock queues in the whole group, and run requests again that write at another master."""
        self._locks = GroupLocks(self._context, self._queue_locks, handlers, self._base.access)
        handlers |= self._locks.handlers()
        escapes = self._sending.escapes
        if escapes is not None:
            handlers |= escapes.run_again({code: handlers[code] for code in ENDS})
            for code in ENDS:
                bulk_handlers.pop(code, None)

    def inner_services(self) -> Sequence[Service]:
        """Locks of the group, and the special services."""
        return (self._locks, self.special)

    def services(self) -> Sequence[Service]:
        """Part that registers the broker, and decides whether it acts."""
        return (self.part,)
