"""A client of the broker for `make demo`: just enough of one to send, to consume and to fail."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

from firearrow.client.pull.rangereader import PullOptions
from firearrow.client.queues import Queue
from firearrow.clock import SystemClock
from firearrow.errors import BrokerError
from firearrow.message.ids import decode_offset_id
from firearrow.message.model import MessageView
from firearrow.message.names import AUTO_CREATE_TOPIC
from firearrow.message.properties import format as properties_text
from firearrow.message.record import decode_record, iter_records
from firearrow.net.client import Client, ServerRequest
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import NO_FIELDS, FieldValue
from firearrow.wire.frame import AnyCommand

QUEUES: Final = 4  # of a topic
PRODUCERS: Final = "shop"  # the producer group
COMMIT: Final = 8
ROLLBACK: Final = 12
_PREPARED: Final = 4  # of a message's sysFlag
_WAITS: Final = 2 | 4  # of a pull's sysFlag: it waits for messages, and says what it subscribes to
_PULL: Final = 32  # messages
_WAIT_MS: Final = 15_000
_CLOCK: Final = SystemClock()


class Shop:
    """Connection to the broker, which passes the broker's transaction checks to ``asked``."""

    def __init__(self, broker: str, asked: Callable[[AnyCommand], None]) -> None:
        def answer(question: ServerRequest) -> None:
            asked(question.command)

        self._client = Client({RequestCode.CHECK_TRANSACTION_STATE: answer})
        self._broker = broker
        self._numbers = iter(range(1, 1 << 31))

    async def call(self, code: int, fields: dict[str, FieldValue] | None = None, body: bytes = b"") -> AnyCommand:
        """Call the broker; raise BrokerError if it refuses."""
        seconds = _WAIT_MS / 1000 + 5
        return await self._client.call(self._broker, code, fields or NO_FIELDS, body, timeout_seconds=seconds)

    async def join(self, group: str = "", topics: Iterable[str] = ()) -> None:
        """Register producers and a consumer group by a heartbeat, as clients do when they start."""
        subscriptions = [
            {"topic": topic, "subString": "*", "subVersion": 1, "expressionType": "TAG"} for topic in topics
        ]
        consumer = {
            "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": subscriptions,
        }  # fmt: skip
        body = {
            "clientID": f"demo@{group}", "consumerDataSet": [consumer] if group else [],
            "producerDataSet": [{"groupName": PRODUCERS}],
        }  # fmt: skip
        await self.call(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())

    async def configure_group(self, group: str, retries_max: int) -> None:
        """Set the retry limit of a group."""
        body = json.dumps({"groupName": group, "retryMaxTimes": retries_max}).encode()
        await self.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)

    # --- producers ---

    async def send(
        self, topic: str, body: bytes, properties: dict[str, str], queue_id: int = 0, flag: int = 0
    ) -> AnyCommand:
        """Send one message and wait until it is stored."""
        carried = {"UNIQ_KEY": f"{next(self._numbers):032X}"} | properties
        return await self.call(
            RequestCode.SEND_MESSAGE_V2,
            {"a": PRODUCERS, "b": topic, "c": AUTO_CREATE_TOPIC, "d": QUEUES, "e": queue_id,
             "f": flag, "g": _CLOCK.now_ms(), "h": 0, "i": properties_text(carried), "j": 0,
             "k": False, "m": False},
            body,
        )  # fmt: skip

    async def begin(self, topic: str, body: bytes) -> AnyCommand:
        """Send the half of a transaction."""
        properties = {"TRAN_MSG": "true", "PGROUP": PRODUCERS}
        return await self.send(topic, body, properties, flag=_PREPARED)

    async def end(self, half: dict[str, str], outcome: int) -> None:
        """Commit a transaction or roll it back; ``half`` is the response to it or a check of it."""
        physical_offset = half.get("commitLogOffset") or decode_offset_id(half["msgId"])[1]
        await self.call(
            RequestCode.END_TRANSACTION,
            {"producerGroup": PRODUCERS, "commitOrRollback": outcome,
             "tranStateTableOffset": half.get("tranStateTableOffset") or half["queueOffset"],
             "commitLogOffset": physical_offset, "msgId": half["transactionId"],
             "transactionId": half["transactionId"],
             "fromTransactionCheck": "commitLogOffset" in half},
        )  # fmt: skip

    async def recall(self, topic: str, sent: AnyCommand) -> None:
        """Recall a pending delayed message."""
        fields: dict[str, FieldValue] = {
            "producerGroup": PRODUCERS, "topic": topic, "recallHandle": sent.ext["recallHandle"]
        }  # fmt: skip
        await self.call(RequestCode.RECALL_MESSAGE, fields)

    # --- consumers ---

    async def messages(
        self, group: str, topic: str, queue_id: int = 0, *, wait: bool = True
    ) -> AsyncIterator[MessageView]:
        """Yield the messages of a queue from its beginning, by pulls that wait for more."""
        options, queue = PullOptions(group), Queue(topic, "broker-a", queue_id)
        at = 0
        while True:
            fields = options.fields(queue, at, _PULL)
            if wait:
                fields |= {"sysFlag": _WAITS, "suspendTimeoutMillis": _WAIT_MS}
            try:
                answer = await self.call(RequestCode.PULL_MESSAGE, fields)
            except BrokerError as error:
                if error.code != ResponseCode.PULL_NOT_FOUND:
                    raise
                if not wait:
                    return
                continue
            for message in iter_records(answer.body):
                yield message
            at = int(answer.ext["nextBeginOffset"])

    async def send_back(self, group: str, message: MessageView, level: int) -> None:
        """Send a message back after a failure: the broker redelivers it after a delay."""
        fields: dict[str, FieldValue] = {
            "offset": message.physical_offset, "group": group, "delayLevel": level,
            "originMsgId": message.offset_message_id, "originTopic": message.topic,
            "unitMode": False,
        }  # fmt: skip
        await self.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields)

    async def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Commit the offset of a group."""
        fields: dict[str, FieldValue] = {
            "consumerGroup": group, "topic": topic, "queueId": queue_id,
            "commitOffset": queue_offset,
        }  # fmt: skip
        await self.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    # --- what the broker has done ---

    async def stored(self, sent: AnyCommand) -> MessageView:
        """Return a message as the broker has stored it, perhaps in a system topic."""
        physical_offset = decode_offset_id(sent.ext["msgId"])[1]
        answer = await self.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": physical_offset})
        return decode_record(answer.body)

    async def count(self, topic: str, queue_id: int = 0) -> int:
        """Return the number of messages that a queue has ever had."""
        fields: dict[str, FieldValue] = {"topic": topic, "queueId": queue_id}
        answer = await self.call(RequestCode.GET_MAX_OFFSET, fields)
        return int(answer.ext["offset"])

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()
