"""Push consumers in virtual time: deliveries, their count and order, and committed offsets."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from firearrow.client.consumer.groupcalls import GroupCalls, PullResult
from firearrow.client.consumer.handlers import Delivery, RetryLater
from firearrow.client.consumer.processqueue import Limits
from firearrow.client.consumer.subscription import StartFrom
from firearrow.client.message import Message
from firearrow.client.push.pushconsumer import PushConsumer
from firearrow.client.queues import Queue
from firearrow.errors import ClientError, ConfigError
from tests.broker.serving import seconds
from tests.client.cluster import Cluster, clustered
from tests.client.consuming import GROUP, Sender, Taken, committed, make_topic, push, until_in_time
from tests.loglines import told


def test_every_message_comes_once_and_is_committed_in_the_end(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken()
            await sender.send(100)
            async with push(cluster, taken) as consumer:
                await taken.has(100)
                await sender.send(100)
                await taken.has(200)
                assert consumer.queues["T"] == [("a", number) for number in range(4)]
            assert sorted(taken.numbers) == sender.sent
            assert committed(cluster) == {("a", number): 50 for number in range(4)}

    clustered(root, main)


def test_the_shape_of_the_readme(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session, "orders")
            sender = Sender(session, "orders")
            await sender.send(2, properties={"TAGS": "paid"})
            await sender.send(2, properties={"TAGS": "sent"})
            await sender.send(2, properties={"TAGS": "refunded"})
            got: list[str] = []
            consumer = PushConsumer(
                cluster.name_server, group="billing", start=StartFrom.FIRST, clock=cluster.clock, ip="127.0.0.1"
            )

            @consumer.on("orders", tags="paid || refunded", concurrency=64)
            async def bill(message: Message) -> None:
                got.append(message.text())
                if len(got) == 4:
                    await asyncio.sleep(0.1)
                    raise SystemError if len(got) > 4 else RetryLater

            running = asyncio.ensure_future(consumer.run())
            await until_in_time(lambda: len(got) == 5, "the one that failed to come again")
            consumer.stop()
            await running
            assert sorted(got[:4]) == ["0", "1", "4", "5"]
            assert got[4] == got[3]

    clustered(root, main)


def test_what_fails_comes_again_until_it_is_given_up(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken(failures=99)
            await sender.send()
            began = seconds()
            async with push(cluster, taken, max_reconsume_times=3):
                await until_in_time(lambda: len(taken.messages) == 4, "retries", 1000)
                assert seconds() - began > 10 + 30 + 60
                await asyncio.sleep(300)
            assert [message.reconsume_times for message in taken.messages] == [0, 1, 2, 3]
            assert {message.topic for message in taken.messages} == {"T"}
            assert {message.message_id for message in taken.messages} == {"T-000000"}
            [dead] = cluster.stored("%DLQ%g")
            assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"0", "T")

    clustered(root, main)


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "traced": {"trace": True},
    "batches": {"batch": 2},
    "manual": {"manual": True},
    "in order": {"ordered": True},
    "popped": {"mode": "pop", "invisible": 5},
}


@pytest.mark.parametrize("in_thread", [False, True], ids=["awaited", "in a thread"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_a_handler_awaits_may_be_cancelled(
    way: dict[str, Any], in_thread: bool, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has failed then, as by any other error: the worker goes on, its messages come again."""
    seen: list[int] = []

    def consume(got: Any) -> None:
        some = got if isinstance(got, list) else [got]
        again = [one for one in some if one.reconsume_times or int(one.body) in seen]
        seen.extend(int(one.body) for one in some)
        if len(again) < len(some):
            raise asyncio.CancelledError
        for one in some:
            if isinstance(one, Delivery):
                one.ack()

    async def awaited(got: Any) -> None:
        cancelled = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        try:
            consume(got)
        except asyncio.CancelledError:
            await cancelled

    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            await Sender(session).send(6, queue=0)
            async with push(cluster, consume if in_thread else awaited, concurrency=1, **way):
                await until_in_time(lambda: len(seen) >= 12, "messages and their retries")
        assert sorted(seen) == sorted([*range(6)] * 2)

    clustered(root, main)
    failures = [line for line in told(caplog) if line["event"] == "handler failed"]
    assert len(failures) >= 3
    assert {line["error"] for line in failures} == {"CancelledError: "}


@pytest.mark.slow
def test_two_thousand_retries_of_two_hours(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken(failures=1)
            await sender.send(2000)

            async def two_hours_later(message: Message) -> None:
                try:
                    await taken(message)
                except ValueError:
                    raise RetryLater(level=18) from None

            async with push(cluster, two_hours_later, concurrency=64):
                await taken.has(2000)
                began = seconds()
                await until_in_time(lambda: len(taken.messages) == 4000, "retries", 3 * 3600)
                assert seconds() - began >= 7199
            assert sorted(taken.numbers[2000:]) == sender.sent

    clustered(root, main)


def test_a_plain_function_runs_in_threads_and_failures_are_given_up_at_once_if_asked(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender = Sender(session)
            await sender.send(3)
            got: list[Message] = []

            def handler(message: Message) -> None:
                got.append(message)
                raise RetryLater("not for us", level=-1)

            async with push(cluster, handler):
                await until_in_time(lambda: len(got) == 3, "messages")
                await until_in_time(lambda: len(cluster.stored("%DLQ%g")) == 3, "dead letters")
            assert len(got) == 3

    clustered(root, main)


def test_as_many_handlers_as_are_allowed_run_at_once(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken(pause=0.5)
            await sender.send(40)
            async with push(cluster, taken, concurrency=7):
                await taken.has(40)
            assert taken.under_way_max == 7

    clustered(root, main)


def test_batches_are_of_one_queue_and_come_again_together(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender = Sender(session)
            await sender.send(40)
            batches: list[list[Message]] = []

            async def handler(messages: list[Message]) -> None:
                batches.append(messages)
                if messages[0].reconsume_times == 0 and messages[0].queue.queue_id == 1:
                    raise ValueError("queue 1 at first")

            async with push(cluster, handler, batch=8, concurrency=1):
                await until_in_time(lambda: sum(map(len, batches)) == 50, "messages")
            assert max(map(len, batches)) == 8
            assert all(len({one.queue for one in batch}) == 1 for batch in batches)
            again = [one for batch in batches for one in batch if one.reconsume_times]
            assert sorted(int(one.body) % 4 for one in again) == [1] * 10

    clustered(root, main)


def test_by_hand_a_message_is_consumed_when_it_is_said(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender = Sender(session)
            await sender.send(3, queue=0)
            got: list[Delivery] = []

            async def handler(delivery: Delivery) -> None:
                got.append(delivery)

            async with push(cluster, handler, manual=True) as consumer:
                await until_in_time(lambda: len(got) == 3, "messages")
                got[1].ack()
                await consumer.member.persist()
                assert committed(cluster).get(("a", 0), 0) == 0
                got[0].ack()
                got[0].ack()
                await consumer.member.persist()
                await until_in_time(lambda: committed(cluster).get(("a", 0)) == 2, "commit")
                await got[2].retry(level=1)
                await until_in_time(lambda: len(got) == 4, "the retry")
                assert (got[3].body, got[3].reconsume_times) == (b"2", 1)
                assert [one.is_settled for one in got] == [True, True, True, False]
                got[3].ack()
            assert committed(cluster)["a", 0] == 3

    clustered(root, main)


@pytest.mark.parametrize(
    ("start", "expected"), [(StartFrom.FIRST, [0, 1, 2, 3]), (StartFrom.LAST, [2, 3]), ("time", [1, 2, 3])]
)
def test_where_a_group_begins(root: Path, start: Any, expected: list[int]) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session, queues=1)
            sender, taken = Sender(session), Taken()
            await sender.send(queue=0)
            await asyncio.sleep(10)
            at = cluster.clock.now_ms()
            await sender.send(queue=0)
            await asyncio.sleep(10)
            wanted = start
            if start == "time":
                wanted = datetime.fromtimestamp(at / 1000, UTC)
            consumer = push(cluster, taken, start=wanted)
            async with consumer:
                await until_in_time(lambda: consumer.queues.get("T"), "queues")
                await asyncio.sleep(1)
                await sender.send(2, queue=0)
                await taken.has(len(expected))
                await asyncio.sleep(30)
            assert sorted(taken.numbers) == expected

    # A broker has a group without offsets begin at 0 while it has all of a queue in memory.
    clustered(root, main, store={"access_message_in_memory_max_ratio": 0})


def test_a_group_goes_on_where_it_was(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken()
            await sender.send(10)
            async with push(cluster, taken):
                await taken.has(10)
            await sender.send(10)
            async with push(cluster, taken, start=StartFrom.LAST):
                await taken.has(20)
            assert sorted(taken.numbers) == sender.sent

    clustered(root, main)


def test_by_sql_only_what_it_chooses_comes(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken()
            for price in range(10):
                await sender.send(properties={"price": str(price)})
            async with push(cluster, taken, sql="price BETWEEN 3 AND 5"):
                await taken.has(3)
                await asyncio.sleep(60)
            assert sorted(taken.numbers) == [3, 4, 5]

    clustered(root, main, enable_property_filter=True)


def test_an_expression_that_a_broker_cannot_read_ends_the_start(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            consumer = push(cluster, Taken(), sql="price >")
            with pytest.raises(ConfigError, match="topic 'T': the broker refuses 'price >': code 23"):
                await consumer.start()
            with pytest.raises(ClientError, match="'g' can't be started: it is closed"):
                await consumer.start()

    clustered(root, main, enable_property_filter=True)


def test_all_clients_get_all_and_find_their_place_again(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, one, other = Sender(session), Taken(), Taken()
            options: dict[str, Any] = {"broadcasting": True, "offsets_directory": root / "offsets"}
            await sender.send(8)
            async with push(cluster, one, instance="one", **options), push(cluster, other, instance="other", **options):
                await one.has(8)
                await other.has(8)
            await sender.send(8)
            async with push(cluster, one, instance="one", **options):
                await one.has(16)
            assert sorted(one.numbers) == sender.sent
            assert (root / "offsets" / "127.0.0.1@one" / GROUP / "offsets.json").exists()

    clustered(root / "cluster", main)


def test_a_pull_commits_nothing_while_messages_before_it_are_consumed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be outdated soon, and a busy broker might take it after the commit of a stop."""
    told: list[tuple[int, int]] = []
    pull = GroupCalls.pull

    async def noted(self: GroupCalls, queue: Queue, queue_offset: int, *args: Any, **options: Any) -> PullResult:
        told.append((queue_offset, options["committed"]))
        return await pull(self, queue, queue_offset, *args, **options)

    monkeypatch.setattr(GroupCalls, "pull", noted)

    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken(pause=1)
            async with push(cluster, taken, concurrency=1):
                for count in (8, 16):
                    await sender.send(8)
                    await taken.has(count)
                await asyncio.sleep(60)
        assert all(committed in (-1, 0, queue_offset) for queue_offset, committed in told)
        assert any(committed > 0 for _, committed in told)

    clustered(root, main)


def test_when_a_handler_ends_late_its_message_is_consumed_before_the_end(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken(pause=5)
            await sender.send(4)
            consumer = push(cluster, taken)
            await consumer.start()
            await until_in_time(lambda: taken.under_way == 4, "handlers")
            await consumer.close()
            assert len(taken.messages) == 4
            assert sum(committed(cluster).values()) == 4

    clustered(root, main)


def test_a_handler_that_does_not_end_is_cancelled_and_its_message_is_not_committed(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken(pause=1e6)
            await sender.send(1)
            consumer = push(cluster, taken, drain=2)
            await consumer.start()
            await until_in_time(lambda: taken.under_way == 1, "handlers")
            began = seconds()
            await consumer.close()
            assert 2 <= seconds() - began < 10
            assert (taken.messages, taken.under_way) == ([], 0)
            assert not any(committed(cluster).values())

    clustered(root, main)


def test_a_handler_that_takes_too_long_does_not_hold_up_its_queue(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, got = Sender(session), list[Message]()
            await sender.send(2, queue=0)

            async def handler(message: Message) -> None:
                got.append(message)
                if message.body == b"0" and message.reconsume_times == 0:
                    await asyncio.sleep(2000)

            async with push(cluster, handler):
                await until_in_time(lambda: len(got) == 3, "the retry", 1500)
                assert (got[2].body, got[2].reconsume_times) == (b"0", 1)
                await until_in_time(lambda: committed(cluster).get(("a", 0)) == 2, "commit")
                await asyncio.sleep(1500)
            assert len(got) == 3

    clustered(root, main)


def test_what_is_pulled_ahead_is_limited(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
            sender, taken = Sender(session), Taken(pause=1)
            await sender.send(800)
            limits = Limits(messages=50)
            async with push(cluster, taken, topic_limits=limits, concurrency=4) as consumer:
                await taken.has(8)
                cached = [len(one.cache) for one in consumer.member.queues.values()]
                assert 50 < sum(cached) <= 50 + 4 * 32
                consumer.pause()
                await asyncio.sleep(60)
                so_far = len(taken.messages)
                assert so_far < 300
                consumer.resume()
                await taken.has(so_far + 50)

    clustered(root, main)


def test_settings_that_cannot_be_are_named(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        with pytest.raises(ConfigError, match="mode 'pop' is neither ordered nor broadcasting"):
            PushConsumer(cluster.name_server, group=GROUP, ordered=True, mode="pop")
        with pytest.raises(ConfigError, match="invisible=3 s: allowed is 5 to 300 s"):
            PushConsumer(cluster.name_server, group=GROUP, mode="pop", invisible=3)
        consumer = push(cluster, Taken())
        with pytest.raises(ConfigError, match="a handler for topic 'T' already"):
            consumer.subscribe("T", Taken())
        with pytest.raises(ConfigError, match="'X': the concurrency 0 is below 1"):
            consumer.subscribe("X", Taken(), concurrency=0)
        with pytest.raises(ConfigError, match="names no tag"):
            consumer.subscribe("X", Taken(), tags="||")
        with pytest.raises(ConfigError, match="no handler for any topic"):
            await PushConsumer(cluster.name_server, group=GROUP).start()
        dead = PushConsumer("127.0.0.1:1", group=GROUP, clock=cluster.clock, ip="127.0.0.1")
        dead.subscribe("T", Taken())
        with pytest.raises(ConnectionError, match="no name server answers"):
            await dead.start()

    clustered(root, main)


def test_names_without_a_namespace_are_what_handlers_see(root: Path) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session(namespace="ns") as session:
            await make_topic(cluster, session, "ns%T")
            sender, taken = Sender(session, "ns%T"), Taken(failures=1)
            await sender.send(2)
            async with push(cluster, taken, namespace="ns"):
                await taken.has(4)
            assert {message.topic for message in taken.messages} == {"T"}
            assert {message.queue.topic for message in taken.messages} == {"ns%T", "%RETRY%ns%g"}
            assert sum(committed(cluster, "ns%T", "ns%g").values()) == 2

    clustered(root, main)
