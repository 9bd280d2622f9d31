"""Sends: one message (10, 310) and batches (320).

A batch to a topic with the attribute ``queue.type=BatchCQ`` is stored as one record (an inner batch, see
``firearrow.store.batchqueue``), if it has a unique key; otherwise as one record for each member.

Nearly every message is *plain*: its topic exists and has no special rules, and its flags and properties ask for nothing
that the broker must do. Such a message goes straight to the log. ``_target`` finds out about the topic (once per topic,
as long as its config stays the same), and ``_send_draft`` handles all other properties.

The queue of a message with a priority (``_SYS_MSG_PRIORITY_``) is that priority, or the highest one that is written to:
pops of a topic for priorities look at high queues first (``pop.popping``).

Source: RocketMQ ``SendMessageProcessor``, ``AbstractSendMessageProcessor``, ``HookUtils``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.delaying.delivery import delay_level
from firearrow.broker.events import WaitsElsewhere
from firearrow.broker.groups.locks import QueueLocks
from firearrow.broker.metrics.tally import DELAY, FIFO, Tally
from firearrow.broker.sending.plain import plain_properties, plain_unique
from firearrow.broker.sending.puts import PutResult, UnstoredMessage
from firearrow.broker.sending.sendback import DLQ_QUEUES, times_max_of
from firearrow.broker.timing.recalls import recall_handle
from firearrow.broker.topics.table import UNIT_FLAG
from firearrow.broker.transactions.halves import HALF_TOPIC, QUEUE_ID, stored_as_half
from firearrow.errors import BrokerError, MessageError, StoreError
from firearrow.javanumbers import INT_MAX
from firearrow.message import names, properties
from firearrow.message.batch import split_batch
from firearrow.message.hosts import unpack_host
from firearrow.message.ids import encode_offset_id
from firearrow.message.properties import PROPERTIES_BYTES_MAX
from firearrow.message.sysflag import (
    COMPRESSED,
    COMPRESSION_MASK,
    INNER_BATCH,
    MULTI_TAGS,
    NEED_UNWRAP,
    TRANSACTION_MASK,
)
from firearrow.net.server import Answer, Peer, PeerRequest
from firearrow.services import Soon
from firearrow.store import (
    MESSAGES_MAX,
    BatchPart,
    ConsumeQueue,
    Members,
    PutStatus,
    members_alike,
    members_of,
    offset_ids,
)
from firearrow.wire.bodies import PERM_WRITE, TopicConfig
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Placed, Response, fields_of
from firearrow.wire.frame import LENGTHS, AnyCommand, SendAnswers, response_of
from firearrow.wire.headers import AnySendMessage, PlainSend, SendMessage, SendMessageV2

_NOT_PLAIN_FLAGS: Final = ~(COMPRESSED | MULTI_TAGS | COMPRESSION_MASK)
_BATCH_TOPIC_BYTES_MAX: Final = 127
_PAIR_END: Final = b"\x02"

# Properties that ask for a delivery which this broker does not support yet. They are refused rather than stored: an
# acknowledged message must reach its consumers as its sender meant it.
_UNSUPPORTED: Final = {"INNER_NUM": "inner-batch"}
# Properties that brokers add. From a client they would belong to another message, or be a lie.
_DROPPED: Final = frozenset(
    {
        "MSG_REGION",
        "TRACE_ON",
        "CLUSTER",
        properties.POP_CHECKPOINT,
        properties.INNER_MULTI_QUEUE_OFFSET,
        properties.TIMER_ROLL_TIMES,
        properties.CRC32,
    }
)
# Properties that messages of a batch must not have, as the broker does not look at each: they would act later.
_NOT_IN_BATCHES: Final = (properties.POP_CHECKPOINT, properties.REPLY_TO_CLIENT, properties.RETRY_TOPIC)
_UNCONFIRMED: Final = {
    PutStatus.NOT_FLUSHED: (ResponseCode.FLUSH_DISK_TIMEOUT, "the message is stored, the disk did not confirm it"),
    PutStatus.NOT_COPIED: (
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        "the message is stored, not enough slaves did confirm it (inSyncReplicas)",
    ),
}
_INTEGER: Final = re.compile(r"[+-]?\d{1,64}")  # as Java reads a number


class _SendTopic:
    """Topic that may be sent to, by its config."""

    __slots__ = ("config", "half_waits", "inner_batches", "queue_count", "queues", "write_queues")

    def __init__(self, topic: str, config: TopicConfig, queues: list[ConsumeQueue], *, inner_batches: bool) -> None:
        self.config = config
        self.half_waits = WaitsElsewhere(HALF_TOPIC, topic)
        self.inner_batches = inner_batches
        self.queue_count = max(config.read_queue_nums, config.write_queue_nums)
        self.queues = queues
        self.write_queues = config.write_queue_nums


class SendProcessor:
    """Append the messages that clients send."""

    def __init__(self, context: BrokerContext, locks: QueueLocks, soon: Soon) -> None:
        self._settings = context.settings
        self._store = store = context.store
        self._tally = context.stats.tally
        self._put = store.put
        self._puts = context.puts
        self._topics = context.topics
        self._topic_table = context.topics.table
        self._groups = context.groups
        self._locks = locks
        self._clock = context.clock
        self._soon = soon
        self._chance = context.chance
        self._senders = context.senders
        self._clients = context.clients
        wanted = [properties.INNER_MULTI_QUEUE_OFFSET] if store.takes_lmqs else []
        wanted += _NOT_IN_BATCHES if self._senders.asks_rights else ()
        self._not_in_batches = [name.encode() for name in wanted]
        self._targets: dict[str, _SendTopic] = {}
        self._halves: tuple[TopicConfig | None, ConsumeQueue] | None = None
        self._ready: dict[Peer, list[bytes]] = {}
        self._body_bytes_max = store.config.max_message_size
        self._must_confirm = store.must_confirm
        config = context.settings.broker
        self._own_properties = {
            "MSG_REGION": config.region_id,
            "TRACE_ON": "true" if config.trace_on else "false",
            "CLUSTER": config.broker_cluster_name,
        }
        self._added = properties.encode(self._own_properties)
        self._added_after_pair = _PAIR_END + self._added
        id_prefix = encode_offset_id(unpack_host(store.store_host), 0)[:-16]
        self._answers = SendAnswers(config.region_id, trace_on=config.trace_on, id_prefix=id_prefix)
        self._template = self._answers.template

    def forget_targets(self) -> None:
        """Check every topic again: the configuration has changed."""
        self._targets.clear()
        self._halves = None

    # --- one message ---

    def send(self, peer: Peer, request: AnyCommand) -> Answer:
        """10, 310: append one message, and answer with its ids and its queue offset."""
        header, unique = request.ext, b""
        if type(header) is PlainSend:
            unique = header.unique.encode()
        elif type(header) is not SendMessageV2:
            header = fields_of(request, SendMessage if request.code == RequestCode.SEND_MESSAGE else SendMessageV2)
        topic = header.topic
        target = self._targets.get(topic)
        if target is None or target.config is not self._topic_table.get(topic):
            target = self._target(peer, header)
        queue_id = header.queue_id
        if not 0 <= queue_id < len(target.queues):
            queue_id = self._queue_id(target, queue_id)
            if not target.queues:
                return self._send_again(peer, request, header, queue_id)
        text = header.properties.encode()
        unique = unique or plain_unique(text)
        if not unique:
            plain = plain_properties(text)
            if plain is None:
                return self._send_draft(peer, request, header, queue_id)
            unique = plain.unique
            if plain.is_half:
                return self._send_half(peer, request, header, target, queue_id, text, unique)
        queue = target.queues[queue_id]
        stored = text + (self._added if text[-1:] == _PAIR_END else self._added_after_pair)
        body = request.body
        sys_flag = header.sys_flag
        if len(stored) > PROPERTIES_BYTES_MAX or len(body) > self._body_bytes_max or sys_flag & _NOT_PLAIN_FLAGS:
            raise _illegal(header, len(body), len(stored), self._body_bytes_max)
        queue_offset = queue.next_offset
        physical_offset = self._put(
            queue,
            body,
            stored,
            header.flag,
            sys_flag,
            header.born_timestamp,
            peer.host_bytes,
            peer.received_ms,
            header.reconsume_times,
        )
        if peer.takes_objects and not self._must_confirm:
            return Placed(queue_offset=queue_offset)
        if request.binary:
            answer = self._answers.binary_frame(request.opaque, physical_offset, queue_id, queue_offset, unique)
        else:
            head = self._template % (physical_offset, queue_id, queue_offset, unique, request.opaque)
            answer = LENGTHS.pack(len(head) + 4, len(head)) + head
        if self._must_confirm:
            return self._when_confirmed(peer, request, text, answer)
        return answer

    def _send_half(
        self,
        peer: Peer,
        request: AnyCommand,
        header: AnySendMessage,
        target: _SendTopic,
        queue_id: int,
        text: bytes,
        unique: bytes,
    ) -> Answer:
        """Append a message that begins a transaction, whose properties ask for nothing more.

        A draft, whose properties are read and written again, takes twice as long.
        """
        sys_flag = header.sys_flag & ~TRANSACTION_MASK
        if (
            header.reconsume_times > 0
            or sys_flag & _NOT_PLAIN_FLAGS
            or self._settings.broker.reject_transaction_message
        ):
            return self._send_draft(peer, request, header, queue_id)
        own = self._added if text[-1:] == _PAIR_END else self._added_after_pair
        stored = stored_as_half(text + own, unique, header.topic, queue_id)
        body = request.body
        if len(stored) > PROPERTIES_BYTES_MAX or len(body) > self._body_bytes_max:
            return self._send_draft(peer, request, header, queue_id)
        queue = self._half_queue()
        queue_offset = queue.next_offset
        physical_offset = self._put(
            queue,
            body,
            stored,
            header.flag,
            sys_flag,
            header.born_timestamp,
            peer.host_bytes,
            peer.received_ms,
            header.reconsume_times,
        )
        self._puts.waits(target.half_waits)
        answer = self._answers.frame(request, physical_offset, queue_id, queue_offset, unique)
        if self._must_confirm:
            return self._when_confirmed(peer, request, text, answer)
        return answer

    def _half_queue(self) -> ConsumeQueue:
        """Return the queue of halves; BrokerError if it no longer exists."""
        config = self._topic_table.get(HALF_TOPIC)
        known = self._halves
        if known is None or known[0] is not config:
            known = self._halves = config, self._puts.queue(HALF_TOPIC, QUEUE_ID)
        return known[1]

    # --- batches ---

    def send_batch(self, peer: Peer, request: AnyCommand) -> Answer:
        """320: append the members of a batch side by side, and answer with their ids.

        All go to one queue with consecutive offsets, or none does.
        """
        header = fields_of(request, SendMessageV2)
        target, queue = self._batch_target(peer, header, len(request.body))
        members = members_of(request.body)
        self._check_members(members)
        if target.inner_batches and "UNIQ_KEY" in properties.parse(header.properties):
            return self._send_inner(peer, request, header, target, queue, len(members))
        part = _part(queue, len(members), header, peer)
        appended = self._store.put_batch(members, [part], peer.received_ms)
        ids = offset_ids(self._store.store_host, appended.physical_offsets)
        [queue_offset] = appended.queue_offsets
        place = ids, queue.queue_id, queue_offset
        answer: Response | bytes = (
            self._answers.batch_response(*place)
            if request.binary
            else self._answers.batch_frame(request.opaque, *place)
        )
        if self._must_confirm:
            return self._when_confirmed(peer, request, header.properties.encode(), answer)
        return answer

    def _send_inner(
        self,
        peer: Peer,
        request: AnyCommand,
        header: SendMessageV2,
        target: _SendTopic,
        queue: ConsumeQueue,
        count: int,
    ) -> Answer:
        """Append a whole batch as one record, which takes ``count`` queue offsets."""
        if count > MESSAGES_MAX:
            raise BrokerError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a batch to topic {header.topic} has {count} messages, at most {MESSAGES_MAX} are "
                "allowed (queue.type=BatchCQ)",
            )
        found = properties.parse(header.properties)
        found.pop(properties.INNER_NUM, None)
        kept = self.kept(found)
        if properties.INNER_MULTI_DISPATCH in kept:
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, "a batch goes to no LMQ")
        queue_offset = queue.next_offset
        kept |= {properties.INNER_NUM: str(count), properties.INNER_BASE: str(queue_offset)}
        stored = properties.encode(kept) + self._added
        if len(stored) > PROPERTIES_BYTES_MAX:
            raise _illegal(header, len(request.body), len(stored), self._body_bytes_max)
        physical_offset = self._store.put_inner(
            queue,
            count,
            request.body,
            stored,
            header.flag,
            header.sys_flag | INNER_BATCH | NEED_UNWRAP,
            header.born_timestamp,
            peer.host_bytes,
            peer.received_ms,
            header.reconsume_times,
        )
        unique = kept["UNIQ_KEY"].encode()
        answer = self._answers.response(physical_offset, queue.queue_id, queue_offset, unique)
        answer.fields = {**answer.fields, "batchUniqId": kept["UNIQ_KEY"]}
        if self._must_confirm:
            return self._when_confirmed(peer, request, header.properties.encode(), answer)
        return answer

    def send_batches(self, requests: Sequence[PeerRequest]) -> list[bytes] | None:
        """320, several in one turn: answer like ``send_batch`` to each.

        Return None, with nothing appended, unless all are plain, look alike and go to one topic. ``send_batch`` serves
        the others.
        """
        members = members_alike([request.body for _, request in requests])
        if members is None or self._must_confirm or self._store.refused is not None:
            return None
        count = len(members) // len(requests)
        targets: list[_SendTopic] = []
        parts: list[BatchPart] = []
        try:
            for peer, request in requests:
                header = request.ext
                if request.binary or type(header) is not SendMessageV2:
                    return None
                target, queue = self._batch_target(peer, header, len(request.body))
                targets.append(target)
                parts.append(_part(queue, count, header, peer))
            if targets.count(targets[0]) < len(targets) or targets[0].inner_batches:
                return None
            if len({len(part.born_host) for part in parts}) > 1:
                return None
            self._check_members(members)
            appended = self._store.put_batch(members, parts, requests[-1][0].received_ms)
        except (BrokerError, MessageError, StoreError):
            return None
        ids = offset_ids(self._store.store_host, appended.physical_offsets)
        step = (len(ids) + 1) // len(requests)
        ids_of_each = [ids[at : at + step - 1] for at in range(0, len(ids), step)]
        places = zip(ids_of_each, parts, appended.queue_offsets, requests, strict=True)
        return [
            self._answers.batch_frame(request.opaque, ids, part.queue.queue_id, queue_offset)
            for ids, part, queue_offset, (_, request) in places
        ]

    def _batch_target(self, peer: Peer, header: SendMessageV2, body_bytes: int) -> tuple[_SendTopic, ConsumeQueue]:
        """Return the target of a batch. Raise BrokerError if the batch is refused."""
        topic = header.topic
        target = self._targets.get(topic)
        if target is None or target.config is not self._topic_table.get(topic):
            target = self._target(peer, header)
        if names.is_retry(topic) or len(topic) > _BATCH_TOPIC_BYTES_MAX:
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, f"topic {topic} takes no batches")
        queue_id = header.queue_id
        if not 0 <= queue_id < len(target.queues):
            queue_id = self._queue_id(target, queue_id)
        if body_bytes > self._body_bytes_max or header.sys_flag & _NOT_PLAIN_FLAGS:
            raise _illegal(header, body_bytes, 0, self._body_bytes_max)
        if "DEL" in header.properties:  # DELAY, TIMER_DELAY_SEC, TIMER_DELIVER_MS ...
            _refuse_delay(header)
        return target, target.queues[queue_id]

    def _check_members(self, members: Members) -> None:
        """Refuse a batch with a message whose properties would act later."""
        if not self._not_in_batches:
            return
        texts = members.texts()
        for name in self._not_in_batches:
            if texts.find(name) >= 0:
                _refuse_property(members.body, name.decode())

    # --- rare requests ---

    def place(self, peer: Peer, header: AnySendMessage, body_bytes: int) -> int:
        """Return the queue that a message would go to; its topic may be created by this.

        Raise BrokerError if the message is too large or may not be sent there.
        """
        text_bytes = len(header.properties.encode())
        if body_bytes > self._body_bytes_max or text_bytes > PROPERTIES_BYTES_MAX:
            raise _illegal(header, body_bytes, text_bytes, self._body_bytes_max)
        target = self._targets.get(header.topic)
        if target is None or target.config is not self._topic_table.get(header.topic):
            target = self._target(peer, header)
        if 0 <= header.queue_id < len(target.queues):
            return header.queue_id
        return self._queue_id(target, header.queue_id)

    def _target(self, peer: Peer, header: AnySendMessage) -> _SendTopic:
        """Check a topic (creating it if that is allowed) and remember it."""
        topic = header.topic
        self._check_sendable(topic)
        config = self._topics.get(topic) or self._create(peer, header)
        count = max(config.read_queue_nums, config.write_queue_nums)
        # A message to a retry topic is never plain.
        numbers = range(0 if names.is_retry(topic) else count)
        queues = [self._store.queue(topic, queue_id) for queue_id in numbers]
        target = _SendTopic(topic, config, queues, inner_batches=self._store.is_batch(topic))
        if config.topic_name == topic:  # there are too many LMQs to remember
            self._targets[topic] = target
        return target

    def _check_sendable(self, topic: str) -> None:
        config = self._settings.broker
        if self._clock.now_ms() < config.start_accept_send_request_time_stamp:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"broker unable to service, until {config.start_accept_send_request_time_stamp}",
            )
        known = self._topic_table.get(topic)
        if not config.broker_permission & PERM_WRITE and known is not None and known.order:
            raise BrokerError(
                ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] sending message is forbidden"
            )
        fault = names.validate_topic(topic)
        if fault is not None:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, fault)
        if not names.is_sendable(topic):
            raise BrokerError(ResponseCode.NO_PERMISSION, f"sending message to topic[{topic}] is forbidden")

    def _create(self, peer: Peer, header: AnySendMessage) -> TopicConfig:
        config = self._topics.create_in_send(
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            sys_flag=UNIT_FLAG if header.unit_mode else 0,
        )
        if config is None and names.is_retry(header.topic):
            group = header.topic.removeprefix(names.RETRY_PREFIX)
            if self._groups.find(group) is None:
                raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group {group} not exist")
            config = self._topics.create_retry(group, 1, unit=header.unit_mode)
        if config is None:
            raise BrokerError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist, apply first please! (from {peer.address})",
            )
        return config

    def _queue_id(self, target: _SendTopic, queue_id: int) -> int:
        """Return the queue of a message: a random one if the client leaves the choice. Refuse one that does not exist
        (29)."""
        if 0 <= queue_id < target.queue_count:
            return queue_id
        if queue_id < 0 and target.queue_count:
            return self._chance.randrange(max(target.write_queues, 1))
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{queue_id}] is illegal, topic {target.config.topic_name} has {target.queue_count} queues",
        )

    def _send_again(self, peer: Peer, request: AnyCommand, header: AnySendMessage, queue_id: int) -> Answer:
        """Add a failed message that a consumer sends to its retry topic because it can't send it back (36).

        A message that failed too often, or that was consumed in order, becomes a dead letter.
        """
        group = names.group_of(header.topic) or ""
        config = self._groups.find(group)
        if config is None:
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}")
        times_max = times_max_of(config, request.version, header.max_reconsume_times)
        is_dead = header.reconsume_times > times_max or self._locks.holds_any(group)
        return self._send_draft(peer, request, header, queue_id, group if is_dead else None)

    def _send_draft(
        self, peer: Peer, request: AnyCommand, header: AnySendMessage, queue_id: int, dead_of: str | None = None
    ) -> Answer:
        """Add a message whose properties may ask for more than storage; ``dead_of`` is the group of a dead letter."""
        kept = self.kept(properties.parse(header.properties))
        if self._senders.asks_rights:
            self._check_reach(request, header.topic, kept)
        if properties.PRIORITY in kept:
            queue_id = self._queue_by_priority(kept, header.topic, queue_id)
        if properties.LITE_TOPIC in kept:
            lite_topic = kept[properties.LITE_TOPIC]
            fault = names.validate_lite(lite_topic)
            if fault is not None:
                raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, fault)
            kept[properties.INNER_MULTI_DISPATCH] = names.lite_queue(header.topic, lite_topic)
        unique = kept.pop(properties.UNIQUE_KEY, "") or self._puts.new_unique_id(peer.received_ms)
        sys_flag = header.sys_flag
        if properties.TRANSACTION_PREPARED in kept:  # clients set the flag, the property counts
            sys_flag &= ~TRANSACTION_MASK
        if len(request.body) > self._body_bytes_max or sys_flag & _NOT_PLAIN_FLAGS:
            text_bytes = len(header.properties.encode())
            raise _illegal(header, len(request.body), text_bytes, self._body_bytes_max)
        found = {properties.UNIQUE_KEY: unique, **kept, **self._own_properties}
        draft = draft_of_send(peer, request, header, queue_id, found, sys_flag)
        if dead_of is not None:
            draft.properties[properties.DELAY_LEVEL] = "-1"
            draft.topic, draft.queue_id = names.dlq_topic(dead_of), 0
            self._topics.create(draft.topic, DLQ_QUEUES)
        placed = self._puts.put(draft, peer.received_ms)
        if self._tally is not None:
            self._note_kind(self._tally, draft, placed, dead_of, header.topic)
        place = placed.physical_offset, queue_id, placed.queue_offset, unique.encode()
        handle = recall_handle(draft, self._settings.broker.broker_name, unique)
        answer: Response | bytes
        if handle is None:
            answer = self._answers.frame(request, *place)
        else:
            answer = self._answers.response(*place)
            answer.fields = {**answer.fields, "recallHandle": handle}
        if self._must_confirm:
            return self._when_confirmed(peer, request, header.properties.encode(), answer)
        return answer

    @staticmethod
    def _note_kind(tally: Tally, draft: UnstoredMessage, placed: PutResult, dead_of: str | None, topic: str) -> None:
        """Count a message of a special kind; the topics of halves and of delay levels have only such messages."""
        if dead_of is not None:
            tally.dead.add((dead_of, draft.properties.get(properties.RETRY_TOPIC, topic)))
        elif draft.topic == names.TIMER_TOPIC:
            tally.put(draft.topic, DELAY, placed.end_offset - placed.physical_offset)
        elif properties.SHARDING_KEY in draft.properties and draft.topic == topic:
            tally.put(topic, FIFO, placed.end_offset - placed.physical_offset)

    def _queue_by_priority(self, kept: dict[str, str], topic: str, queue_id: int) -> int:
        """Return the queue of a message with a priority: that of the client if the priority is no number from 0 on.

        A message that is of another kind as well has no priority.
        """
        text = kept[properties.PRIORITY]
        priority = int(text) if _INTEGER.fullmatch(text) else -1
        if not 0 <= priority <= INT_MAX:
            return queue_id
        if not _is_by_priority(kept):
            del kept[properties.PRIORITY]
            return queue_id
        config = self._topics.get(topic)
        write_queues = 0 if config is None else config.write_queue_nums
        # Java: SendMessageProcessor#sendMessage puts it into queue -1 if no queue can be written to.
        return min(priority, write_queues - 1) if write_queues else queue_id

    def _check_reach(self, request: AnyCommand, topic: str, found: dict[str, str]) -> None:
        """Refuse, or remove, properties that would let a message reach more than its sender may.

        The permission for LMQs was checked with that for the topic (``broker.access.requestresources``). Messages that
        consumers put into their retry topic keep the properties of their senders.
        """
        config = self._settings.broker
        if properties.TIMER_DELETE_UNIQUE_KEY in found and not config.recall_message_enable:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"to recall a message (property {properties.TIMER_DELETE_UNIQUE_KEY}) is forbidden "
                "(recallMessageEnable is false)",
            )
        if names.is_retry(topic):
            return
        found.pop(properties.RETRY_TOPIC, None)  # consumers would take it for a message of that topic
        client_id = found.get(properties.REPLY_TO_CLIENT)
        owner = None if client_id is None else self._clients.user_of(client_id)
        if owner is not None and owner != self._senders.user_of(request):
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"client {client_id} (property {properties.REPLY_TO_CLIENT}) is of another user",
            )

    @staticmethod
    def kept(found: dict[str, str]) -> dict[str, str]:
        """Return the properties to store; BrokerError if one asks for something impossible."""
        for name, kind in _UNSUPPORTED.items():
            if found.get(name, "0") != "0":
                raise BrokerError(
                    ResponseCode.MESSAGE_ILLEGAL, f"{kind} messages (property {name}) are not supported by this version"
                )
        return {
            name: value
            for name, value in found.items()
            if name not in _DROPPED and not name.startswith(properties.TRANSIENT_PREFIX)
        }

    def _when_confirmed(self, peer: Peer, request: AnyCommand, text: bytes, answer: Response | bytes) -> Answer:
        """Hold an answer back until the message is safe, unless the sender does not want to wait."""
        if text.find(b"WAIT\x01false") >= 0:
            if self._store.sync_flush:
                self._store.flush_soon()
            return answer
        request.body = b""  # it is in the log, and must not stay in memory until it is on the disk
        self._store.when_confirmed(self._store.log_end_offset, partial(self._confirmed, peer, request, answer))
        return None

    def _confirmed(self, peer: Peer, request: AnyCommand, answer: Response | bytes, outcome: PutStatus) -> None:
        if outcome is not PutStatus.SAFE:
            answer = response_of(answer) if isinstance(answer, bytes) else answer
            answer.code, answer.remark = _UNCONFIRMED[outcome]
        if isinstance(answer, Response):
            peer.reply(request, answer)
        elif not request.is_oneway:
            peer.note(request, answer)
            self._send_soon(peer, answer)

    def _send_soon(self, peer: Peer, frame: bytes) -> None:
        """Send the answers that become ready together, as by one flush, in one write to each peer."""
        ready = self._ready
        frames = ready.get(peer)
        if frames is not None:
            frames.append(frame)
            return
        ready[peer] = [frame]
        if len(ready) == 1:
            self._soon(self._send_ready)

    def _send_ready(self) -> None:
        ready, self._ready = self._ready, {}
        for peer, frames in ready.items():
            peer.send(b"".join(frames))


def draft_of_send(
    peer: Peer, request: AnyCommand, header: AnySendMessage, queue_id: int, found: dict[str, str], sys_flag: int
) -> UnstoredMessage:
    """Return the message of a request as a draft, with the properties ``found`` and the flags ``sys_flag``."""
    return UnstoredMessage(
        header.topic,
        queue_id,
        request.body,
        found,
        header.born_timestamp,
        peer.host_bytes,
        header.flag,
        sys_flag,
        header.reconsume_times,
    )


def _is_by_priority(found: Mapping[str, str]) -> bool:
    """Return whether a message has a priority and is of no other kind (``TopicMessageType``)."""
    if found.get(properties.TRANSACTION_PREPARED, "").lower() == "true":
        return False
    others = properties.DELAY_LEVEL, *properties.DELIVERY_TIMES, properties.SHARDING_KEY
    return not any(name in found for name in others)


def _refuse_delay(header: SendMessageV2) -> None:
    """Refuse a batch with a delay level or a delivery time.

    Java: with a time, and in a queue of batches with a level, it is taken and never delivered.
    """
    found = properties.parse(header.properties)
    named = next((name for name in properties.DELIVERY_TIMES if name in found), None)
    if named is None and delay_level(found) > 0:
        named = properties.DELAY_LEVEL
    if named is not None:
        raise BrokerError(
            ResponseCode.MESSAGE_ILLEGAL, f"delayed messages (property {named}) are sent one by one, not as a batch"
        )


def _refuse_property(body: bytes, name: str) -> None:
    """Refuse a batch with a message that has a certain property."""
    if any(name in properties.parse(member.properties) for member in split_batch(body)):
        raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, f"a message with the property {name} is not for a batch")


def _part(queue: ConsumeQueue, count: int, header: SendMessageV2, peer: Peer) -> BatchPart:
    return BatchPart(queue, count, header.sys_flag, header.born_timestamp, header.reconsume_times, peer.host_bytes)


def _illegal(header: AnySendMessage, body_bytes: int, properties_bytes: int, body_bytes_max: int) -> BrokerError:
    """Return the fault of a message that is too large or has flags that no plain one has."""
    reason = f"sysFlag {header.sys_flag} is not of a plain message"
    if body_bytes > body_bytes_max or properties_bytes > PROPERTIES_BYTES_MAX:
        reason = (
            f"body {body_bytes} B (limit {body_bytes_max}), "
            f"properties {properties_bytes} B (limit {PROPERTIES_BYTES_MAX})"
        )
    return BrokerError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {reason}")
