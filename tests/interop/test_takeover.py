"""A store goes from one broker to the other and back, and nobody can tell the difference.

One broker is filled by the official client with every kind of message, until every kind of file has
rolled, and stops. The other opens the directory: a dump through the official pull consumer must be
the same in every decoded field, groups must stand where they stood, the index must still find its
keys, and new messages must go on at the next offset.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.interop.driver import Driver
from tests.interop.javaclient import ARRIVAL_TIMEOUT_S, BODY_BYTES_MAX, JavaClient, Outgoing, QueueProgress, SendReport
from tests.interop.servers import ALL_HANDOVERS, HANDOVERS, SMALL_FILES, Kind, serve, target_kind
from tests.interop.waiting import wait_until
from tests.store.stores import contents

pytestmark = pytest.mark.slow

QUEUES = 4
LONG_QUEUE = 1000  # three queue files of 300 entries and a part of a fourth
MORE = [b"more %d" % i for i in range(5)]
COMPRESSIONS = ("ZLIB", "LZ4", "ZSTD")
BATCH_HANDOVERS = [("firearrow", "real"), ("real", "firearrow")][: 2 if ALL_HANDOVERS else 1]


@dataclass(frozen=True)
class State:
    """What a client can see of a store; the messages in the order of the log."""

    messages: list[dict[str, Any]]
    progress: dict[str, list[QueueProgress]]


@dataclass(frozen=True)
class Filled:
    """What was put into a store: the groups that consumed, and where some keyed messages went."""

    groups: dict[str, str]
    keyed: dict[str, SendReport]


class Handover:
    """One store directory that servers open one after the other, at the same address.

    Offset ids hold the address of the broker that stored the message: at another address, a client
    would ask in vain.
    """

    def __init__(self, driver: Driver, directory: Path, store_type: str, **settings: str) -> None:
        self.store = directory / "store"
        self._settings = {**SMALL_FILES, "storeType": store_type, **settings}
        self._driver = driver
        self._directory = directory
        self._turns = 0
        self._broker_port = 0

    @contextmanager
    def opened_by(self, kind: Kind, *, killed: bool = False) -> Iterator[JavaClient]:
        """Serve the store for a ``with`` block, then stop cleanly, or kill the server."""
        self._turns += 1
        logs = self._directory / f"{self._turns}-{kind}"
        with serve(
            kind, self.store, logs, broker_port=self._broker_port, settings=self._settings, killed=killed
        ) as server:
            self._broker_port = server.broker_port
            client = JavaClient(self._driver, server)
            yield client
            client.close()

    def state(self, java: JavaClient, filled: Filled) -> State:
        """Look at everything."""
        messages = java.dump(self._directory / "dump.jsonl")
        messages.sort(key=lambda message: message["physicalOffset"])
        return State(messages, {group: java.progress(group) for group in filled.groups})


@pytest.fixture(params=["default", "defaultRocksDB"])
def handover(driver: Driver, tmp_path: Path, request: pytest.FixtureRequest) -> Handover:
    """A store directory that does not exist yet, for each way to keep queues."""
    return Handover(driver, tmp_path, request.param)


def fill(java: JavaClient) -> Filled:
    """Put in messages of every kind, more than a file of each kind holds, and consume some."""
    for topic in ("Plain", "Batch", "Long", "Packed", "Large"):
        java.create_topic(topic, QUEUES)
    keyed = _fill_plain(java, "Plain")
    _fill_runs(java)
    _fill_packed(java, "Packed")
    _fill_large(java, "Large")
    groups = {"plain_all": "Plain", "packed_all": "Packed"}
    for group, topic in groups.items():
        _consume(java, group, topic)
    _consume_half(java, "long_half", "Long")
    return Filled(groups | {"long_half": "Long"}, keyed)


def _fill_plain(java: JavaClient, topic: str) -> dict[str, SendReport]:
    """Send in each way of single messages, with tags, keys, properties and flags."""
    source = random.Random(1)
    messages = [
        Outgoing(
            body=source.randbytes(source.randrange(1, 3000)),
            tags=source.choice(("TagA", "TagB", "标签", None)),
            keys=f"plain-{i} tenth-{i % 10}",
            properties={"地区": f"杭州{i}", "price": f"{i / 10}"},
            flag=i % 5,
        )
        for i in range(300)
    ]
    producer = java.producer()
    reports = producer.send(topic, messages[:150]) + producer.send_async(topic, messages[150:])
    producer.send_oneway(topic, [Outgoing(body=b"one way %d" % i) for i in range(20)])
    wait_for_size(java, topic, len(messages) + 20)
    return {f"plain-{i}": report for i, report in enumerate(reports)}


def _fill_runs(java: JavaClient) -> None:
    """Send batches, and one queue so long that it has several files."""
    producer = java.producer()
    for run in range(10):
        names = [f"batch {run}/{i} 批量" for i in range(1 + 3 * run)]
        batch = [Outgoing(body=name.encode(), keys=name.replace(" ", "-")) for name in names]
        producer.send_batch("Batch", batch)
    for start in range(0, LONG_QUEUE, 100):
        numbers = range(start, start + 100)
        producer.send("Long", [Outgoing(body=b"%d" % number, queue=2) for number in numbers])


def _fill_packed(java: JavaClient, topic: str) -> None:
    """Send bodies that the client compresses, in each way."""
    for compression in COMPRESSIONS:
        producer = java.producer(compression=compression, compress_over_bytes=1024)
        bodies = [f"{compression} {i}; ".encode() * 600 for i in range(8)]
        producer.send(topic, [Outgoing(body=body, tags=compression) for body in bodies])


def _fill_large(java: JavaClient, topic: str) -> None:
    """Send the largest bodies: two of them never fit into one log file."""
    producer = java.producer()
    for seed in range(3):
        body = random.Random(seed).randbytes(BODY_BYTES_MAX)
        producer.send(topic, [Outgoing(body=body, keys=f"large-{seed}")])
    wait_for_size(java, topic, 3)


def size(java: JavaClient, topic: str) -> int:
    """Return how many messages a topic has in its queues."""
    return sum(java.max_offset(topic, queue) for queue in range(QUEUES))


def wait_for_size(java: JavaClient, topic: str, count: int) -> None:
    """Wait until that many messages are in the queues, and so all that were stored before."""
    wait_until(lambda: size(java, topic) == count, ARRIVAL_TIMEOUT_S, f"{count} in {topic}")


def _consume(java: JavaClient, group: str, topic: str) -> None:
    """Consume and commit all of a topic."""
    total = size(java, topic)
    consumer = java.push_consumer(group, topic)
    consumer.wait_for(total)
    consumer.stop()
    java.wait_until_consumed(group, topic, total)


def _consume_half(java: JavaClient, group: str, topic: str) -> None:
    """Commit the half of the long queue."""
    consumer = java.pull_consumer(group)
    consumer.pull(topic, 2, 0)
    consumer.commit(topic, 2, LONG_QUEUE // 2)


def send_more(java: JavaClient) -> None:
    """Add a few messages to a queue of each topic, and a topic."""
    producer = java.producer()
    java.create_topic("Added", QUEUES)
    messages = [Outgoing(body=body, keys="more", queue=2) for body in MORE]
    for topic in ("Plain", "Batch", "Long", "Packed", "Large", "Added"):
        producer.send(topic, messages)
    wait_for_size(java, "Added", len(MORE))


def assert_rolled(store: Path) -> None:
    """Check that the test is worth its name: each kind of file is there more than once."""
    assert len(list((store / "commitlog").iterdir())) >= 3
    if not (store / "consumequeue" / "CURRENT").exists():  # else all is in one database
        assert len(list((store / "consumequeue" / "Long" / "2").iterdir())) >= 4
    assert len(list((store / "index").iterdir())) >= 2


def assert_index_serves(java: JavaClient, filled: Filled) -> None:
    """Check that messages from the begin, the middle and the end are found by key and by id."""
    for key in ("plain-0", "plain-149", "plain-299"):
        report = filled.keyed[key]
        (by_key,) = java.query_key("Plain", key)
        assert by_key.msg_id == report.msg_id
        assert java.query_id("Plain", report.msg_id) == by_key
        assert java.query_id("Plain", report.offset_msg_id).body == by_key.body
    assert len(java.query_key("Plain", "tenth-1")) == 30
    assert len(java.query_key("Large", "large-2")) == 1


def assert_goes_on(java: JavaClient) -> None:
    """Check that new messages get the offsets after the old ones, and reach the old groups."""
    end = java.max_offset("Plain", 2)
    send_more(java)
    assert java.max_offset("Plain", 2) == end + len(MORE)
    assert java.max_offset("Long", 2) == LONG_QUEUE + len(MORE)
    consumer = java.push_consumer("packed_all", "Packed")
    consumer.wait_for(len(MORE))
    assert sorted(message.body for message in consumer.stop()) == MORE


def test_the_original_takes_over(handover: Handover) -> None:
    """The broker under test fills a store; the original opens it and goes on with it."""
    with handover.opened_by(target_kind()) as java:
        filled = fill(java)
        before = handover.state(java, filled)
    assert_rolled(handover.store)
    with handover.opened_by("real") as java:
        assert handover.state(java, filled) == before
        assert_index_serves(java, filled)
        assert_goes_on(java)


def test_a_store_of_the_original_goes_there_and_back(handover: Handover) -> None:
    """The original fills a store; the broker under test adds to it; the original opens it again."""
    with handover.opened_by("real") as java:
        filled = fill(java)
        before = handover.state(java, filled)
    assert_rolled(handover.store)
    with handover.opened_by(target_kind()) as java:
        assert handover.state(java, filled) == before
        assert_index_serves(java, filled)
        assert_goes_on(java)
        after = handover.state(java, filled)
    assert after.messages[: len(before.messages)] == before.messages
    with handover.opened_by("real") as java:
        assert handover.state(java, filled) == after
        assert_index_serves(java, filled)
        assert [message.body for message in java.query_key("Added", "more")] == MORE


# --- delayed messages ---


@pytest.mark.parametrize(("handover", "kinds"), HANDOVERS, indirect=["handover"])
def test_delayed_messages_go_there_and_back(handover: Handover, kinds: tuple[Kind, Kind]) -> None:
    """Each broker delivers what the other one took, once, and nothing that it has delivered."""
    first, second = kinds
    with handover.opened_by(first) as java:
        java.create_topic("Later", QUEUES)
        producer = java.producer()
        producer.send("Later", [Outgoing(body=b"soon %d" % n, level=1) for n in range(5)])
        wait_for_size(java, "Later", 5)
        producer.send("Later", [Outgoing(body=b"later %d" % n, level=3) for n in range(20)])
        assert size(java, "Later") == 5
    with handover.opened_by(second) as java:
        wait_for_size(java, "Later", 25)
        java.producer().send("Later", [Outgoing(body=b"more %d" % n, level=2) for n in range(5)])
    with handover.opened_by(first) as java:
        wait_for_size(java, "Later", 30)
        java.producer().send("Later", [Outgoing(body=b"last", level=1)])
        wait_for_size(java, "Later", 31)
        received = java.pull_consumer("looks").read("Later")
    counts = {"soon": 5, "later": 20, "more": 5}
    bodies = [b"%s %d" % (name.encode(), n) for name in counts for n in range(counts[name])]
    assert sorted(message.body for message in received) == sorted([*bodies, b"last"])
    assert {message.properties["REAL_TOPIC"] for message in received} == {"Later"}


# --- LMQs ---

LMQ = ("%LMQ%odd", "%LMQ%all")


@pytest.fixture
def lmq(driver: Driver, tmp_path: Path, request: pytest.FixtureRequest) -> Handover:
    """A store directory that does not exist yet, with LMQs."""
    settings = {"enableLmq": "true", "enableMultiDispatch": "true"}
    return Handover(driver, tmp_path, request.param, **settings)


def send_lmq(java: JavaClient, start: int, end: int) -> None:
    """Send numbers, each to the one or the two LMQs that take it."""
    messages = [
        Outgoing(
            body=b"%d" % number,
            tags="Odd" if number % 2 else "Even",
            properties={"INNER_MULTI_DISPATCH": ",".join(LMQ[1 - number % 2 :])},
        )
        for number in range(start, end)
    ]
    java.producer().send("Parent", messages)


def lmq_bodies(java: JavaClient, count: int) -> dict[str, list[bytes]]:
    """Wait until so many numbers are in the LMQs, and read them."""
    consumer = java.pull_consumer("%LMQ%group")
    wanted = [count // 2, count]
    wait_until(
        lambda: [consumer.pull(queue, 0, 0).max_offset for queue in LMQ] == wanted,
        ARRIVAL_TIMEOUT_S,
        f"{wanted} in {LMQ}",
    )
    tagged = consumer.pull(LMQ[1], 0, 0, expression="Odd")
    assert {message.tags for message in tagged.messages} == {"Odd"}
    return {queue: [message.body for message in consumer.read_queue(queue, 0)] for queue in LMQ}


def assert_lmq(java: JavaClient, count: int) -> None:
    """Check that the LMQs have each number once, in order."""
    numbers = [b"%d" % number for number in range(count)]
    assert lmq_bodies(java, count) == {LMQ[0]: numbers[1::2], LMQ[1]: numbers}


@pytest.mark.parametrize(("lmq", "kinds"), HANDOVERS, indirect=["lmq"])
def test_lmqs_go_there_and_back(lmq: Handover, kinds: tuple[Kind, Kind]) -> None:
    """Both brokers, in turn, add to LMQs that the other one left, and serve them."""
    first, second = kinds
    with lmq.opened_by(first) as java:
        java.create_topic("Parent", QUEUES)
        send_lmq(java, 0, 500)
        assert_lmq(java, 500)
        java.pull_consumer("%LMQ%group").commit(LMQ[0], 0, 77)
        consumer = java.pull_consumer("plain_group")
        consumer.pull(LMQ[1], 0, 0)  # makes the group
        consumer.commit(LMQ[1], 0, 78)
    with lmq.opened_by(second) as java:
        assert java.pull_consumer("%LMQ%group").committed(LMQ[0], 0) == 77
        assert java.pull_consumer("plain_group").committed(LMQ[1], 0) == 78
        send_lmq(java, 500, 600)
        assert_lmq(java, 600)
        java.pull_consumer("%LMQ%group").commit(LMQ[0], 0, 79)
    with lmq.opened_by(first) as java:
        assert java.pull_consumer("%LMQ%group").committed(LMQ[0], 0) == 79
        send_lmq(java, 600, 650)
        assert_lmq(java, 650)


# --- queues of batches ---


@pytest.fixture
def batches(driver: Driver, tmp_path: Path) -> Handover:
    """A store directory that does not exist yet, with small files of queues of batches."""
    settings = {"mapperFileSizeBatchConsumeQueue": str(46 * 20)}
    return Handover(driver, tmp_path, "default", **settings)


def create_batch_topic(java: JavaClient) -> None:
    """Create a topic with the attribute, and wait until the name server knows it."""
    words = ("-b", java.server.broker, "-t", "Bat", "-r", "2", "-w", "2")
    java.mqadmin("updateTopic", *words, "-a", "+queue.type=BatchCQ")
    wait_until(lambda: "Bat" in java.topics(), ARRIVAL_TIMEOUT_S, "route of Bat")


def send_batches(java: JavaClient, start: int) -> int:
    """Send numbers from one on, in batches of some sizes and alone; give the one behind."""
    producer = java.producer()
    for size in (1, 7, 2, 30, 5) * 12:
        batch = [Outgoing(body=b"%d" % (start + i), keys=f"n-{start + i}") for i in range(size)]
        producer.send_batch("Bat", batch)
        numbers = range(start + size, start + size + 2)  # two, for the queues take turns
        alone = [Outgoing(body=b"%d" % n, tags="Single", keys=f"alone-{n}") for n in numbers]
        producer.send("Bat", alone)
        start += size + 2
    return start


def batch_state(batches: Handover, java: JavaClient, count: int) -> list[dict[str, Any]]:
    """Wait for the numbers below one, check that each is there once, and give all messages."""
    wait_until(
        lambda: sum(java.max_offset("Bat", queue) for queue in (0, 1)) == count, ARRIVAL_TIMEOUT_S, f"{count} in Bat"
    )
    state = batches.state(java, Filled({}, {})).messages
    shown = [message for message in state if message["topic"] == "Bat"]
    shown.sort(key=lambda message: (message["queueId"], message["queueOffset"]))
    assert len(shown) == count
    for queue in (0, 1):
        offsets = [message["queueOffset"] for message in shown if message["queueId"] == queue]
        assert offsets == list(range(java.max_offset("Bat", queue)))
    return shown


def assert_batches(java: JavaClient, shown: list[dict[str, Any]]) -> None:
    """Check what else clients and tools ask of such queues."""
    consumer = java.pull_consumer("batch_group")
    middle = consumer.pull("Bat", 0, 5)
    assert middle.messages[0].queue_offset <= 5 < middle.next_offset
    tagged = consumer.pull("Bat", 0, 0, expression="Single")
    assert {message.tags for message in tagged.messages} == {"Single"}
    of_queue = [message for message in shown if message["queueId"] == 0]
    moment = of_queue[100]["storeTimestamp"]
    first = next(m for m in of_queue if m["storeTimestamp"] >= moment)
    assert java.search_offset("Bat", 0, moment) == first["queueOffset"]
    assert java.earliest_ms("Bat", 0) == of_queue[0]["storeTimestamp"]
    status = java.mqadmin("topicStatus", "-t", "Bat")
    assert re.search(rf"broker-a +0 +0 +{len(of_queue)} ", status), status


def queue_bytes(store: Path) -> dict[str, bytes]:
    """Return the files of all queues of batches."""
    return contents(store / "batchconsumequeue")


@pytest.mark.parametrize("kinds", BATCH_HANDOVERS)
def test_queues_of_batches_go_there_and_back(batches: Handover, kinds: tuple[Kind, Kind]) -> None:
    """Both brokers, in turn, add to queues of batches that the other one left, and serve them."""
    first, second = kinds
    with batches.opened_by(first) as java:
        create_batch_topic(java)
        count = send_batches(java, 0)
        before = batch_state(batches, java, count)
        assert_batches(java, before)
    assert len(list((batches.store / "batchconsumequeue/Bat/0").iterdir())) >= 3
    with batches.opened_by(second) as java:
        assert batch_state(batches, java, count) == before
        assert_batches(java, before)
        count = send_batches(java, count)
        after = batch_state(batches, java, count)
    with batches.opened_by(first) as java:
        assert batch_state(batches, java, count) == after
        assert_batches(java, after)
        # Keys of messages within a record are not indexed.
        assert [message.body for message in java.query_key("Bat", "alone-2")] == [b"2"]


def test_both_make_the_same_queues_of_batches_from_the_log(batches: Handover) -> None:
    """After each has lost them: the original and the broker under test, and both as they were."""
    with batches.opened_by("real") as java:
        create_batch_topic(java)
        count = send_batches(java, 0)
        before = batch_state(batches, java, count)
    written = queue_bytes(batches.store)
    for kind in (target_kind(), "real"):
        shutil.rmtree(batches.store / "batchconsumequeue")
        (batches.store / "abort").touch()
        with batches.opened_by(kind) as java:
            assert batch_state(batches, java, count) == before
        assert queue_bytes(batches.store) == written


# --- timers ---


def test_timers_go_on_after_a_handover(driver: Driver, tmp_path: Path) -> None:
    """What one has put on the wheel the other delivers, once, in its time, both ways."""
    handover = Handover(driver, tmp_path, "default")

    def send(java: JavaClient, name: bytes, delay_ms: int) -> list[int]:
        timed = [Outgoing(body=b"%s %d" % (name, i), delay=delay_ms) for i in range(10)]
        java.producer().send("Timed", timed)
        return [round(time.time() * 1000) + delay_ms] * 10

    with handover.opened_by("real") as java:
        java.create_topic("Timed", QUEUES)
        send(java, b"real", 15_000)
        time.sleep(2)  # so that it is on the wheel
    with handover.opened_by(target_kind()) as java:
        due_ms = send(java, b"target", 30_000)[0]
        wait_for_size(java, "Timed", 10)
    with handover.opened_by("real") as java:
        wait_for_size(java, "Timed", 20)
        found = java.pull_consumer().read("Timed")
    names = [b"real %d" % i for i in range(10)] + [b"target %d" % i for i in range(10)]
    assert sorted(message.body for message in found) == sorted(names)
    late = [message.store_timestamp for message in found if message.body.startswith(b"target")]
    assert min(late) >= due_ms - 1000
