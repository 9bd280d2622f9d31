"""The command that shows who sent and consumed a message, from the traces of clients.

A trace is a message whose body has records, ended by 0x02, of fields, ended by 0x01. Those that are
shown are of two kinds (a client that is older leaves the last fields out):

    Pub       time region group topic id tags keys host length cost type [offset id] success client
    SubAfter  request id cost success keys code time group
"""

from __future__ import annotations

from typing import Final, NamedTuple

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import second, shown, text_order
from firearrow.client.admin.messages import LAST_MS
from firearrow.message.model import MessageView
from firearrow.message.names import TRACE_TOPIC

_ROW: Final = "{:<10} {:<20} {:<20} {:<20} {:<10} {:<10}"


class Seen(NamedTuple):
    """That a message was sent or consumed."""

    kind: str
    group: str | None
    host: str
    time_ms: int
    cost_ms: int
    succeeded: bool

    def row(self) -> str:
        """A row of the table."""
        status = "success" if self.succeeded else "failed"
        when, cost = second(self.time_ms), f"{self.cost_ms}ms"
        return _ROW.format(self.kind, shown(self.group), self.host, when, cost, status)


def seen_in(trace: MessageView, message_id: str) -> list[Seen]:
    """What a trace says of a message."""
    text = trace.body_decompressed().decode("utf-8", "replace")
    host = trace.born_host.ip
    found = [_seen(record.split("\x01"), message_id, host) for record in text.split("\x02")]
    return [one for one in found if one is not None]


def _seen(fields: list[str], message_id: str, host: str) -> Seen | None:
    while fields and not fields[-1]:
        fields.pop()
    if fields[:1] == ["Pub"] and len(fields) >= 12 and fields[5] == message_id:
        success_at = 12 if len(fields) == 13 else 13
        succeeded = len(fields) <= 12 or fields[success_at].lower() == "true"
        return Seen("Pub", fields[3], host, int(fields[1]), int(fields[10]), succeeded)
    if fields[:1] == ["SubAfter"] and len(fields) >= 6 and fields[2] == message_id:
        whole = len(fields) >= 9
        time_ms, group = (int(fields[7]), fields[8]) if whole else (0, None)
        succeeded = fields[4].lower() == "true"
        return Seen("Sub", group, host, time_ms, int(fields[3]), succeeded)
    return None


async def trace(run: Invocation) -> None:
    """Show who sent a message, and which groups consumed it."""
    message_id = run.text("i")
    traces = await run.admin.find(
        run.get("t") or TRACE_TOPIC,
        message_id,
        count=run.number("c", 64),
        since_ms=run.number("b", 0),
        until_ms=run.number("e", LAST_MS),
    )
    seen = [one for found in traces for one in seen_in(found, message_id)]
    for one in seen:
        if one.kind == "Pub":
            run.line(_head("#ProducerGroup", "#SendTime"))
            run.line(f"{one.row()}\n")
    groups = dict.fromkeys(shown(one.group) for one in seen if one.kind == "Sub")
    for group in text_order(groups):
        run.line(_head("#ConsumerGroup", "#ConsumerTime"))
        for one in seen:
            if one.kind == "Sub" and shown(one.group) == group:
                run.line(one.row())
        run.line()


def _head(group: str, time: str) -> str:
    return _ROW.format("#Type", group, "#ClientHost", time, "#CostTimes", "#Status")
