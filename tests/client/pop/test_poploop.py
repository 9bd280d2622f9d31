"""Push consumers that pop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.client.message import Message
from firearrow.client.pop.poploop import POP_DELAYS_SECONDS, delay_seconds, exhausted_delay_seconds
from tests.broker.serving import seconds
from tests.client.cluster import Cluster, clustered
from tests.client.consuming import Sender, Taken, make_topic, push, until_in_time
from tests.loglines import told


def test_what_is_popped_is_consumed_once(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, one, other = Sender(session), Taken(), Taken()
            await sender.send(100)
            async with push(cluster, one, mode="pop"), push(cluster, other, mode="pop"):
                await until_in_time(lambda: len(one.messages) + len(other.messages) == 100, "all")
                await sender.send(100)
                await until_in_time(lambda: len(one.messages) + len(other.messages) == 200, "all")
            assert sorted(one.numbers + other.numbers) == sender.sent

    clustered(root, main)


def test_what_fails_comes_again_by_the_table(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken(failures=3)
            await sender.send()
            async with push(cluster, taken, mode="pop"):
                await taken.has(1)
                began = seconds()
                await taken.has(4)
                assert 100 <= seconds() - began < 110
            assert [message.reconsume_times for message in taken.messages] == [0, 1, 2, 3]
            assert {message.topic for message in taken.messages} == {"T"}

    clustered(root, main)


def test_a_handler_that_takes_longer_than_a_message_is_invisible(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, got = Sender(session), list[tuple[float, int]]()
            await sender.send()

            async def handler(message: Message) -> None:
                got.append((seconds(), message.reconsume_times))
                if len(got) == 1:
                    await asyncio.sleep(8)

            async with push(cluster, handler, mode="pop", invisible=5):
                await until_in_time(lambda: len(got) == 2, "it to come again")
                assert 5 <= got[1][0] - got[0][0] < 8
                await asyncio.sleep(60)
            assert [times for _, times in got] == [0, 1]

    clustered(root, main)
    late = "popped messages were consumed too late: they will be redelivered"
    assert [line["messages"] for line in told(caplog) if line["event"] == late] == [1]


def test_the_broker_says_how(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken()
            await sender.send(8)
            consumer = push(cluster, taken, mode="broker")
            async with consumer:
                await taken.has(8)
                assert consumer.queues["T"] == [("a", number) for number in range(4)]
                body = b'{"consumerGroup":"g","mode":"POP","popShareQueueNum":0,"topic":"T"}'
                await session.call("a", 401, body=body)
                await until_in_time(lambda: "T" not in consumer.queues, "pops")
                await sender.send(8)
                await taken.has(16)
            assert sorted(set(taken.numbers)) == sender.sent

    clustered(root, main)


# --- When popped messages come again ---


TWICE_THE_LAST_MS = 2 * 7200 * 1000


def test_each_failure_waits_as_long_as_with_the_java_client() -> None:
    assert [delay_seconds(times) for times in range(17)] == [*POP_DELAYS_SECONDS, 7200]


@pytest.mark.parametrize(("level", "seconds"), [(0, 60), (1, 30), (15, 7200), (99, 7200)])
def test_a_handler_may_ask_for_a_level(level: int, seconds: int) -> None:
    assert delay_seconds(2, level) == seconds


@pytest.mark.parametrize(
    ("age_ms", "seconds"), [(0, 10), (9_999, 10), (10_000, 30), (7_200_000, 7200), (TWICE_THE_LAST_MS, 7200)]
)
def test_what_failed_too_often_while_it_was_young_waits_once_more(age_ms: int, seconds: int) -> None:
    assert exhausted_delay_seconds(age_ms) == seconds


def test_what_failed_too_often_and_is_old_is_given_up() -> None:
    assert exhausted_delay_seconds(TWICE_THE_LAST_MS + 1) is None


@given(st.integers(0, 7_199_999))
def test_it_waits_for_longer_than_it_has_lived(age_ms: int) -> None:
    seconds = exhausted_delay_seconds(age_ms)
    assert seconds is not None
    assert seconds * 1000 > age_ms
