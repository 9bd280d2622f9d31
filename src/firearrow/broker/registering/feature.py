"""Registration with the name servers, and routes from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from firearrow.broker.events import TopicMade, TopicsChanged
from firearrow.broker.feature import Base, Feature
from firearrow.broker.registering.registration import identity_of, registration_of
from firearrow.broker.registering.routes import routes_of
from firearrow.broker.registering.spreading import spreading_of
from firearrow.services import Service

OnMaster = Callable[[str, str], bool]


class RegistrationFeature(Feature):
    """Registration, routes of topics, and topics that are created on all brokers.

    In a slave, ``on_master`` gets the master that a name server knows; ``retry_ms`` is the pause between requests for
    it.
    """

    def __init__(
        self, base: Base, name_servers: Sequence[str], on_master: OnMaster | None, retry_ms: int | None = None
    ) -> None:
        self._base = base
        settings = base.settings
        self.identity: Final = identity_of(settings.broker, base.address, settings.store.ha_listen_port)
        self.registration: Final = registration_of(
            settings, base.topics, name_servers, self.identity, base.access, on_master
        )
        if retry_ms is not None:
            self.registration.retry_ms = retry_ms
        self.routes: Final = routes_of(settings, base.topics, base.clock, base.access)
        self._spreading = spreading_of(settings, base.address)

    def listen(self) -> None:
        """Register changed topics, and create new topics at other brokers."""
        self._base.events.listen(TopicsChanged, self._topics_changed)
        self._base.events.listen(TopicMade, self._spreading.made)

    def _topics_changed(self, changed: TopicsChanged) -> None:
        self.registration.topics_changed([config.topic_name or "" for config in changed.configs])

    def services(self) -> Sequence[Service]:
        """Routes, and the creation on other brokers; without acting slaves, the registration."""
        registration = () if self._base.acts else (self.registration,)
        return (*registration, self.routes, self._spreading)
