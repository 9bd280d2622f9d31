"""How long a message takes from its sender to a consumer that waits for it.

Two connections of their own, beside whatever load there is: one sends a message every few
milliseconds, the other has a pull waiting. What is measured begins before the request is written
and ends when the pull's answer is read, so it holds two network trips and the broker's answer too.
"""

import threading
import time
from collections.abc import Sequence

from benchmarks.errors import BenchmarkError
from benchmarks.remoting import SUCCESS, Line, count_records, one_message, pull
from benchmarks.servers import Broker

PAUSE_S = 0.003
SUSPEND_MS = 4000  # below the time limit of a socket


def delays_ms(broker: Broker, topic: str, seconds: float) -> list[float]:
    """Probe for so long; give the delay of each message, in ms, in the order of the queue."""
    with Line(broker.address) as consumer, Line(broker.address) as producer:
        if producer.ask(one_message(broker.name, topic)).code != SUCCESS:
            raise BenchmarkError(f"{broker.address} refuses messages for {topic}")
        start = _drain(consumer, topic)
        sent: list[float] = []
        seen: list[float] = []
        done = threading.Event()
        reader = threading.Thread(target=_read, args=(consumer, topic, start, seen, done))
        reader.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sent.append(time.monotonic())
            producer.ask(one_message(broker.name, topic))
            time.sleep(PAUSE_S)
        done.set()
        producer.ask(one_message(broker.name, topic))
        reader.join()
    return [(after - before) * 1000 for before, after in zip(sent, seen, strict=False)]


def _drain(consumer: Line, topic: str) -> int:
    """Read the queue to its end; give the offset after it."""
    offset = 0
    while True:
        answer = consumer.ask(pull(topic, topic, 0, offset, 1))
        if answer.code == SUCCESS:
            offset += count_records(answer.body)
        elif offset:
            return offset


def _read(consumer: Line, topic: str, offset: int, seen: list[float], done: threading.Event) -> None:
    while not done.is_set():
        answer = consumer.ask(pull(topic, topic, 0, offset, SUSPEND_MS))
        now = time.monotonic()
        count = count_records(answer.body) if answer.code == SUCCESS else 0
        seen += [now] * count
        offset += count


def percentile(values: Sequence[float], share: float) -> float:
    """Give the value below which a share of all of them is."""
    if not values:
        raise BenchmarkError("no message was seen by its consumer")
    return sorted(values)[int((len(values) - 1) * share)]
