"""Choice of a queue: in turn, by key, and away from slow or unreachable brokers."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.client import Producer, Rules
from firearrow.client.producer.choosing import (
    AVOIDED_MS,
    LATENCIES_MS,
    Detector,
    FaultTable,
    Turns,
    avoided_ms,
    by_hash,
    choose,
)
from firearrow.client.queues import Queue
from tests.broker.serving import until
from tests.client.cluster import Cluster, clustered
from tests.client.consuming import make_topic

QUEUES = st.lists(st.builds(Queue, st.just("T"), st.sampled_from("abc"), st.integers(0, 7)), min_size=1, unique=True)
STARTS = st.integers(0, 0x7FFF_FFFF)


@given(QUEUES, STARTS)
def test_each_queue_has_its_turn(queues: list[Queue], start: int) -> None:
    turns = Turns(start)
    rounds = [[choose(queues, turns) for _ in queues] for _ in range(3)]
    # where the number begins again at 0, as it does after 2^31 turns, one round is not even
    assert sum(Counter(some) == Counter(queues) for some in rounds) >= 2


@given(QUEUES, STARTS, st.sampled_from("abc"))
def test_the_broker_that_failed_is_avoided_if_there_is_another(queues: list[Queue], start: int, avoided: str) -> None:
    chosen = choose(queues, Turns(start), avoided=avoided)
    others = {queue.broker for queue in queues} - {avoided}
    assert chosen in queues
    assert (chosen.broker != avoided) == bool(others)


@given(
    QUEUES,
    STARTS,
    st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 20_000), st.booleans())),
    st.sampled_from(["a", "b", "c", None]),
)
def test_the_best_that_there_is(
    queues: list[Queue], start: int, history: dict[str, tuple[int, bool]], avoided: str | None
) -> None:
    faults = FaultTable()
    for broker, (latency_ms, gone) in history.items():
        faults.note(broker, latency_ms, 1000, gone=gone)
    chosen = choose(queues, Turns(start), avoided=avoided, faults=faults, now_ms=1000)

    def rank(queue: Queue) -> int:
        if queue.broker == avoided:
            return 3
        if faults.is_available(queue.broker, 1000):
            return 0
        return 1 if faults.is_reachable(queue.broker) else 2

    assert rank(chosen) == min(map(rank, queues))


@given(st.integers(0, 100_000))
def test_who_was_slower_is_left_alone_longer(latency_ms: int) -> None:
    assert avoided_ms(latency_ms) <= avoided_ms(latency_ms + 1)


@pytest.mark.parametrize(
    ("latency_ms", "alone_ms"),
    [(0, 0), (49, 0), *zip(LATENCIES_MS, AVOIDED_MS, strict=True), (549, 0), (99_999, 30_000)],
)
def test_the_table(latency_ms: int, alone_ms: int) -> None:
    assert avoided_ms(latency_ms) == alone_ms
    faults = FaultTable()
    faults.note("a", latency_ms, 5000)
    assert faults.is_available("a", 5000 + alone_ms)
    assert faults.is_available("a", 5000 + alone_ms - 1) == (alone_ms == 0)


def test_a_failure_counts_as_ten_seconds_until_the_next_success() -> None:
    faults = FaultTable()
    faults.note("a", 3, 0, failed=True, gone=True)
    assert not faults.is_available("a", 9999)
    assert not faults.is_reachable("a")
    faults.note("a", 3, 5000)
    assert faults.is_available("a", 5000)
    assert faults.is_reachable("a")


@pytest.mark.parametrize(
    ("key", "queue_id"), [("", 0), ("a", 97 % 7), ("polygenelubricants", (1 << 31) % 7), ("ö", 246 % 7)]
)
def test_a_key_has_the_queue_of_its_java_hash(key: str, queue_id: int) -> None:
    queues = [Queue("T", "a", number) for number in range(7)]
    assert by_hash(queues, key) == queues[queue_id]


# --- Brokers that gave no answer are asked until they do, and nobody is asked otherwise ---


NAME = "brokers that do not answer"


def asking() -> bool:
    """Whether a task asks."""
    return any(task.get_name() == NAME for task in asyncio.all_tasks())


def test_who_does_not_answer_is_asked_until_it_does(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            faults = FaultTable()
            queues = {name: Queue("T", name, 0) for name in ("a", "b")}
            detecting = Detector(session, faults, queues.get)
            for broker in ("a", "b", "in no route"):
                faults.note(broker, 0, cluster.clock.now_ms(), failed=True, gone=True)
            port = await cluster.stop_broker("b")
            detecting.soon()
            detecting.soon()
            await asyncio.sleep(10)
            assert faults.unreachable == {"b"}
            assert asking()
            await cluster.start_broker("b", port)
            await until(lambda: faults.is_reachable("b"))
            await until(lambda: not asking())

    clustered(tmp_path, main, ("a", "b"))


def test_a_producer_has_them_asked_if_it_is_to(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            for detects in (True, False):
                rules = Rules(retries=5, timeout_seconds=30, avoids_slow=True, detects=detects)
                port = await cluster.stop_broker("b")
                async with Producer(session, group="shop", rules=rules) as producer:
                    receipts = [await producer.send("T", b"x") for _ in range(8)]
                    assert {one.queue.broker for one in receipts} == {"a"}
                    assert asking() == detects
                await cluster.start_broker("b", port)
                await until(lambda: not asking())
                await session.refresh("T")

    clustered(tmp_path, main, ("a", "b"))
