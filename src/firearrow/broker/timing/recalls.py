"""Recalls: messages that cancel the delivery of other messages (370).

A recall is a message in the same slot as the waiting message that it names. When that slot is read, neither is
delivered. Its key is the unique key of that message, behind the topic if `appendTopicForTimerDeleteKey` is set.

Source: RocketMQ ``RecallMessageProcessor``, ``TimerMessageStore#buildDeleteKey``.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.sending.puts import UnstoredMessage
from firearrow.broker.state.settings import Settings
from firearrow.errors import BrokerError, MessageError, StoreError
from firearrow.message import names, properties
from firearrow.message.model import MessageView
from firearrow.message.recall import RecallHandle
from firearrow.net.server import Answer, Peer
from firearrow.store import PutStatus, TimerStore
from firearrow.store.config import StoreConfig
from firearrow.wire.bodies import PERM_WRITE
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import RecallMessage

Recall = tuple[str, str]
"""Topic of the recalled message, if that matters, and the key that names the message."""


def recall_handle(draft: UnstoredMessage, broker_name: str, unique_key: str) -> str | None:
    """Return the handle that can recall a message that was just put, None if it can't be recalled."""
    topic = draft.properties.get(properties.REAL_TOPIC, "")
    if draft.topic != names.TIMER_TOPIC or names.is_retry(topic):
        return None
    # As in RocketMQ: a time within the slot, which rounds down to the same slot again.
    time_ms = int(draft.properties[properties.TIMER_OUT_MS]) + 1
    return RecallHandle(topic, broker_name, time_ms, unique_key).encode()


def delete_key(topic: str, unique_key: str, config: StoreConfig) -> str:
    """Return a recall's key for a message."""
    return f"{topic}+{unique_key}" if config.append_topic_for_timer_delete_key else unique_key


def identity_of(view: MessageView) -> tuple[str, str]:
    """Return the destination topic of a waiting message, and its unique key.

    Senders choose the key, so the key alone could name another message, too.
    """
    return view.properties.get(properties.REAL_TOPIC, ""), view.unique_key or ""


def recall_by(view: MessageView, settings: Settings) -> Recall:
    """Return the recall that a message is."""
    topic, _ = identity_of(view)
    return _recall(topic, view.properties[properties.TIMER_DELETE_UNIQUE_KEY], settings)


def recall_of(view: MessageView, settings: Settings) -> Recall:
    """Return the recall that would cancel a message."""
    topic, unique_key = identity_of(view)
    return _recall(topic, delete_key(topic, unique_key, settings.store), settings)


def _recall(topic: str, key: str, settings: Settings) -> Recall:
    """Return a recall, for one topic only if sending to a topic requires a permission."""
    return (topic if settings.broker.authorization_enabled else "", key)


# --- requests ---

_TAG: Final = "_RECALL_TAG_"
_BODY: Final = b"0"


class RecallProcessor:
    """Handler of recalls."""

    def __init__(self, context: BrokerContext, timers: TimerStore) -> None:
        self._settings = context.settings
        self._store = context.store
        self._timers = timers
        self._puts = context.puts
        self._topics = context.topics
        self._clock = context.clock
        self._region = {"MSG_REGION": context.settings.broker.region_id}

    def recall(self, peer: Peer, request: AnyCommand) -> Answer:
        """370: cancel the delivery of a message.

        The answer names the message, even if it was delivered or never existed, as in RocketMQ.
        """
        header = fields_of(request, RecallMessage)
        now_ms = self._clock.now_ms()
        try:
            handle = self._checked(header, now_ms)
            self._puts.put(self._draft(handle, header, peer, now_ms), now_ms)
        except BrokerError as error:
            return Response(error.code, error.remark, self._region)
        except (MessageError, StoreError) as error:
            text = f"recall failed, execute error: {error}"
            return Response(ResponseCode.SYSTEM_ERROR, text, self._region)
        answer = Response(fields={**self._region, "msgId": handle.unique_key})
        if not self._store.must_confirm:
            return answer
        self._store.when_confirmed(self._store.log_end_offset, partial(self._safe, peer, request, answer))
        return None

    @staticmethod
    def _safe(peer: Peer, request: AnyCommand, answer: Response, _: PutStatus) -> None:
        peer.reply(request, answer)

    def _checked(self, header: RecallMessage, now_ms: int) -> RecallHandle:
        """Return the handle of a request; BrokerError if its message can't be recalled."""
        config = self._settings.broker
        if not config.recall_message_enable:
            raise BrokerError(
                ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden (recallMessageEnable is false)"
            )
        may_write = config.broker_permission & PERM_WRITE
        if now_ms < config.start_accept_send_request_time_stamp or not (
            may_write or config.allow_recall_when_broker_not_writeable
        ):
            raise BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available")
        if self._topics.get(header.topic) is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist")
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except MessageError:
            raise BrokerError(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid") from None
        fault = self._fault(handle, header.topic, now_ms)
        if fault:
            raise BrokerError(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {fault}")
        return handle

    def _fault(self, handle: RecallHandle, topic: str, now_ms: int) -> str:
        if handle.topic != topic:
            return "topic not match"
        if handle.broker_name != self._settings.broker.broker_name:
            return "broker service not available"
        ahead_ms = handle.time_ms - now_ms
        was_read = handle.time_ms <= self._timers.progress.read_ms
        if was_read or not 0 < ahead_ms < self._settings.store.timer_max_delay_sec * 1000:
            return "timestamp invalid"
        return ""

    def _draft(self, handle: RecallHandle, header: RecallMessage, peer: Peer, now_ms: int) -> UnstoredMessage:
        key = delete_key(handle.topic, handle.unique_key, self._settings.store)
        return UnstoredMessage(
            handle.topic,
            0,
            _BODY,
            {
                properties.TAGS: _TAG,
                properties.TIMER_DELETE_UNIQUE_KEY: key,
                properties.UNIQUE_KEY: handle.unique_key,
                properties.TIMER_DELIVER_MS: str(handle.time_ms),
                properties.BORN_TIMESTAMP: str(now_ms),
                properties.TRACE_CONTEXT: "",
                properties.PRODUCER_GROUP: header.producer_group,
            },
            now_ms,
            peer.host_bytes,
        )
