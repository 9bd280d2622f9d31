"""Table of the counters that a broker reports: the subject, unit and meaning of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from firearrow.cli.output.reports import as_moment, in_bytes, shown, visible

UNKNOWN: Final = "other"
"""Subject of a counter that is not in the table."""
RATE: Final = "messages/s"
_RATE_SPANS: Final = ("10 s", "1 min", "10 min")
NO_BREAK: Final = "\N{NO-BREAK SPACE}"
_UNLIMITED: Final = "2147483647"


class Counter(NamedTuple):
    """A counter of a broker; ``unit`` is empty for a plain text."""

    subject: str
    unit: str
    meaning: str


_POOLS: Final = {
    "send": "sends",
    "pull": "pulls",
    "litePull": "pulls of lite topics",
    "query": "searches for messages",
    "ack": "acknowledgements of popped messages",
}


def _of_pool(pool: str, requests: str) -> dict[str, Counter]:
    queue = f"{pool}ThreadPoolQueue"
    return {
        f"{queue}Size": Counter("thread pools", "requests", f"{requests} that wait for a thread"),
        f"{queue}Capacity": Counter("thread pools", "requests", f"{requests} that may wait; more are refused"),
        f"{queue}HeadWaitTimeMills": Counter("thread pools", "ms", f"time that the first of the {requests} has waited"),
    }


def _counters(subject: str, rows: Mapping[str, tuple[str, str]]) -> dict[str, Counter]:
    return {name: Counter(subject, *row) for name, row in rows.items()}


COUNTERS: Final[Mapping[str, Counter]] = {
    **_counters("broker", {
        "brokerVersionDesc": ("", "version of RocketMQ whose protocol it speaks"),
        "brokerActive": ("", "true if it serves clients; a slave may act for its master"),
        "bootTimestamp": ("time", "start of the process"),
        "runtime": ("", "time since the start"),
        "startAcceptSendRequestTimeStamp": ("time", "time before which sends are refused; none if 0"),
    }),
    **_counters("messages", {
        "putTps": (RATE, "messages stored"),
        "getTransferredTps": (RATE, "messages delivered to consumers"),
        "getTotalTps": ("requests/s", "pulls and pops"),
        "getFoundTps": ("requests/s", "pulls and pops that found messages"),
        "getMissTps": ("requests/s", "pulls and pops that found none"),
        "msgPutTotalTodayNow": ("messages", "stored up to now, over all days"),
        "msgPutTotalTodayMorning": ("messages", "stored up to the beginning of today"),
        "msgPutTotalYesterdayMorning": ("messages", "stored up to the beginning of yesterday"),
        "msgGetTotalTodayNow": ("messages", "delivered up to now, over all days"),
        "msgGetTotalTodayMorning": ("messages", "delivered up to the beginning of today"),
        "msgGetTotalYesterdayMorning": ("messages", "delivered up to the beginning of yesterday"),
        "putMessageTimesTotal": ("messages", "stored since the start"),
        "putMessageSizeTotal": ("bytes", "stored since the start"),
        "putMessageAverageSize": ("bytes", "average size of a stored message"),
        "putMessageFailedTimes": ("messages", "refused by the store since the start"),
        "sendTimerMessageTps": (RATE, "timed messages stored"),
    }),
    **_counters("latency", {
        "putLatency99": ("ms", "99 of 100 messages were stored in this time or less"),
        "putLatency999": ("ms", "999 of 1,000 messages were stored in this time or less"),
        "putMessageEntireTimeMax": ("ms", "longest time that a message took to be stored"),
        "getMessageEntireTimeMax": ("ms", "longest time that a read took"),
        "putMessageDistributeTime": ("", "stored messages by the time that each took"),
    }),
    **_counters("log and disk", {
        "commitLogMinOffset": ("bytes", "place in the log where the retained messages begin"),
        "commitLogMaxOffset": ("bytes", "place in the log where the next message is stored"),
        "earliestMessageTimeStamp": ("time", "store time of the oldest message"),
        "commitLogDirCapacity": ("", "size and room of the disk of the log"),
        "commitLogDiskRatio": ("share", "used part of the disk of the log"),
        "consumeQueueDiskRatio": ("share", "used part of the disk of the queues"),
        "remainHowManyDataToFlush": ("", "bytes in memory that the disk does not have yet"),
        "writesRefused": ("", "reason why writes are refused; empty if they are not"),
        "damagedRecords": ("records", "damaged records that were skipped"),
        "remainHowManyDataToCommit": ("", "bytes in the write buffer that the page cache does not have yet"),
    }),
    **_counters("dispatch", {
        "dispatchBehindBytes": ("bytes", "part of the log that the queues do not have yet: consumers can't see it"),
        "dispatchMaxBuffer": ("messages", "messages that wait for dispatch"),
    }),
    **_counters("page cache", {
        "pageCacheLockTimeMills": ("ms", "time that the present write has held the page cache"),
        "remainTransientStoreBufferNumbs": ("buffers", "free write buffers outside the page cache"),
    }),
    **_counters("timed messages", {
        "timerReadBehind": ("seconds", "delay of due messages"),
        "timerOffsetBehind": ("messages", "timed messages that the timer has not read yet"),
        "timerCongestNum": ("messages", "messages that wait for their time"),
        "timerEnqueueTps": (RATE, "messages that begin to wait"),
        "timerDequeueTps": (RATE, "messages whose time has come"),
    }),
    **{name: row for pool, requests in _POOLS.items() for name, row in _of_pool(pool, requests).items()},
    "EndTransactionQueueSize": Counter("thread pools", "requests", "decisions of transactions that wait for a thread"),
    "EndTransactionThreadPoolQueueCapacity": Counter(
        "thread pools", "requests", "decisions of transactions that may wait; more are refused"
    ),
}  # fmt: skip
_DISKS: Final = ("commitLogDiskRatio_", "consumeQueueDiskRatio_")


def counter(name: str) -> Counter:
    """Give the row of a counter; one of subject `UNKNOWN` for a name that is not in the table."""
    if name.startswith(_DISKS):
        return Counter("log and disk", "share", f"used part of the disk of {visible(name.partition('_')[2])}")
    return COUNTERS.get(name, Counter(UNKNOWN, "", ""))


def in_words(name: str, value: str) -> str:
    """Give the value of a counter with its unit; a value that is not of that kind stays as it is."""
    unit = counter(name).unit
    words = value.split()
    try:
        if unit.endswith("/s"):
            spans = zip(words, _RATE_SPANS, strict=False)
            return ", ".join(f"{float(rate):,.1f}/s in {span}".replace(" ", NO_BREAK) for rate, span in spans)
        if unit == "share":
            return f"{100 * float(value):.1f} %"
        if unit == "bytes":
            return in_bytes(float(value))
        if unit == "time":
            return shown(name, as_moment(int(value)))
        if value == _UNLIMITED:
            return "no limit"
        if not unit:
            return visible(value) or "–"
        return f"{float(value):,.2f}".removesuffix(".00") + f" {unit}"
    except (ValueError, OverflowError, OSError):
        return visible(value)
