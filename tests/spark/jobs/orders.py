"""A shop's store: two topics, three groups, retries, dead letters, delays, transactions, copies.

`fill` writes it with the store itself, in the order of six hours, as brokers of a shop would have;
what is in it is the same every time. (Of transactions there are halves and decisions: the message
that a commit makes is in the golden stores only.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from firearrow.message.hosts import Host, pack_host
from firearrow.message.ids import encode_offset_id
from tests.spark.jobs.frames import START_MS
from tests.store.stores import append, opened

SECOND, MINUTE = 1000, 60_000
END_MS = START_MS + 360 * MINUTE
STORE = Host("127.0.0.1", 10911)
PRODUCERS = [pack_host(Host(f"10.0.0.{n}", 40_000 + n)) for n in (7, 8, 9)]
HOSTILE = "<script>alert('x')</script> \x1b[31mred \u202eturned"
ORDERS = 1440
COMMITTED = {"Orders@billing": {0: 300, 1: 310, 2: 360}, "Orders@shipping": {0: 360, 1: 360, 2: 360, 3: 360}}
COMMITTED |= {"Payments@audit": {0: 10, 1: 10}, "%RETRY%shipping@shipping": {0: 36}}


@dataclass(frozen=True)
class Event:
    """A message, and when it was stored."""

    stored_ms: int
    topic: str
    body: bytes
    properties: dict[str, str] = field(default_factory=dict)
    queue_id: int = 0
    took_ms: int = 3
    producer: int = 0
    retries: int = 0


def fill(root: Path) -> Path:
    """Write the store and give its directory."""
    parts = (orders(), payments(), failures(), delays(), transactions())
    events = sorted((event for part in parts for event in part), key=lambda event: event.stored_ms)
    origins: dict[str, str] = {}  # of the first copies, by unique id
    with opened(root, mapped_file_size_commit_log=1 << 20) as store:
        for event in events:
            unique_id = event.properties.get("UNIQ_KEY", "")
            back = {"ORIGIN_MESSAGE_ID": origins[unique_id]} if event.retries else {}
            place = append(
                store,
                event.body,
                event.topic,
                event.queue_id,
                properties=event.properties | back,
                born_ms=event.stored_ms - event.took_ms,
                now_ms=event.stored_ms,
                born_host=PRODUCERS[event.producer],
                reconsume_times=event.retries,
            )
            origins.setdefault(unique_id, encode_offset_id(STORE, place))
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": COMMITTED}))
    return root


def order(number: int) -> Event:
    """Four a minute; each third hour is slow; each 97th comes twice, with the same id."""
    copy_of = number - 1 if number % 97 == 1 else number
    stored_ms = START_MS + number * 15 * SECOND
    body = {"order": copy_of, "customer": f"c{copy_of % 50}", "cents": 100 * copy_of}
    return Event(
        stored_ms,
        "Orders",
        json.dumps(body).encode(),
        {
            "UNIQ_KEY": f"{copy_of:032X}",
            "KEYS": f"order-{copy_of} c{copy_of % 50}",
            "TAGS": ("new", "paid", "sent")[copy_of % 3],
        },
        number % 4,
        took_ms=200 + number % 100 if number // 240 % 3 == 2 else 2 + number % 5,
        producer=0 if number % 5 else 1,
    )


def orders() -> Iterator[Event]:
    return map(order, range(ORDERS))


def payments() -> Iterator[Event]:
    for number in range(60):
        properties = {"UNIQ_KEY": f"{5000 + number:032X}", "KEYS": f"order-{number}"}
        body = b"\x08\x96\x01\xff" * (number + 1)
        stored_ms = START_MS + number * 6 * MINUTE
        yield Event(stored_ms, "Payments", body, properties, number % 2, producer=2)


def failures() -> Iterator[Event]:
    """What ``shipping`` could not do: each 120th order, tried three times; one body is hostile."""
    for number in range(0, ORDERS, 120):
        first = order(number)
        carried = first.properties | {"RETRY_TOPIC": "Orders"}
        body = HOSTILE.encode() if number == 240 else first.body
        for retry in (1, 2, 3, 4):
            topic = "%RETRY%shipping" if retry < 4 else "%DLQ%shipping"
            stored_ms = first.stored_ms + retry * 40 * SECOND
            yield Event(stored_ms, topic, body, carried, took_ms=retry * 40_000, retries=retry)


def delays() -> Iterator[Event]:
    """Reminders after ten seconds, of which the last are not due."""
    for number in range(20):
        stored_ms = END_MS - (20 - number) * 5 * SECOND
        properties = {
            "UNIQ_KEY": f"{6000 + number:032X}", "DELAY": "3", "REAL_TOPIC": "Reminders",
            "REAL_QID": "0",
        }  # fmt: skip
        yield Event(stored_ms, "SCHEDULE_TOPIC_XXXX", b"remind", properties, 2)
        late_ms = stored_ms + 10 * SECOND + 20 * number
        if late_ms < END_MS:
            yield Event(late_ms, "Reminders", b"remind", properties, took_ms=10_000)


def transactions() -> Iterator[Event]:
    """Ten halves of which four are rolled back; one of them was checked before."""
    for number in range(10):
        properties = {
            "UNIQ_KEY": f"{7000 + number:032X}", "REAL_TOPIC": "Payments", "REAL_QID": "0",
            "TRAN_MSG": "true", "PGROUP": "checkout", "KEYS": f"pay-{number}",
        }  # fmt: skip
        stored_ms = START_MS + number * 30 * MINUTE
        yield Event(stored_ms, "RMQ_SYS_TRANS_HALF_TOPIC", b"pay", properties)
    stored_ms = START_MS + 290 * MINUTE
    yield Event(stored_ms, "RMQ_SYS_TRANS_OP_HALF_TOPIC", b"0,1,2,3,", {"TAGS": "d"})
