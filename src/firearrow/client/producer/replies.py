"""Requests to other applications and their replies, by way of a broker.

A request is a message with the properties ``CORRELATION_ID``, ``REPLY_TO_CLIENT`` (client id of the requester) and
``TTL`` in ms. Its consumer sends the reply to the reply topic of the cluster, with the same properties and ``MSG_TYPE``
= ``reply`` (request code 325). The broker forwards it to the requester (326).

Source: RocketMQ's ``RequestResponseFuture``, ``MessageUtil#createReplyMessage``,
``ClientRemotingProcessor#receiveReplyMessage``.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from uuid import UUID

from firearrow.client.message import Message
from firearrow.client.producer.drafts import body_of
from firearrow.client.session.session import Session
from firearrow.errors import BrokerError, ClientError, MessageError
from firearrow.message import properties as keys_of
from firearrow.message.hosts import Host
from firearrow.message.model import MessageView, NewMessage
from firearrow.message.names import reply_topic
from firearrow.net.client import ServerRequest
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand

REPLY_TYPE: Final = "reply"
ARRIVE_TIME: Final = "ARRIVE_TIME"


class PendingReplies:
    """Pending requests of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._replies: dict[str, asyncio.Future[Message]] = {}
        session.on(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._take)

    def __len__(self) -> int:
        return len(self._replies)

    def begin(self, ttl_ms: int) -> tuple[dict[str, str], asyncio.Future[Message]]:
        """Return the properties of a request and the future of its reply; the caller must call `end`."""
        correlation = str(UUID(int=self._session.chance.getrandbits(128), version=4))
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._replies[correlation] = reply
        found = {
            keys_of.CORRELATION_ID: correlation,
            keys_of.REPLY_TO_CLIENT: self._session.client_id,
            keys_of.REPLY_TTL: str(ttl_ms),
        }
        return found, reply

    def end(self, request: dict[str, str]) -> None:
        """Forget a request."""
        self._replies.pop(request[keys_of.CORRELATION_ID], None)

    def _take(self, asked: ServerRequest) -> Response:
        """Hand a reply to its pending request, if it is still pending."""
        try:
            message = _message_of(asked, self._session)
        except (MessageError, ValueError) as error:
            why = f"the reply can't be read: {error}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, why) from None
        reply = self._replies.get(message.properties.get(keys_of.CORRELATION_ID, ""))
        if reply is not None and not reply.done():
            reply.set_result(message)
        return Response()


def reply_to(message: Message, body: Any) -> NewMessage:
    """Reply to a request; ``body`` as in `Producer.reply`. Raises ClientError if the message is not a request."""
    found = message.properties
    wanted = (keys_of.CORRELATION_ID, keys_of.REPLY_TO_CLIENT, keys_of.REPLY_TTL)
    missing = [name for name in (keys_of.CLUSTER, *wanted) if name not in found]
    if missing:
        raise ClientError(
            f"message {message.message_id} of topic {message.topic!r} can't be replied to: it has "
            f"no {', '.join(missing)}"
        )
    own = body.properties if isinstance(body, NewMessage) else {}
    copied = {name: found[name] for name in wanted}
    topic = reply_topic(found[keys_of.CLUSTER])
    plain = body_of(body.body if isinstance(body, NewMessage) else body)
    return NewMessage(topic, plain, {**own, **copied, keys_of.MESSAGE_TYPE: REPLY_TYPE})


def _message_of(asked: ServerRequest, session: Session) -> Message:
    command: AnyCommand = asked.command
    ext = command.ext
    found = keys_of.parse(ext.get("properties", ""))
    found[ARRIVE_TIME] = str(session.clock.now_ms())
    view = MessageView(
        topic=ext.get("topic", ""),
        queue_id=int(ext.get("queueId", 0)),
        queue_offset=0,
        physical_offset=0,
        store_size=0,
        body_crc=0,
        flag=int(ext.get("flag", 0)),
        sys_flag=int(ext.get("sysFlag", 0)),
        born_timestamp_ms=int(ext.get("bornTimestamp", 0)),
        born_host=_host_of(ext.get("bornHost", "")),
        store_timestamp_ms=int(ext.get("storeTimestamp", 0)),
        store_host=_host_of(ext.get("storeHost", "")),
        reconsume_times=int(ext.get("reconsumeTimes", 0)),
        prepared_transaction_offset=0,
        body=command.body,
        properties=found,
    )
    return Message.received(view, asked.address, session.namespace)


def _host_of(text: str) -> Host:
    """Host in Java's form, ``/127.0.0.1:10911``, with or without the slash."""
    ip, _, port = text.rpartition("/")[2].rpartition(":")
    return Host(ip.strip("[]") or "0.0.0.0", int(port) if port.isdecimal() else 0)
