"""`firearrow lag`: in messages, in time, and exactly under a filter."""

from __future__ import annotations

import pytest

from firearrow.cli.cluster.progress import Progress
from firearrow.cli.health.lag import lag_table
from firearrow.cli.output.reports import heading
from firearrow.client.blocking import Producer, PullConsumer
from firearrow.wire.client_bodies import MessageQueue, OffsetWrapper
from tests.cli.shell import Shell, shop

FOUND = [
    Progress("a", MessageQueue("t", "b", 0), OffsetWrapper(10, 5), 3_000, 2),
    Progress("a", MessageQueue("t", "b", 1), OffsetWrapper(7, -1), 90_000, 4),
    Progress("a", MessageQueue("u", "b", 0), OffsetWrapper(9, 9), 0, 0),
    Progress("z", MessageQueue("t", "b", 0), OffsetWrapper(10, 10), 0, None),
]


def test_messages_add_up_and_the_oldest_counts() -> None:
    by_group = lag_table(FOUND, "group", filtered=True)
    assert by_group.rows == [["a", 12, 90.0, 6], ["z", 0, 0.0, None]]
    assert by_group.note.startswith("filteredLag is only known")
    by_topic = lag_table(FOUND, "topic", at_least=1)
    assert (by_topic.rows, by_topic.note) == ([["a", "t", 12, 90.0]], "")
    by_queue = lag_table(FOUND, "queue")
    assert by_queue.rows[1] == ["a", "t", "b", 1, -1, 7, None, 7, 90.0]
    assert len(by_queue.columns) == len(by_queue.rows[0])


@pytest.mark.parametrize("kind", ["group", "topic", "queue"])
def test_no_two_columns_have_one_name(kind: str) -> None:
    headings = [*map(heading, lag_table(FOUND, kind, filtered=True).columns)]
    assert len({*headings}) == len(headings)


def test_a_group_is_as_far_as_it_has_committed(shell: Shell) -> None:
    with PullConsumer(shell.cluster.name_server, group="billing", auto_commit=False) as consumer:
        consumer.subscribe("orders", tags="paid")
        shell.commit("billing", 1, 3)
        rows = shell.rows("lag", "billing", "--by", "queue", "--topic", "orders", "--filtered")
        assert [(row["queueId"], row["offset"], row["lag"]) for row in rows] == [(0, 1, 2), (1, 3, 0)]
        # orders 2 and 4 are behind in the first queue, and both are paid
        assert [row["filteredLag"] for row in rows] == [2, 0]
        assert rows[0]["lagSeconds"] >= 0
        assert rows[1]["lagSeconds"] == 0
        shell.commit("billing", 0, 3)
        [row] = shell.rows("lag", "billing", "--topic", "orders", "--filtered")
        assert (row["lag"], row["filteredLag"]) == (3, 2)  # order 0 is open
    shell.commit("billing", 0, 3)
    [offline] = shell.rows("lag", "--filtered")
    assert (offline["group"], offline["lag"], offline["filteredLag"]) == ("billing", 3, None)
    assert shell.rows("lag", "x*") == []
    assert shell.fails("lag", "gone")[0] == 3


def test_what_an_expression_selects_is_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Orders 0, 2, 4 are in the first queue, 1, 3, 5 in the second; all but 0 and 3 are paid."""
    with shop(monkeypatch, enablePropertyFilter=True) as cluster:
        shell = Shell(cluster, capsys)
        with PullConsumer(cluster.name_server, group="late", auto_commit=False) as consumer:
            consumer.subscribe("orders", sql="number > 1 AND TAGS = 'paid'")
            words = ("lag", "late", "--topic", "orders", "--by", "queue", "--filtered")

            def counted() -> list[tuple[int, int]]:
                return [(row["lag"], row["filteredLag"]) for row in shell.rows(*words)]

            shell.commit("late", 0, 0)
            assert counted() == [(3, 2), (3, 1)]
            shell.commit("late", 2, 2)
            assert counted() == [(1, 1), (1, 1)]
            shell.commit("late", 3, 3)
            assert counted() == [(0, 0), (0, 0)]


def test_more_than_one_answer_holds_is_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with shop(monkeypatch, enablePropertyFilter=True) as cluster:
        shell = Shell(cluster, capsys)
        with Producer(cluster.name_server, group="shop") as producer:
            queue = producer.queues("orders")[1]
            for number in range(100):
                producer.send("orders", b"x", properties={"number": str(number)}, queue=queue)
        with PullConsumer(cluster.name_server, group="late", auto_commit=False) as consumer:
            consumer.subscribe("orders", sql="number >= 10")
            shell.commit("late", 3, 3)
            [row] = shell.rows("lag", "late", "--topic", "orders", "--filtered")
            assert (row["lag"], row["filteredLag"]) == (100, 90)
