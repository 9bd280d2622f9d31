"""Requests of clients of lite topics: subscriptions (200071), and pops (200070).

Source: RocketMQ ``LiteSubscriptionCtlProcessor``, ``PopLiteMessageProcessor``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NoReturn, Protocol

from firearrow.broker.context import BrokerContext
from firearrow.broker.groups.clients import CLIENT_CHARS_MAX
from firearrow.broker.lite import facts
from firearrow.broker.lite.popping import LitePop
from firearrow.broker.lite.subscriptions import Subscriber, waiting_key
from firearrow.broker.lite.topics import LiteTopics
from firearrow.broker.pop.processor import LATE_MS_MAX
from firearrow.broker.pop.waiting import Answer as PeerAnswer
from firearrow.broker.pop.waiting import HoldOutcome
from firearrow.broker.pulling.coldreads import ColdReads
from firearrow.errors import BrokerError
from firearrow.message import names
from firearrow.net.server import Answer, Finished, Peer, Steps
from firearrow.store import Fetch
from firearrow.wire.bodies import PERM_READ
from firearrow.wire.client_bodies import (
    LiteSubscription,
    LiteSubscriptionChanges,
    OffsetOption,
    SubscriptionGroupConfig,
    body_of,
)
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import FieldValue, Response, fields_of
from firearrow.wire.command import request as request_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import Notification, PopLiteMessage
from firearrow.wire.pop import ORDER_REVIVE_QUEUE

MESSAGES_MAX: Final = 32  # of one pop
STEP_NAMES: Final = 200  # of a change in one step; a millisecond or two
_LAST, _FIRST, _BEHIND = range(3)  # OffsetOption of type POLICY


class LiteHeader(Protocol):
    """Header that names a parent topic and a group."""

    consumer_group: str
    topic: str


class LiteProcessor:
    """Handlers of pops of lite topics, and of subscriptions."""

    def __init__(self, context: BrokerContext, cold: ColdReads, lite: LiteTopics) -> None:
        self._settings = context.settings
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._stats = context.stats
        self._clock = context.clock
        self._cold = cold
        self._subscriptions = lite.subscriptions
        self._sharding = lite.sharding
        self._events = lite.events
        self._popping = lite.popping
        self._held = lite.held

    # --- pops ---

    def pop(self, peer: Peer, request: AnyCommand) -> Finished:
        """200070: answer with messages, or that none came in time."""
        return self._pop(peer, request, aside=self._cold.are_aside)

    def _pop_fetched(self, peer: Peer, request: AnyCommand) -> Finished:
        """Run a pop again after its reads from the disk."""
        return self._pop(peer, request, aside=False)

    def _pop(self, peer: Peer, request: AnyCommand, *, aside: bool) -> Finished:
        header = request.ext
        if type(header) is not PopLiteMessage:
            header = fields_of(request, PopLiteMessage)
        now_ms = self._clock.now_ms()
        if not header.born_time:
            header.born_time = now_ms
        try:
            self._check(header, now_ms)
            found = self._find(header, now_ms, only_resident=aside)
        except Fetch as lacks:
            self._cold.hold(peer, request, lacks.stretches, self._pop_fetched)
            return None
        finally:
            self._events.has_run(header.topic, header.client_id, header.consumer_group)
        if found is not None:
            fields = _fields(header, now_ms, ";".join(found.counts))
            return Response(fields=fields, body=b"".join(found.records))
        self._stats.pulls_missed += 1
        return self._wait(peer, request, header, now_ms)

    def _find(self, header: PopLiteMessage, now_ms: int, *, only_resident: bool) -> LitePop | None:
        """Return the found messages, None if there are none; raise Fetch like `LitePopping.pop`."""
        client = self._subscriptions.find(header.client_id, header.consumer_group)
        if client is None:
            return None
        found = self._popping.pop(header, client, now_ms, only_resident=only_resident)
        if not found.counts and self._store.catch_up():
            found = self._popping.pop(header, client, now_ms, only_resident=only_resident)
        return found if found.counts else None

    def _wait(self, peer: Peer, request: AnyCommand, header: PopLiteMessage, now_ms: int) -> Finished:
        client = self._subscriptions.find(header.client_id, header.consumer_group)
        key = waiting_key(header.topic, header.client_id, header.consumer_group)
        if client is not None:
            key = client.key
        chars = len(header.client_id) + len(header.attempt_id or "")
        outcome = self._held.hold_for(key, chars, peer, request, header, self.pop)
        if outcome is HoldOutcome.HELD:
            if client is not None:
                self._events.waits(client)
            return None
        full = outcome is HoldOutcome.FULL
        code = ResponseCode.POLLING_FULL if full else ResponseCode.POLLING_TIMEOUT
        return Response(code, "NO_MESSAGE_IN_QUEUE", _fields(header, now_ms, ""))

    def _check(self, header: PopLiteMessage, now_ms: int) -> None:
        """Refuse a pop for all reasons, in RocketMQ's order."""
        broker = self._settings.broker
        address = broker.broker_ip1
        if now_ms - header.born_time - header.poll_time > LATE_MS_MAX:
            _refuse(ResponseCode.POLLING_TIMEOUT, f"the broker[{address}] pop message is timeout too much")
        if not broker.broker_permission & PERM_READ:
            _refuse(ResponseCode.NO_PERMISSION, f"the broker[{address}] pop message is forbidden")
        if not 0 < header.max_msg_num <= MESSAGES_MAX:
            _refuse(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{address}] pop message's num is not from 1 to {MESSAGES_MAX}",
            )
        self._check_topic(header)
        self._check_group(header)

    def _check_topic(self, header: LiteHeader) -> None:
        topic = self._topics.get(header.topic)
        if topic is None:
            _refuse(ResponseCode.TOPIC_NOT_EXIST, f"topic [{header.topic}] not exist, apply first please!")
        if not topic.perm & PERM_READ:
            _refuse(ResponseCode.NO_PERMISSION, f"the topic [{header.topic}] peeking message is forbidden")
        if not facts.is_parent(topic):
            _refuse(ResponseCode.INVALID_PARAMETER, f"the topic [{header.topic}] message type not match")

    def _check_group(self, header: LiteHeader) -> None:
        name = header.consumer_group
        group = self._groups.find(name)
        if group is None:
            _refuse(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] not exist")
        if not group.consume_enable:
            _refuse(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}")
        if facts.parent_of(group) != header.topic:
            _refuse(ResponseCode.INVALID_PARAMETER, f"subscription bind topic not match, {name}")

    # --- notifications ---

    def has_message(self, header: Notification) -> bool:
        """Return whether a client may get a message; refuse for the reasons of a pop."""
        if not header.client_id:
            _refuse(ResponseCode.INVALID_PARAMETER, "a lite consumer's clientId is missing")
        self._check_topic(header)
        self._check_group(header)
        self._store.catch_up()
        client = self._subscriptions.find(header.client_id, header.consumer_group)
        return client is not None and self._events.has_any(client)

    def hold(self, peer: Peer, request: AnyCommand, header: Notification, answer: PeerAnswer) -> HoldOutcome:
        """Hold a notification until there may be a message; then ``answer`` runs it again."""
        client_id = header.client_id or ""
        key = self._events.notification_key(header.topic, client_id, header.consumer_group)
        chars = len(client_id) + len(header.attempt_id or "") + len(header.exp or "")
        return self._held.hold_for(key, chars, peer, request, header, answer)

    # --- subscriptions ---

    def subscribe(self, peer: Peer, request: AnyCommand) -> Answer:
        """200071: subscribe a client to lite topics, or unsubscribe it."""
        if not request.body:
            raise BrokerError(ResponseCode.ILLEGAL_OPERATION, "Request body is null.")
        changes = body_of(request, LiteSubscriptionChanges).subscription_set
        if not changes:
            raise BrokerError(ResponseCode.ILLEGAL_OPERATION, "LiteSubscriptionCtlRequestBody is empty.")
        return self._change_all(peer, changes)

    def _change_all(self, peer: Peer, changes: list[LiteSubscription]) -> Steps:
        for change in changes:
            yield
            if not all(map(_is_text, (change.client_id, change.group, change.topic))):
                continue
            yield from self._change(peer, change)
        return Response()

    def _change(self, peer: Peer, change: LiteSubscription) -> Iterator[None]:
        client_id, name, parent = change.client_id or "", change.group or "", change.topic or ""
        # The name of each queue contains the parent's.
        fault = names.validate_topic(parent)
        if fault is None and max(len(client_id), len(name)) > CLIENT_CHARS_MAX:
            fault = f"a client id or group has more than {CLIENT_CHARS_MAX} characters"
        if fault is not None:
            raise BrokerError(ResponseCode.ILLEGAL_OPERATION, fault)
        if change.action == "COMPLETE_REMOVE":
            known = self._subscriptions.find(client_id, name)
            if known is not None:
                self._subscriptions.leave(known)
            return
        group = self._groups.get(name)
        if change.action != "PARTIAL_REMOVE":
            group = self._groups.find(name)
            if group is None or not group.consume_enable:
                raise BrokerError(ResponseCode.ILLEGAL_OPERATION, "Consumer group is not allowed to consume.")
        is_wildcard = facts.is_wildcard(group)
        if is_wildcard and change.action == "PARTIAL_ADD":
            raise BrokerError(
                ResponseCode.ILLEGAL_OPERATION, "subscribe lite operation is not supported for this group"
            )
        client, is_new = self._subscriptions.join(client_id, name, parent, peer, is_wildcard=is_wildcard)
        if is_new:  # pops that waited before the client was known may wait under another key now
            self._held.release(*waiting_key(parent, client_id, name)[:2])
        if is_wildcard:
            if is_new:
                yield from self._events.look_through(client)
            return
        queues = [names.lite_queue(parent, lite) for lite in change.lite_topic_set or ()]
        if change.action == "PARTIAL_REMOVE":
            yield from self._remove(client, group, queues)
        elif change.action == "PARTIAL_ADD":
            yield from self._add(client, group, queues, change.offset_option)
        else:
            yield from self._replace(client, group, queues)

    def _replace(self, client: Subscriber, group: SubscriptionGroupConfig | None, queues: list[str]) -> Iterator[None]:
        """Subscribe a client to exactly these lite topics.

        Java: LiteSubscriptionRegistryImpl#addCompleteSubscription lets it have more than the quota, and lite topics of
        another client of an exclusive group.
        """
        wanted = dict.fromkeys(queues)
        for number, queue in enumerate([old for old in client.queues if old not in wanted], 1):
            self._subscriptions.remove(client, queue)
            if number % STEP_NAMES == 0:
                yield
        new = [queue for queue in wanted if queue not in client.queues]
        if facts.is_exclusive(group):
            new = [queue for queue in new if not self._owners(client.group, queue)]
        yield from self._add(client, group, new, None)

    def _add(
        self, client: Subscriber, group: SubscriptionGroupConfig | None, queues: list[str], option: OffsetOption | None
    ) -> Iterator[None]:
        most = self._settings.broker.max_lite_subscription_count
        exclusive = facts.is_exclusive(group)
        for number, queue in enumerate(queues, 1):
            if number % STEP_NAMES == 0:
                yield
            if queue in client.queues:
                if option is not None:
                    self._begin(client.group, queue, option)
                continue
            parts = names.lite_parts(queue)
            if parts is None or names.validate_lite(parts[1]) is not None:
                continue
            if not self._popping.end(queue) and not self._sharding.is_here(*parts):
                continue
            if self._subscriptions.count >= most:
                raise BrokerError(
                    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, f"lite subscription quota exceeded {most}"
                )
            if exclusive:
                self._evict(client, group, queue)
            self._subscriptions.add(client, queue)
            if option is not None:
                self._begin(client.group, queue, option)
            self._events.begun(client, queue)

    def _evict(self, client: Subscriber, group: SubscriptionGroupConfig | None, queue: str) -> None:
        """Take a lite topic from the clients of the group that have it, and notify them."""
        parts = names.lite_parts(queue)
        assert parts is not None
        for other in self._owners(client.group, queue):
            self._subscriptions.remove(other, queue)
            fields: dict[str, FieldValue] = {
                "clientId": other.client_id,
                "consumerGroup": other.group,
                "liteTopic": parts[1],
            }
            if other.channel is not None:
                code = RequestCode.NOTIFY_UNSUBSCRIBE_LITE
                other.channel.push(request_of(code, fields, oneway=True))
            if facts.begins_again(group, evicted=True):
                self._popping.reset(client.group, queue, 0)

    def _owners(self, group: str, queue: str) -> list[Subscriber]:
        return [one for one in self._subscriptions.of_queue(queue) if one.group == group]

    def _remove(self, client: Subscriber, group: SubscriptionGroupConfig | None, queues: list[str]) -> Iterator[None]:
        for number, queue in enumerate(queues, 1):
            removed = self._subscriptions.remove(client, queue)
            if removed and facts.begins_again(group, evicted=False):
                self._popping.reset(client.group, queue, 0)
            if number % STEP_NAMES == 0:
                yield

    def _begin(self, group: str, queue: str, option: OffsetOption) -> None:
        """Move a group to the offset in a lite topic that its client asks for."""
        at: int | None = None
        if option.type == "POLICY":
            at = {_FIRST: 0, _BEHIND: self._popping.end(queue)}.get(option.value)
        elif option.type == "OFFSET":
            at = max(option.value, 0)
        elif option.type == "TAIL_N":
            committed = self._offsets.query(group, queue, 0)
            at = None if committed < 0 else max(committed - option.value, 0)
        if at is not None:
            self._popping.reset(group, queue, at)


def _is_text(text: str | None) -> bool:
    return bool(text and text.strip())


def _refuse(code: ResponseCode, remark: str) -> NoReturn:
    raise BrokerError(code, remark)


def _fields(header: PopLiteMessage, now_ms: int, counts: str) -> dict[str, FieldValue]:
    return {
        "popTime": now_ms,
        "invisibleTime": header.invisible_time,
        "reviveQid": ORDER_REVIVE_QUEUE,
        "orderCountInfo": counts,
    }
