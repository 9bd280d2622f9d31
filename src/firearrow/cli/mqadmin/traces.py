"""Show the sender and the consumers of a message, from the traces of clients."""

from __future__ import annotations

from typing import Final

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import second, shown, text_order
from firearrow.client.admin.messages import LAST_MS
from firearrow.client.tracing.records import Step, steps_in
from firearrow.message.names import TRACE_TOPIC

_ROW: Final = "{:<10} {:<20} {:<20} {:<20} {:<10} {:<10}"


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
    steps = [step for found in traces for step in steps_in(found, message_id)]
    for step in steps:
        if step.kind == "Pub":
            run.line(_head("#ProducerGroup", "#SendTime"))
            run.line(f"{_row(step)}\n")
    groups = dict.fromkeys(shown(step.group) for step in steps if step.kind == "Sub")
    for group in text_order(groups):
        run.line(_head("#ConsumerGroup", "#ConsumerTime"))
        for step in steps:
            if step.kind == "Sub" and shown(step.group) == group:
                run.line(_row(step))
        run.line()


def _head(group: str, time: str) -> str:
    return _ROW.format("#Type", group, "#ClientHost", time, "#CostTimes", "#Status")


def _row(step: Step) -> str:
    status = "success" if step.succeeded else "failed"
    return _ROW.format(step.kind, shown(step.group), step.host, second(step.time_ms), f"{step.cost_ms}ms", status)
