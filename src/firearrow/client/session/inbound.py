"""Requests of brokers to a client, dispatched by request code and group.

A handler answers at once, or returns a coroutine that runs as a task of the session. The client refuses requests
without a handler as RocketMQ's clients do: code 1 for an unknown group.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from firearrow.errors import BrokerError, FirearrowError, MessageError
from firearrow.logs import Log
from firearrow.message import properties as keys_of
from firearrow.message.record import decode_record
from firearrow.net.client import Handler, ServerRequest
from firearrow.net.tasks import Tasks
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand

log: Final = Log(__name__)

ANY_GROUP: Final = ""

Replying = Callable[[ServerRequest], Response | Coroutine[Any, Any, Response | None] | None]
"""Handler of a broker's request; it raises BrokerError to refuse. One-way requests get no answer in any case."""

CODES: Final = (
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
)


def group_of(command: AnyCommand) -> str:
    """Group that a broker's request is for; `ANY_GROUP` if the request names none."""
    if command.code == RequestCode.CHECK_TRANSACTION_STATE:
        try:
            return decode_record(command.body).properties.get(keys_of.PRODUCER_GROUP, ANY_GROUP)
        except MessageError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"no message: {error}") from None
    ext = command.ext
    return str(ext.get("consumerGroup") or ext.get("group") or ANY_GROUP)


class InboundRequests:
    """Handlers by request code and group."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._table: dict[tuple[int, str], Replying] = {}

    def on(self, code: int, group: str, handler: Replying) -> None:
        """Register the handler for a request code and group. A handler of `ANY_GROUP` takes the requests without
        another handler."""
        assert (code, group) not in self._table, f"request code {code} of group {group!r} has a handler already"
        self._table[code, group] = handler

    def off(self, group: str, *, of_producer: bool) -> None:
        """Remove the handlers of a producer group or of a consumer group."""
        self._table = {
            (code, name): handler
            for (code, name), handler in self._table.items()
            if name != group or (code == RequestCode.CHECK_TRANSACTION_STATE) != of_producer
        }

    def handlers(self) -> dict[int, Handler]:
        """Table of handlers for `firearrow.net.client.Client`."""
        return dict.fromkeys(map(int, CODES), self._answer)

    def _answer(self, asked: ServerRequest) -> Response | None:
        code, group = asked.command.code, group_of(asked.command)
        handler = self._table.get((code, group)) or self._table.get((code, ANY_GROUP))
        if handler is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"group {group!r} of this client does not answer {code}")
        answer = handler(asked)
        if not isinstance(answer, Coroutine):
            return answer
        self._tasks.start(_answer_later(asked, answer), f"answer to {code} for {group}")
        return None


async def _answer_later(asked: ServerRequest, answer: Coroutine[Any, Any, Response | None]) -> None:
    try:
        response = await answer
    except BrokerError as error:
        response = Response(error.code, error.remark)
    except (OSError, FirearrowError) as error:
        log.warning("request is not answered", extra={"code": asked.command.code, "error": error})
        response = Response(ResponseCode.SYSTEM_ERROR, str(error))
    if response is not None:
        asked.answer(response)
