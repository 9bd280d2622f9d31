"""Connected clients: producers and consumers by group, and the subscriptions of the groups.

Clients send a heartbeat (34) every 30 s. A connection is a member of a group from its first heartbeat for it until it
unregisters (35), is closed, or is silent for 120 s. When the members of a group or its topics change, the event
`MembersChanged` follows, and ``broker.groups.feature`` notifies the members, which divide the queues again.

A group has one set of subscriptions, that of the last heartbeat: missing topics are dropped, and an expression is
replaced only by a later one (``subVersion``). A heartbeat of version 2 may come without subscriptions and leaves them
unchanged; its fingerprint tells whether they have changed.

Source: RocketMQ's ``ConsumerManager``, ``ConsumerGroupInfo``, ``ProducerManager``,
``DefaultConsumerIdsChangeListener``, ``FilterAPI``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Protocol

import msgspec

from firearrow.broker.events import GroupLeft, MembersChanged
from firearrow.broker.state.settings import Settings
from firearrow.clock import Clock
from firearrow.errors import BrokerError
from firearrow.events import Events
from firearrow.message import names
from firearrow.net.futures import Answered
from firearrow.wire.binary import LANGUAGES
from firearrow.wire.client_bodies import (
    BROADCASTING,
    SUBSCRIBE_ALL,
    ClientConnection,
    ConsumerData,
    MemberChange,
    SubscriptionData,
    is_by_tags,
    tags_in,
)
from firearrow.wire.codes import ResponseCode
from firearrow.wire.frame import AnyCommand

EXPRESSION_LENGTH_MAX: Final = 65_536
"""Limit of the characters of a subscription's expression, with its tags or codes. They are kept as long as their group
has members, and a pull with its own expression goes through all of them.
"""
NAME_CHARS_MAX: Final = 255  # of a topic or a group; some names have lower limits
CLIENT_CHARS_MAX: Final = 1024  # of a client id: an address, a process and the user's suffix
WORD_CHARS_MAX: Final = 64  # of a word of the protocol, such as CLUSTERING; the longest has 26
# Memory of one connection in a group, one subscription, and a tag with its code, without names.
_MEMBER_BYTES, _SUBSCRIPTION_BYTES, _TAG_BYTES = 600, 400, 160
_CACHED_CHARS_MAX: Final = 1024  # longer expressions are parsed each time, not kept


class ClientChannel(Protocol):
    """Connection as this module sees it (``net.server.Peer`` is one)."""

    address: str
    ip: str
    is_loopback: bool
    """True for a client of the proxy in this process, which divides no queues."""

    def push(self, command: AnyCommand) -> bool:
        """Send a one-way request; tell whether it was sent."""
        ...

    def call(self, command: AnyCommand, timeout_seconds: float) -> Answered:
        """Send a request, and return its pending answer."""
        ...

    def keep(self, size: int) -> None:
        """Count bytes that are kept of its requests, or (below 0) released.

        BrokerError if they are too many.
        """
        ...

    def close(self, reason: str) -> None:
        """Close the connection."""
        ...


class TagFilter(msgspec.Struct, frozen=True):
    """Hash codes of the tags in a group's subscription to a topic; None: all messages."""

    codes: frozenset[int] | None = None


ALL_MESSAGES: Final = TagFilter()


def parse_tags(expression: str | None) -> TagFilter:
    """Read ``A || B``; an empty text and ``*`` mean all messages.

    Raises BrokerError(SUBSCRIPTION_PARSE_FAILED) for an expression of bars alone, or of more than
    `EXPRESSION_LENGTH_MAX` characters.
    """
    if expression and len(expression) > EXPRESSION_LENGTH_MAX:
        raise _unreadable(
            f"the subscription expression is {len(expression)} characters long, the limit is {EXPRESSION_LENGTH_MAX}"
        )
    tags = tags_in(expression)
    if tags is None:
        return ALL_MESSAGES
    if not tags and not (expression or "").strip("|"):
        raise _unreadable(f"the subscription expression {expression!r} names no tag")
    return TagFilter(frozenset(map(names.java_hash, tags)))


def tag_codes_of(expression: str) -> frozenset[int] | None:
    """Read the expression of a pull or pop: the codes of its tags, None for all messages.

    Raises BrokerError like `parse_tags`.
    """
    if len(expression) <= _CACHED_CHARS_MAX:
        return _tag_codes(expression)
    return parse_tags(expression).codes


@lru_cache(maxsize=4096)
def _tag_codes(expression: str) -> frozenset[int] | None:
    return parse_tags(expression).codes


def _unreadable(why: str) -> BrokerError:
    code = ResponseCode.SUBSCRIPTION_PARSE_FAILED
    return BrokerError.lookup(code)(code, why)


def fault_of(data: SubscriptionData) -> str | None:
    """Return the fault of a subscription that is too large to keep, otherwise None."""
    if len(data.topic) > NAME_CHARS_MAX or len(data.expression_type) > WORD_CHARS_MAX:
        return f"the topic or the type of a subscription is longer than {NAME_CHARS_MAX} characters"
    size = max(len(data.sub_string), len(data.code_set), len(data.tags_set))
    if size <= EXPRESSION_LENGTH_MAX:
        return None
    return (
        f"the subscription to topic {data.topic[: names.TOPIC_LENGTH_MAX]} has {size} characters, "
        f"tags or codes, the limit is {EXPRESSION_LENGTH_MAX}"
    )


class Subscription(msgspec.Struct, frozen=True):
    """Subscription as the client sent it, and its meaning for a pull.

    ``filter`` None: the subscription has an expression, see ``broker.groups.filters``.
    """

    data: SubscriptionData
    filter: TagFilter | None

    @property
    def version(self) -> int:
        """Time when the client made the subscription, in ms."""
        return self.data.sub_version


def subscription_of(data: SubscriptionData) -> Subscription:
    """Return the meaning of a subscription from a heartbeat.

    The hash codes that the client sent count, as in RocketMQ; without them the codes are made from its expression. With
    ``classFilterMode`` all messages match: the filter server that evaluated classes no longer exists in RocketMQ,
    either.
    """
    if not is_by_tags(data.expression_type):
        return Subscription(data, None)
    if data.sub_string == SUBSCRIBE_ALL or data.class_filter_mode:
        return Subscription(data, ALL_MESSAGES)
    if data.code_set or not data.sub_string.strip("| "):
        return Subscription(data, TagFilter(frozenset(data.code_set)))
    return Subscription(data, parse_tags(data.sub_string))


class GroupMember:
    """One connection's membership in one group; ``user`` has signed for it, if access control is on."""

    __slots__ = ("channel", "client_id", "heard", "language", "user", "version")

    def __init__(
        self, channel: ClientChannel, client_id: str, language: str | int | None, version: int, user: str = ""
    ) -> None:
        self.user: str = user
        self.channel: ClientChannel = channel
        self.client_id: str = client_id
        word = LANGUAGES.get(language) if isinstance(language, int) else language
        self.language: str | None = word and word[:WORD_CHARS_MAX]
        self.version: int = version
        self.heard: float = 0.0

    @property
    def who(self) -> tuple[str, str]:
        """The user, and the id of the client."""
        return self.user, self.client_id

    def connection(self) -> ClientConnection:
        """Connection in the form for administrators."""
        return ClientConnection(self.client_id, self.channel.address, self.language, self.version)


Members = dict[ClientChannel, GroupMember]


class ConsumerGroup:
    """Members of a consumer group and their common subscriptions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type: str | None = None
        self.message_model: str | None = None
        self.consume_from_where: str | None = None
        self.members: Members = {}
        self.subscriptions: dict[str, Subscription] = {}

    @property
    def is_broadcasting(self) -> bool:
        """Tell whether each member gets every message."""
        return self.message_model == BROADCASTING

    def client_ids(self) -> list[str]:
        """Return the ids of the members."""
        return [member.client_id for member in self.members.values()]

    def member(self, client_id: str) -> GroupMember | None:
        """Return the member with an id."""
        found = (member for member in self.members.values() if member.client_id == client_id)
        return next(found, None)

    def subscribe(self, wanted: Iterable[SubscriptionData]) -> bool:
        """Adopt the subscriptions of a heartbeat; return True if the topics have changed."""
        before = self.subscriptions
        after: dict[str, Subscription] = {}
        for data in wanted:
            old = after.get(data.topic) or before.get(data.topic)
            newer = old is None or data.sub_version > old.version
            after[data.topic] = subscription_of(data) if newer or old is None else old
        self.subscriptions = after
        return after.keys() != before.keys()


GroupsOf = dict[ClientChannel, dict[str, int]]  # the kept bytes, by group


def _size_of(member: GroupMember, group: str, subscriptions: Iterable[SubscriptionData] = ()) -> int:
    """Approximate memory of a heartbeat."""
    size = _MEMBER_BYTES + len(group) + len(member.client_id)
    for data in subscriptions:
        size += _SUBSCRIPTION_BYTES + len(data.topic) + 2 * len(data.sub_string)
        size += _TAG_BYTES * max(len(data.tags_set), len(data.code_set))
        size += sum(map(len, data.tags_set))
    return size


class ClientRegistry:
    """All producers and consumers of a broker."""

    def __init__(self, settings: Settings, clock: Clock, events: Events | None = None) -> None:
        self._settings = settings
        self._clock = clock
        events = events or Events()
        self.changed: Final = events.of(MembersChanged)
        self._left = events.of(GroupLeft)
        self._producers: dict[str, Members] = {}
        # By client id and user: the groups in which a client is a producer, and its connection in each; the newest is
        # last. The first user of an id keeps it as long as it is registered.
        self._producing: dict[str, dict[str, dict[tuple[str, ClientChannel], None]]] = {}
        self._consumers: dict[str, ConsumerGroup] = {}
        self._fingerprints: dict[str, int] = {}
        self.member_log: Final = MemberLog(clock)
        # Names of the groups of a connection: producer groups, consumer groups.
        self._produces: GroupsOf = {}
        self._consumes: GroupsOf = {}

    def go_by(self, settings: Settings) -> None:
        """Adopt other settings, as the broker has another role."""
        self._settings = settings

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """Return a consumer group with members, None if it has none."""
        return self._consumers.get(group)

    def consumer_groups(self) -> list[tuple[str, ConsumerGroup]]:
        """Return all consumer groups that have members."""
        return list(self._consumers.items())

    def groups_of(self, channel: ClientChannel) -> list[str]:
        """Return the groups of a connection."""
        return sorted({*self._produces.get(channel, ()), *self._consumes.get(channel, ())})

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return the subscription of a group to a topic, None if it has none."""
        found = self._consumers.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def producers(self, group: str) -> list[GroupMember]:
        """Return the members of a producer group."""
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> list[tuple[str, list[GroupMember]]]:
        """Return all producer groups with their members."""
        return [(group, list(members.values())) for group, members in self._producers.items()]

    def producer(self, client_id: str) -> ClientChannel | None:
        """Return the connection of a client that is a producer, None if there is none.

        Clients choose their ids, so a second user can't take the id of the first. Java: ProducerManager#findChannel
        knows one connection of a client, and forgets it when the client leaves any of its groups, or an earlier
        connection ends.
        """
        user = self.user_of(client_id)
        return None if user is None else next(reversed(self._producing[client_id][user]))[1]

    def user_of(self, client_id: str) -> str | None:
        """Return the user that has a client id as a producer, None if there is none."""
        found = self._producing.get(client_id)
        return None if found is None else next(iter(found))

    def consumers_of(self, topic: str) -> set[str]:
        """Return the consumer groups with members that subscribe to a topic."""
        return {name for name, group in self._consumers.items() if topic in group.subscriptions}

    def register_producer(self, group: str, member: GroupMember) -> None:
        """Register a producer's heartbeat; BrokerError if its connection uses too much memory."""
        _join(self._produces, member.channel, group, _size_of(member, group))
        members = self._producers.setdefault(group, {})
        known = members.get(member.channel)
        self._hear(members, member)
        if known is None or known.who != member.who:
            if known is not None:
                self._forget_producing(group, known)
            places = self._producing.setdefault(member.client_id, {}).setdefault(member.user, {})
            places[group, member.channel] = None

    def register_consumer(
        self, data: ConsumerData, member: GroupMember, *, notify: bool = True, keep: bool = False
    ) -> None:
        """Register a consumer's heartbeat, and notify the group if it has changed.

        ``notify`` False: the group's configuration wants no notifications. ``keep``: the heartbeat came without
        subscriptions, and the group's stay. Raises BrokerError if its connection uses too much memory.
        """
        name = data.group_name
        size = _size_of(member, name, () if keep else data.subscription_data_set)
        known_size = self._consumes.get(member.channel, {}).get(name, 0) if keep else 0
        _join(self._consumes, member.channel, name, max(size, known_size))
        group = self._consumers.get(data.group_name)
        if group is None:
            group = self._consumers[data.group_name] = ConsumerGroup(data.group_name)
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        joined = self._hear(group.members, member)
        changed = False if keep else group.subscribe(data.subscription_data_set)
        if joined:
            self.member_log.note(group.name, member.client_id, joined=True)
        if joined or changed:
            self.changed(MembersChanged(group.name, notify))

    def swap_fingerprint(self, group: str, fingerprint: int, *, without_sub: bool) -> bool:
        """Store the fingerprint of a group's heartbeat; return True if the client must send everything.

        It must after a change of the fingerprint, and when there was none and the heartbeat comes without
        subscriptions. Java: ClientManageProcessor#heartBeatV2 lets the latter pass, and a group stays without
        subscriptions after a restart of the broker.
        """
        before = self._fingerprints.get(group)
        self._fingerprints[group] = fingerprint
        return before != fingerprint and (without_sub or before is not None)

    def unregister_producer(self, group: str, channel: ClientChannel) -> None:
        """Remove a connection from a producer group."""
        members = self._producers.get(group, {})
        member = members.pop(channel, None)
        if member is not None:
            _leave(self._produces, channel, group)
            self._forget_producing(group, member)
        if not members:
            self._producers.pop(group, None)

    def _forget_producing(self, group: str, member: GroupMember) -> None:
        users = self._producing[member.client_id]
        places = users[member.user]
        del places[group, member.channel]
        if not places:
            del users[member.user]
        if not users:
            del self._producing[member.client_id]

    def unregister_consumer(self, group: str, channel: ClientChannel, *, notify: bool = True) -> None:
        """Remove a connection from a consumer group."""
        found = self._consumers.get(group)
        member = None if found is None else found.members.pop(channel, None)
        if found is not None and member is not None:
            _leave(self._consumes, channel, group)
            self.member_log.note(group, member.client_id, joined=False)
            self._member_left(found, notify=notify)

    def forget(self, channel: ClientChannel) -> None:
        """Remove a connection that has ended from its groups, and notify the others."""
        for group in list(self._produces.get(channel, ())):
            self.unregister_producer(group, channel)
        for group in list(self._consumes.get(channel, ())):
            self.unregister_consumer(group, channel)

    def expire(self) -> None:
        """Close and remove the connections that sent no heartbeat in time; a proxy ends its clients' connections."""
        limit = self._clock.monotonic() - self._settings.broker.channel_expired_timeout / 1000
        groups = [*self._producers.values(), *(g.members for g in self._consumers.values())]
        heard = ((channel, member.heard) for members in groups for channel, member in members.items())
        silent = {channel: None for channel, at in heard if at < limit and not channel.is_loopback}
        for channel in silent:
            self.forget(channel)
            channel.close("no heartbeat came in time")

    def _hear(self, members: Members, member: GroupMember) -> bool:
        """Note a heartbeat; return True if the connection is new in the group."""
        known = members.get(member.channel)
        if known is None or known.who != member.who:
            members[member.channel] = known_or_new = member
        else:
            known_or_new = known
        known_or_new.heard = self._clock.monotonic()
        return known is None

    def _member_left(self, group: ConsumerGroup, *, notify: bool) -> None:
        if not group.members:
            del self._consumers[group.name]
            self._fingerprints.pop(group.name, None)
            self._left(GroupLeft(group.name))
        else:
            self.changed(MembersChanged(group.name, notify))


def _join(groups_of: GroupsOf, channel: ClientChannel, group: str, size: int) -> None:
    before = groups_of.get(channel, {}).get(group, 0)
    channel.keep(size - before)
    groups_of.setdefault(channel, {})[group] = size


def _leave(groups_of: GroupsOf, channel: ClientChannel, group: str) -> None:
    groups = groups_of[channel]
    channel.keep(-groups.pop(group))
    if not groups:
        del groups_of[channel]


# --- History of joins and leaves ---
#
# `firearrow doctor` reads it by 203.
#
# RocketMQ's brokers keep no such history. It is in memory only, and limited.


CHANGES_MAX: Final = 50  # of a group: ten restarts of five clients
GROUPS_MAX: Final = 1_000  # that changed last; at most 10 MB


class MemberLog:
    """Last changes of the groups that changed last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, deque[MemberChange]] = {}

    def note(self, group: str, client_id: str, *, joined: bool) -> None:
        """Note that a client has joined a group, or left it."""
        changes = self._groups.pop(group, None)
        if changes is None:
            changes = deque(maxlen=CHANGES_MAX)
            if len(self._groups) >= GROUPS_MAX:
                del self._groups[next(iter(self._groups))]
        changes.append(MemberChange(self._clock.now_ms(), client_id, joined))
        self._groups[group] = changes  # the last one now

    def of(self, group: str) -> list[MemberChange]:
        """Return the changes of a group, the oldest first."""
        return list(self._groups.get(group, ()))
