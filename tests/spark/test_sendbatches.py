"""Rows cut into batches: nothing is lost, nothing changes places in its queue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.client.routing.queues import Target
from firearrow.errors import MessageError
from firearrow.message.batch import split_batch
from firearrow.spark.outgoing import Ids, Rows, rows_of
from firearrow.spark.sendbatches import BATCH_BYTES_MAX, pieces_of

TARGETS = [Target("a", "a:1", 0), Target("a", "a:1", 1), Target("b", "b:1", 0)]
NAMES = ["T", "U", "%RETRY%g"]


def no_targets(topic: str) -> list[Target]:
    raise AssertionError(f"nobody has to know the queues of {topic}")


def encoded(**columns: Any) -> Rows:
    return rows_of(pa.RecordBatch.from_pydict(columns), Ids("0" * 20), "T", None)


def bodies(members: bytes) -> list[bytes]:
    return [member.body for member in split_batch(members)]


ROW = st.tuples(
    st.sampled_from(NAMES),
    st.none() | st.integers(0, 1),
    st.none() | st.sampled_from(["k1", "k2", "k3"]),
    st.none() | st.just(1),
)


@given(st.lists(ROW, max_size=60), st.integers(1, 9), st.booleans(), st.booleans())
def test_every_row_is_in_one_piece_and_in_order(
    table: list[tuple[str, int | None, str | None, int | None]], count_max: int, with_queues: bool, with_keys: bool
) -> None:
    topics, queue_ids, keys, delays = map(list, zip(*table, strict=True)) if table else [[]] * 4
    columns: dict[str, Any] = {
        "body": pa.array([b"%d" % number for number in range(len(table))], pa.binary()),
        "topic": pa.array(topics, pa.string()),
        "delayLevel": pa.array(delays, pa.int32()),
    }
    if with_queues:
        columns["queueId"] = pa.array(queue_ids, pa.int32())
    if with_keys:
        columns["orderKey"] = pa.array(keys, pa.string())
    rows = encoded(**columns)
    pieces = list(pieces_of(rows, lambda _: TARGETS, count_max))
    places: dict[tuple[str, Target | None, bool], list[int]] = {}
    keys_of: dict[tuple[str, str], set[Target | None]] = {}
    for piece in pieces:
        numbers = [int(body) for body in bodies(piece.members)]
        assert len(numbers) == piece.messages
        assert piece.messages <= (1 if piece.alone else count_max)
        places.setdefault((piece.topic, piece.target, piece.alone), []).extend(numbers)
        for number in numbers:
            topic, queue_id, key, delay = table[number]
            assert piece.topic == topic
            assert piece.alone == (delay is not None or topic == "%RETRY%g")
            if with_queues and queue_id is not None:
                assert piece.target == {0: TARGETS[0], 1: TARGETS[1]}[queue_id]
            elif with_keys and key is not None:
                keys_of.setdefault((topic, key), set()).add(piece.target)
            else:
                assert piece.target is None
    found = sorted(number for numbers in places.values() for number in numbers)
    assert found == list(range(len(table)))
    assert all(numbers == sorted(numbers) for numbers in places.values())
    assert all(len(targets) == 1 and None not in targets for targets in keys_of.values())


def test_a_piece_has_no_more_bytes_than_it_may_but_for_one_message() -> None:
    sizes = [400_000, 400_000, 400_000, BATCH_BYTES_MAX + 1, 10, 10]
    rows = encoded(body=pa.array([bytes(size) for size in sizes]))
    pieces = [list(map(len, bodies(piece.members))) for piece in pieces_of(rows, no_targets, 100)]
    assert pieces == [[400_000, 400_000], [400_000], [BATCH_BYTES_MAX + 1], [10, 10]]


def test_the_queue_of_a_number_that_several_brokers_have() -> None:
    """The number decides on the broker, so that the rows of one number stay together."""
    several = [Target(name, name, n) for name in ("a", "b") for n in range(4)]
    rows = encoded(body=pa.array([b""] * 8), queueId=pa.array([0, 1, 2, 3] * 2))
    targets = [piece.target for piece in pieces_of(rows, lambda _: several, 9)]
    found = {(target.queue_id, target.broker_name) for target in targets if target is not None}
    assert found == {(0, "a"), (1, "b"), (2, "a"), (3, "b")}


@pytest.mark.parametrize("queue_id", [2, 1 << 30])
def test_a_queue_that_a_topic_has_not(queue_id: int) -> None:
    rows = encoded(body=pa.array([b"", b""]), queueId=pa.array([0, queue_id]))
    with pytest.raises(MessageError, match=f"topic 'T' has no queue {queue_id} .* but 0 to 1"):
        list(pieces_of(rows, lambda _: TARGETS, 10))


def test_all_rows_alike_are_not_moved() -> None:
    rows = encoded(body=pa.array([b"%d" % n for n in range(10)]))
    assert not np.any(rows.topic_number)
    assert [bodies(piece.members) for piece in pieces_of(rows, no_targets, 5)] == [
        [b"0", b"1", b"2", b"3", b"4"],
        [b"5", b"6", b"7", b"8", b"9"],
    ]
