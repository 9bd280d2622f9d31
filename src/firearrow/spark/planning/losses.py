"""Reaction to missing messages: an error, or a line of the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from firearrow.client.queues import Bound, Queue, Span
from firearrow.errors import DataLost
from firearrow.logs import Log
from firearrow.spark.offsets import Loss, plan, require_whole
from firearrow.spark.options import ReadOptions

log: Final = Log(__name__)


def lost(reading: ReadOptions, what: str, cause: Exception | None = None) -> None:
    """Raise DataLost; with ``failOnDataLoss=false`` only warn."""
    if reading.fail_on_data_loss:
        raise DataLost(f"messages to read are missing: {what} (failOnDataLoss=false skips them)") from cause
    log.warning("messages are skipped", extra={"reason": what})


def lost_spans(fail: bool, losses: Sequence[Loss]) -> None:
    """The same for queue offsets: DataLost names them, or each gets a warning."""
    if fail:
        require_whole(list(losses))
    for loss in losses:
        log.warning(
            "messages are skipped",
            extra={
                **loss.queue.fields,
                "queue_offset": loss.span.start,
                "end_queue_offset": loss.span.end,
                "reason": loss.reason,
            },
        )


def held_spans(
    reading: ReadOptions,
    start: Mapping[Queue, int],
    end: Mapping[Queue, int],
    bounds: Mapping[Queue, Bound],
    losses: Sequence[Loss] = (),
) -> dict[Queue, Span]:
    """The existing part of each queue from ``start`` to ``end``; reports losses, also the known ``losses``."""
    planned = plan(start, end, bounds)
    lost_spans(reading.fail_on_data_loss, [*losses, *planned.losses])
    return planned.spans
