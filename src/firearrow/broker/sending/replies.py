"""Replies (324, 325): the answer of a consumer to a message whose sender waits for it.

Such a request is an ordinary message. Its property ``REPLY_TO_CLIENT`` is the id of the waiting client, and
``CORRELATION_ID`` tells the client which of its requests is answered; a reply has the same two. The reply is sent to
the topic ``<cluster>_REPLY_TOPIC`` of the broker that had the request. That broker passes it on to the client (326),
and tells the consumer whether the client took it. With ``storeReplyMessageEnable`` a copy is stored in that topic
before the reply is passed on. So a reply does not stay in memory for a client that does not answer.

Source: RocketMQ ``ReplyMessageProcessor``, ``Broker2Client#callClient``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from firearrow.broker.context import BrokerContext
from firearrow.broker.groups.clients import ClientChannel
from firearrow.broker.sending.processor import SendProcessor, draft_of_send
from firearrow.broker.sending.puts import PutResult
from firearrow.errors import BrokerError, MessageError, StoreError
from firearrow.message import properties
from firearrow.message.hosts import unpack_host
from firearrow.message.ids import encode_offset_id
from firearrow.message.sysflag import COMPRESSED, COMPRESSION_MASK
from firearrow.net.futures import Answered
from firearrow.net.server import Answer, Peer
from firearrow.store import PutStatus
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import FieldValue, Response, fields_of, request
from firearrow.wire.frame import AnyCommand, SendAnswers
from firearrow.wire.headers import AnySendMessage, SendMessage, SendMessageV2

TAKEN_SECONDS_MAX: Final = 10.0  # Java: Broker2Client#callClient
_NOT_STORED: Final = "0"  # id of a reply without a copy


class _Reply(NamedTuple):
    """Reply without an answer yet: its sender, the request, the queue of its topic, and the place of its copy, if there
    is one."""

    peer: Peer
    asked: AnyCommand
    queue_id: int
    placed: PutResult | None


class ReplyProcessor:
    """Handler of replies (324, 325)."""

    def __init__(self, context: BrokerContext, sends: SendProcessor) -> None:
        self._settings = context.settings
        self._clients = context.clients
        self._senders = context.senders
        self._store = context.store
        self._puts = context.puts
        self._sends = sends
        self._host = unpack_host(context.store.store_host)
        config = context.settings.broker
        self._answers = SendAnswers(config.region_id, trace_on=config.trace_on, id_prefix="")

    def reply(self, peer: Peer, asked: AnyCommand) -> Answer:
        """324, 325: pass a reply on to the waiting client, and store a copy."""
        header: AnySendMessage
        if asked.code == RequestCode.SEND_REPLY_MESSAGE:
            header = fields_of(asked, SendMessage)
        else:
            header = fields_of(asked, SendMessageV2)
        queue_id = self._sends.place(peer, header, len(asked.body))
        found = properties.parse(header.properties)
        fields = self._pushed_fields(peer, header, found)
        kept = self._sends.kept(found)
        kept.pop(properties.TRANSACTION_PREPARED, None)  # a reply is part of no transaction
        placed = self._stored(peer, asked, header, queue_id, kept)
        reply = _Reply(peer, asked, queue_id, placed)
        fault = self._push(reply, found.get(properties.REPLY_TO_CLIENT), fields)
        return None if fault is None else self._when_safe(reply, self._answer(reply, fault))

    def _stored(
        self, peer: Peer, asked: AnyCommand, header: AnySendMessage, queue_id: int, kept: dict[str, str]
    ) -> PutResult | None:
        """Store a copy of a reply, if that is configured; a failure does not keep the client from getting the reply.

        Java: ReplyMessageProcessor forgets that the body is compressed, and refuses an empty one.
        """
        if not self._settings.broker.store_reply_message_enable:
            return None
        sys_flag = header.sys_flag & (COMPRESSED | COMPRESSION_MASK)
        draft = draft_of_send(peer, asked, header, queue_id, kept, sys_flag)
        try:
            return self._puts.put(draft, peer.received_ms)
        except (BrokerError, MessageError, StoreError):
            return None

    def _pushed_fields(self, peer: Peer, header: AnySendMessage, found: Mapping[str, str]) -> dict[str, FieldValue]:
        pushed = {**found, properties.PUSH_REPLY_TIME: str(peer.received_ms)}
        return {
            "bornHost": peer.address,
            "storeHost": str(self._host),
            "storeTimestamp": peer.received_ms,
            "producerGroup": header.producer_group,
            "topic": header.topic,
            "defaultTopic": header.default_topic,
            "defaultTopicQueueNums": header.default_topic_queue_nums,
            "queueId": header.queue_id,
            "sysFlag": header.sys_flag,
            "bornTimestamp": header.born_timestamp,
            "flag": header.flag,
            "properties": properties.format(pushed),
            "reconsumeTimes": header.reconsume_times,
            "unitMode": header.unit_mode,
        }

    def _push(self, reply: _Reply, client_id: str | None, fields: Mapping[str, FieldValue]) -> str | None:
        """Pass a reply on, and answer its sender when the client has taken it.

        Return the reason if that is impossible.
        """
        if client_id is None:
            return f"reply message properties[{properties.REPLY_TO_CLIENT}] is null"
        channel = self._clients.producer(client_id)
        if channel is None or not self._may_still_ask(client_id, channel):
            return f"push reply message fail, channel of <{client_id}> not found."
        peer, asked = reply.peer, reply.asked
        command = request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, asked.body)
        try:
            call = channel.call(command, TAKEN_SECONDS_MAX)
        except ConnectionError as error:
            return _not_taken(client_id, error)
        asked.body, asked.ext = b"", {}  # they are in flight, and must not stay in memory until the answer
        peer.owed += 1

        def answer(call: Answered) -> None:
            peer.owed -= 1
            ready = self._when_safe(reply, self._answer(reply, _fault_of(call, client_id)))
            if ready is not None:
                peer.reply(asked, ready)

        call.add_done_callback(answer)
        return None

    def _may_still_ask(self, client_id: str, channel: ClientChannel) -> bool:
        """Return whether the user of a waiting client may still send, for example, a request."""
        user = self._clients.user_of(client_id)
        return user is not None and self._senders.may_publish(user, channel.ip)

    def _answer(self, reply: _Reply, fault: str | None) -> Response:
        """Return the answer to the sender of a reply: whether the client took it, and the place of its copy."""
        ids, queue_offset = _NOT_STORED, 0
        if reply.placed is not None:
            ids = encode_offset_id(self._host, reply.placed.physical_offset)
            queue_offset = reply.placed.queue_offset
        fields = self._answers.fields(ids, reply.queue_id, queue_offset)
        code = ResponseCode.SUCCESS if fault is None else ResponseCode.SYSTEM_ERROR
        return Response(code, fault, fields)

    def _when_safe(self, reply: _Reply, response: Response) -> Response | None:
        """Return the answer, or hold it back until the copy is safe."""
        if reply.placed is None or not self._store.must_confirm:
            return response
        reply.peer.owed += 1
        done = partial(_reply, reply.peer, reply.asked, response)
        self._store.when_confirmed(reply.placed.end_offset, done)
        return None


def _reply(peer: Peer, asked: AnyCommand, response: Response, _: PutStatus) -> None:
    """Answer at last, even if the copy is not confirmed, as in RocketMQ."""
    peer.owed -= 1
    peer.reply(asked, response)


def _fault_of(call: Answered, client_id: str) -> str | None:
    """Return the reason why a client has not taken a reply."""
    try:
        answer = call.result()
    except OSError as error:
        return _not_taken(client_id, error)
    if answer.code == ResponseCode.SUCCESS:
        return None
    return _not_taken(client_id, f"it answers {answer.code} {answer.remark or ''}".rstrip())


def _not_taken(client_id: str, why: object) -> str:
    return f"push reply message to {client_id} fail: {why}"
