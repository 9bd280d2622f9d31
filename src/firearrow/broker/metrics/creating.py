"""Measures how long it takes to create topics and groups, which clients may wait for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from firearrow.broker.metrics.tally import Tally
from firearrow.clock import Clock
from firearrow.message.names import is_system_topic
from firearrow.net.server import Answer, Handler, Peer
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand

_TOPIC: Final = int(RequestCode.UPDATE_AND_CREATE_TOPIC)
_GROUP: Final = int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)


def measured(handlers: Mapping[int, Handler], tally: Tally, clock: Clock) -> dict[int, Handler]:
    """Give handlers of which those that create one topic or group are measured."""

    def handler_of(code: int, handler: Handler) -> Handler:
        def handle(peer: Peer, request: AnyCommand) -> Answer:
            begin, is_done = clock.monotonic(), False
            try:
                answer = handler(peer, request)
                is_done = not isinstance(answer, Response) or not answer.code
            finally:
                took_ms = int((clock.monotonic() - begin) * 1000)
                if code == _GROUP:
                    tally.groups_made.add((is_done,), took_ms)
                else:
                    topic = request.ext.get("topic", "") if isinstance(request.ext, dict) else ""
                    tally.topics_made.add((is_done, is_system_topic(topic)), took_ms)
            return answer

        return handle

    return {
        code: handler_of(code, handler) if code in (_TOPIC, _GROUP) else handler for code, handler in handlers.items()
    }
