"""Consumer groups and clients: subscriptions, heartbeats, locks of queues, assignment of queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.events import GroupLeft, MembersChanged
from firearrow.broker.feature import Base, Feature, Handlers
from firearrow.broker.groups.assignment import AssignmentProcessor, RequestModes
from firearrow.broker.groups.clientprocessor import ClientProcessor
from firearrow.broker.groups.clients import ClientChannel, ClientRegistry
from firearrow.broker.groups.filters import ConsumerFilters
from firearrow.broker.groups.locks import QueueLocks
from firearrow.broker.groups.processor import GroupAdminProcessor
from firearrow.broker.groups.relay import RelayProcessor
from firearrow.broker.groups.table import GroupTable
from firearrow.broker.registering.routes import TopicRoutes
from firearrow.broker.state.settings import Settings
from firearrow.broker.storage.saving import Saving
from firearrow.net.server import ConnectionClosed
from firearrow.services import Later, Service, Soon
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import request
from firearrow.wire.frame import AnyCommand

CLIENT_SWEEP_SECONDS: Final = 10.0
FILTER_SECONDS: Final = 10.0  # between writes of consumers' expressions, as RocketMQ


class GroupFeature(Feature):
    """Groups, and the clients that are their members.

    ``clients`` are the broker's from before its role changed; their connections go on.
    """

    def __init__(self, base: Base, clients: ClientRegistry | None = None) -> None:
        self._base = base
        settings, clock, root = base.settings, base.clock, base.root
        self.table: Final = GroupTable(settings, clock, root, in_database=base.in_database, events=base.events)
        self.clients: Final = clients or ClientRegistry(settings, clock, base.events)
        self.clients.go_by(settings)
        self.locks: Final = QueueLocks(clock)
        self.filters: Final = ConsumerFilters(settings, clock, root)
        self.modes: Final = RequestModes(root, settings.broker.config_generations)

    def load(self) -> None:
        """Read groups, expressions of consumers, and request modes."""
        self.table.load()
        self.filters.load()
        self.modes.load()

    def connect(self, context: BrokerContext, saving: Saving, routes: TopicRoutes) -> None:
        """Make the handlers."""
        self._saving = saving
        self._handlers = group_handlers(context, self.locks, self.filters, self.modes, routes)

    def saved_handlers(self) -> Handlers:
        """Handlers of clients, of groups, and of requests to consumers."""
        return self._handlers

    def listen(self) -> None:
        """Notify members of changes of their group, and remove clients whose connection is closed."""
        listen = self._base.events.listen
        loop = self._base.loop
        notices = MemberNotices(self._base.settings, self.clients, loop.call_soon, loop.call_later)
        listen(MembersChanged, notices.changed)
        listen(GroupLeft, lambda left: self.filters.unregister(left.group))
        listen(ConnectionClosed, lambda closed: self.clients.forget(closed.peer))

    def services(self) -> Sequence[Service]:
        """Periodic writes of expressions, and the removal of silent clients."""
        return (
            self._base.every("filters", FILTER_SECONDS, self._write_filters),
            self._base.every("clients", CLIENT_SWEEP_SECONDS, self._expire_clients),
        )

    def _write_filters(self) -> None:
        self.filters.clean()
        self._saving.write(self.filters.file)

    def _expire_clients(self) -> None:
        self.clients.expire()
        self.locks.expire()

    def save(self) -> None:
        """Write groups and expressions."""
        self.table.save()
        self.filters.save()

    def close(self) -> None:
        """Close groups, expressions and request modes."""
        self.table.close()
        self.filters.close()
        self.modes.file.close()


def group_handlers(
    context: BrokerContext, locks: QueueLocks, filters: ConsumerFilters, modes: RequestModes, routes: TopicRoutes
) -> Handlers:
    """Make the handlers of clients' heartbeats and locks, of groups, and of requests to consumers."""
    admin, clients = GroupAdminProcessor(context), ClientProcessor(context, locks, filters)
    asking, assignment = RelayProcessor(context), AssignmentProcessor(context, modes, routes)
    return {
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: admin.put,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: admin.put_list,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: admin.list_all,
        RequestCode.DELETE_SUBSCRIPTIONGROUP: admin.delete,
        RequestCode.DELETE_SUBSCRIPTIONGROUP_LIST: admin.delete_all,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: admin.get,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: admin.forbid,
        RequestCode.HEART_BEAT: clients.heartbeat,
        RequestCode.UNREGISTER_CLIENT: clients.unregister,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.consumer_ids,
        RequestCode.LOCK_BATCH_MQ: clients.lock,
        RequestCode.UNLOCK_BATCH_MQ: clients.unlock,
        RequestCode.CHECK_CLIENT_CONFIG: clients.check_config,
        RequestCode.GET_CONSUMER_CONNECTION_LIST: clients.consumer_connections,
        RequestCode.GET_PRODUCER_CONNECTION_LIST: clients.producer_connections,
        RequestCode.GET_ALL_PRODUCER_INFO: clients.producers,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: clients.subscription,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: asking.statuses,
        RequestCode.GET_CONSUMER_RUNNING_INFO: asking.running_info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: asking.consume_directly,
        RequestCode.QUERY_ASSIGNMENT: assignment.query,
        RequestCode.SET_MESSAGE_REQUEST_MODE: assignment.set_mode,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: assignment.modes,
    }


# --- notices to members ---
#
# Members of a changed group divide its queues
# again. Java: DefaultConsumerIdsChangeListener.


NOTICES_AT_ONCE_MAX: Final = 500
"""Limit of the notices, and of the groups, of one turn. One end of a connection may change thousands of groups, and a
group may have thousands of members.
"""
NOTICE_SECONDS: Final = 0.0001
"""Rest of the notices for each that was sent. When thousands of members join one by one, each would otherwise get a
notice for each other one.
"""


class MemberNotices:
    """Notify members of changed groups by a one-way request (40); groups that broadcast have nothing to divide.

    All changes until ``soon`` makes its call, or ``later`` behind a rest, cost each member one notice. When a whole
    group is switched off, each other member that leaves would otherwise cost one.
    """

    def __init__(self, settings: Settings, clients: ClientRegistry, soon: Soon, later: Later) -> None:
        self._settings = settings
        self._clients = clients
        self._soon = soon
        self._later = later
        self._groups: dict[str, None] = {}
        self._notices = self._next_notices()
        self._is_planned = False

    def changed(self, change: MembersChanged) -> None:
        """Notify the members of a changed group."""
        group = self._clients.consumer_group(change.group)
        wanted = change.notify and self._settings.broker.notify_consumer_ids_changed_enable
        if group is None or group.is_broadcasting or not wanted:
            return
        self._groups[group.name] = None
        if not self._is_planned:
            self._is_planned = True
            self._soon(self._tell)

    def _tell(self) -> None:
        notices = list(islice(self._notices, NOTICES_AT_ONCE_MAX))
        if len(notices) < NOTICES_AT_ONCE_MAX:  # it has ended
            self._notices = self._next_notices()
        for channel, command in filter(None, notices):
            channel.push(command)
        self._is_planned = bool(notices)
        if notices:
            self._later(len(notices) * NOTICE_SECONDS, self._tell)

    def _next_notices(self) -> Iterator[tuple[ClientChannel, AnyCommand] | None]:
        """Take one changed group after the other; None for each, then a notice for each of its members."""
        while self._groups:
            name = next(iter(self._groups))
            del self._groups[name]
            yield None
            group = self._clients.consumer_group(name)
            command = request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name}, oneway=True)
            for channel in [] if group is None else list(group.members):
                if not channel.is_loopback:
                    yield channel, command
