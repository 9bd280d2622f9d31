"""Verifies all queues of a store against the log, each as its kind wants it."""

from __future__ import annotations

from firearrow.message.names import fault_as_directory, is_lmq
from firearrow.store.offline.batchcheck import BatchQueueCheck
from firearrow.store.offline.compare import QueueReport
from firearrow.store.offline.findings import Findings
from firearrow.store.offline.logcheck import GapReport
from firearrow.store.offline.metadata import configured_topics, is_deleted
from firearrow.store.offline.queuecrosscheck import QueueCheck
from firearrow.store.offline.view import StoreView
from firearrow.store.reading.entries import QueueKey


def check_queues(
    view: StoreView, merged: dict[QueueKey, QueueReport], log_end: int, gaps: list[GapReport], findings: Findings
) -> tuple[int, int]:
    """Verify all queues against the log; return how many there are, and how many messages they lack
    at their ends, as is to be expected."""
    keys = sorted({*view.queues, *merged})
    configured = configured_topics(view)
    behind = 0
    has_lmqs = any(is_lmq(topic) for topic, _ in view.queues)
    for key in keys:
        report = merged.get(key, QueueReport())
        fault = fault_as_directory(key[0])
        if fault is not None and view.rocks_directory is None and key not in view.queues:
            count = sum(end - first for first, end in report.numbers)
            text = f"{count} messages have no queue: {fault}"
            findings.add("queue-name", text, topic=key[0], queue_id=key[1], times=count)
            continue
        kind = BatchQueueCheck if key[0] in view.batch_topics else QueueCheck
        check = kind(view, key, report, log_end, findings)
        check.check_numbers(gaps)
        # LMQs are never configured: that there are others says that they are in use.
        deleted = is_deleted(key[0], configured) and not (is_lmq(key[0]) and has_lmqs)
        if not check.missing(deleted):
            check.run(gaps)
        behind += check.behind
    return len(keys), behind
