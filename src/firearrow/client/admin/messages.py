"""Administration of messages: look them up, read queues, send one, let a consumer consume one."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from firearrow.client.admin.calls import Part, subject_of
from firearrow.client.queues import Queue
from firearrow.client.session.answers import read_number
from firearrow.errors import BrokerError
from firearrow.javanumbers import LONG_MAX
from firearrow.message import properties
from firearrow.message.ids import OffsetId, decode_offset_id
from firearrow.message.model import MessageView, NewMessage
from firearrow.wire import headers
from firearrow.wire.client_bodies import SQL92, TAG, DirectResult
from firearrow.wire.codes import BY_KEY, BY_UNIQUE_KEY, ResponseCode
from firearrow.wire.codes import RequestCode as Code

PULL_SECONDS: Final = 10.0
LOOK_UP_SECONDS: Final = 15.0  # through the whole index a broker needs longer
SUBSCRIPTION_GIVEN: Final = 4  # bit of a pull's system flag: the request contains the subscription
MAY_WAIT: Final = 2  # bit of it, too: the broker may wait for messages before it answers
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
LAST_MS: Final = LONG_MAX  # after all times


class PullStatus(Enum):
    """Result of a pull, in RocketMQ's words."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MSG = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MSG = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


class Pulled(NamedTuple):
    """Messages of a queue, the offset of the next pull, and the offsets of the queue's two ends."""

    status: PullStatus
    next_offset: int
    earliest: int
    latest: int
    messages: list[MessageView]


class Stored(NamedTuple):
    """Place and safety of a message that was sent, in RocketMQ's words."""

    status: str
    message_id: str
    offset_message_id: str
    queue_id: int
    queue_offset: int


_SENT: Final = {
    ResponseCode.SUCCESS: "SEND_OK",
    ResponseCode.FLUSH_DISK_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
    ResponseCode.SLAVE_NOT_AVAILABLE: "SLAVE_NOT_AVAILABLE",
}


class Messages(Part):
    """Messages in brokers."""

    async def view(self, message_id: str, topic: str | None = None) -> MessageView:
        """Give the message with an offset message id, from the broker that the id names.

        Raises MessageError when the id is malformed, NotFound when the broker has no message there.
        """
        from firearrow.message.record import decode_record  # most commands read no message

        return decode_record(await self.record(message_id, topic))

    async def record(self, message_id: str, topic: str | None = None) -> bytes:
        """Give the record of a message as its broker stores it; raises as ``view``."""
        place: OffsetId = decode_offset_id(message_id)
        return await self.record_at(str(place.store_host), place.physical_offset, topic, about=f"message {message_id}")

    async def record_at(
        self, address: str, physical_offset: int, topic: str | None = None, *, about: str = ""
    ) -> bytes:
        """Give the record at a physical offset of a broker's log; NotFound if no message begins there."""
        header = headers.ViewMessage(physical_offset, topic)
        return bytes((await self._calls.call(address, Code.VIEW_MESSAGE_BY_ID, header, about=about)).body)

    async def find(
        self,
        address: str,
        topic: str,
        key: str,
        *,
        by: str = BY_KEY,
        count: int = 64,
        since_ms: int = 0,
        until_ms: int = LAST_MS,
        last_key: str | None = None,
    ) -> list[MessageView]:
        """Find messages of a topic in a broker's index, by a key, a tag, or the unique key of their client (``by``).

        The index holds hashes, so some of the messages may have another key.
        """
        unique = by == BY_UNIQUE_KEY
        header = headers.QueryMessage(topic, key, count, since_ms, until_ms, by, last_key, unique_key_query=unique)
        answer = await self._calls.answer(address, Code.QUERY_MESSAGE, header, seconds=LOOK_UP_SECONDS)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        if answer.code != 0:
            raise BrokerError.of(answer.code, answer.remark, address, subject_of(header))
        from firearrow.message.record import iter_records

        return list(iter_records(answer.body))

    async def pull(
        self,
        address: str,
        queue: Queue,
        offset: int,
        count: int,
        *,
        group: str = TOOLS_GROUP,
        tags: str = "*",
        sql: str = "",
        wait_ms: int = 0,
    ) -> Pulled:
        """Pull messages of a queue from an offset on, with one of the tags (``a || b``) or selected by an expression.

        Raises BrokerError if the broker does not filter by the expression (``sql``). Without messages, the broker
        answers when one arrives, after ``wait_ms`` at the latest.
        """
        header = headers.PullMessage(
            group,
            queue.topic,
            queue.queue_id,
            offset,
            count,
            SUBSCRIPTION_GIVEN | (MAY_WAIT if wait_ms else 0),
            suspend_timeout_millis=wait_ms,
            subscription=sql or tags,
            expression_type=SQL92 if sql else TAG,
        )
        about = _named(queue)
        answer = await self._calls.answer(
            address, Code.PULL_MESSAGE, header, about=about, seconds=PULL_SECONDS + wait_ms / 1000
        )
        if answer.code not in {status.value for status in PullStatus}:
            raise BrokerError.of(answer.code, answer.remark, address, about)
        status = PullStatus(ResponseCode(answer.code))
        numbers = [read_number(answer, name, address) for name in ("nextBeginOffset", "minOffset", "maxOffset")]
        from firearrow.message.record import iter_records

        found = list(iter_records(answer.body)) if status is PullStatus.FOUND else []
        return Pulled(status, numbers[0], numbers[1], numbers[2], found)

    async def send(self, address: str, group: str, queue: Queue, message: NewMessage, now_ms: int) -> Stored:
        """Send a message to a queue; raises unless it is stored."""
        from firearrow.client.producer.drafts import send_fields  # most commands send nothing

        header = send_fields(group, queue, now_ms, batch=False)
        header |= {"h": message.flag, "i": properties.format(message.properties)}
        about = _named(queue)
        answer = await self._calls.answer(address, Code.SEND_MESSAGE_V2, header, message.body, about=about)
        if answer.code not in _SENT:
            raise BrokerError.of(answer.code, answer.remark, address, about)
        return Stored(
            _SENT[ResponseCode(answer.code)],
            message.unique_key or "",
            str(answer.ext.get("msgId", "")),
            read_number(answer, "queueId", address),
            read_number(answer, "queueOffset", address),
        )

    async def consume_directly(
        self, address: str, group: str, client_id: str, topic: str, message_id: str
    ) -> DirectResult:
        """Make a consumer consume the message with an offset message id now."""
        header = headers.ConsumeDirectly(group, client_id, message_id, topic)
        return await self._calls.read(address, Code.CONSUME_MESSAGE_DIRECTLY, DirectResult, header)

    async def check_again(self, address: str, topic: str, message_id: str) -> None:
        """Make the broker check a transaction again after its last check, by the offset message id."""
        await self._calls.call(address, Code.RESUME_CHECK_HALF_MESSAGE, headers.ResumeCheck(topic, message_id))


def _named(queue: Queue) -> str:
    return f"queue {queue.queue_id} of topic {queue.topic!r} on {queue.broker}"
