"""Notes in the message trace what a consumer was given, and how it ended.

Source: upstream ``ConsumeMessageTraceHookImpl``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from firearrow.client.message import Message
from firearrow.client.session import Session
from firearrow.client.tracerecords import Outcome, Record, sub_after, sub_before
from firearrow.message import properties as keys_of

DEFAULT_REGION: Final = "DefaultRegion"


class ConsumeTrace:
    """The trace of one consumer; ``add`` gets its records."""

    def __init__(self, session: Session, group: str, add: Callable[[Record], None]) -> None:
        self._session = session
        self._group = session.bare(group)
        self._add = add

    def begin(self, messages: Sequence[Message]) -> str:
        """A handler is given messages; gives what names that call."""
        request_id, now_ms = self._session.ids.next(), self._session.clock.now_ms()
        for message in _traced(messages):
            self._add(
                sub_before(
                    time_ms=now_ms,
                    region=message.properties.get(keys_of.MSG_REGION, DEFAULT_REGION),
                    group=self._group,
                    request_id=request_id,
                    topic=message.topic,
                    message_id=message.message_id,
                    retry_times=message.reconsume_times,
                    keys=message.properties.get(keys_of.KEYS),
                )
            )
        return request_id

    def end(self, request_id: str, messages: Sequence[Message], took: float, *, ok: bool) -> None:
        """A call has ended, after so many seconds."""
        now_ms = self._session.clock.now_ms()
        for message in _traced(messages):
            self._add(
                sub_after(
                    time_ms=now_ms,
                    group=self._group,
                    request_id=request_id,
                    topic=message.topic,
                    message_id=message.message_id,
                    cost_ms=int(took * 1000) // len(messages),
                    success=ok,
                    keys=message.properties.get(keys_of.KEYS),
                    outcome=Outcome.SUCCESS if ok else Outcome.EXCEPTION,
                )
            )


def _traced(messages: Sequence[Message]) -> list[Message]:
    """Those whose sender has not asked for no trace."""
    return [one for one in messages if one.properties.get(keys_of.TRACE_ON) != "false"]
