"""Tells the members of a consumer group that they have changed, so that they divide the queues
again (upstream ``DefaultConsumerIdsChangeListener``)."""

from __future__ import annotations

from itertools import islice
from typing import Final

from firearrow.broker.events import MembersChanged
from firearrow.broker.groups.clients import ClientRegistry
from firearrow.broker.state.settings import Settings
from firearrow.services import Soon
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import request

NOTIFIED_AT_ONCE_MAX: Final = 200
"""Groups whose members are told in one turn that they have changed. One connection that ends may
leave thousands."""


class MemberNotices:
    """Sends each member a one-way request (40); groups that broadcast have nothing to divide.

    Whatever changes until ``soon`` makes its call costs each member one notice, not one for every
    other member that leaves when a whole group is switched off.
    """

    def __init__(self, settings: Settings, clients: ClientRegistry, soon: Soon) -> None:
        self._settings = settings
        self._clients = clients
        self._soon = soon
        self._groups: dict[str, None] = {}

    def changed(self, change: MembersChanged) -> None:
        """Have the members of a group told."""
        group = self._clients.consumer_group(change.group)
        wanted = change.notify and self._settings.broker.notify_consumer_ids_changed_enable
        if group is None or group.is_broadcasting or not wanted:
            return
        first = not self._groups
        self._groups[group.name] = None
        if first:
            self._soon(self._tell)

    def _tell(self) -> None:
        changed = list(islice(self._groups, NOTIFIED_AT_ONCE_MAX))
        for name in changed:
            del self._groups[name]
        if self._groups:
            self._soon(self._tell)
        for group in filter(None, map(self._clients.consumer_group, changed)):
            command = request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group.name}, oneway=True)
            for channel in list(group.members):
                channel.push(command)
