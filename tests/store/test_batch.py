"""Batches by columns against records encoded one at a time."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from firearrow.errors import MessageError
from firearrow.message.batch import BatchMember, encode_batch, split_batch
from firearrow.message.hosts import Host, pack_host
from firearrow.message.ids import encode_offset_id
from firearrow.message.record import encode_record
from firearrow.store import BatchPart, DiskFull, MessageStore, members_alike, members_of, offset_ids
from firearrow.store.batch import append_batch
from firearrow.store.fs import FileSystem
from tests.broker.fakes import HandClock
from tests.store.stores import BORN_HOST, BORN_MS, KiB, append, make_store, opened, settle

V6 = pack_host(Host("2001:db8::7", 4711))

irregular = st.lists(
    st.builds(BatchMember, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40), st.binary(max_size=20)),
    min_size=1,
    max_size=8,
)
regular = st.builds(
    lambda body, properties, flags: [BatchMember(flag, body, properties) for flag in flags],
    st.binary(max_size=40),
    st.binary(max_size=20),
    st.lists(st.integers(0, 5), min_size=1, max_size=20),
)


def put(store: MessageStore, body: bytes, born_host: bytes = BORN_HOST) -> list[int]:
    members = members_of(body)
    part = BatchPart(store.queue("T", 1), len(members), 1, BORN_MS, 3, born_host)
    appended = append_batch(store.log, members, [part], BORN_MS + 9)
    return [int(offset) for offset in appended.physical_offsets]


@pytest.fixture(scope="module", params=["127.0.0.1", "::1"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    """A store that all examples write to; each looks at what it wrote itself."""
    root = tmp_path_factory.mktemp("batch")
    store = make_store(root, store_host=pack_host(Host(request.param, 10911)))
    store.open()
    yield store
    store.close()


@given(members=regular | irregular, born_host=st.sampled_from([BORN_HOST, V6]))
@example(members=[BatchMember(0, b"", b"")], born_host=BORN_HOST)
@example(members=[BatchMember(0, b"ab", b"c"), BatchMember(0, b"a", b"bc")], born_host=V6)
def test_members_are_stored_as_if_sent_one_by_one(
    store: MessageStore, members: list[BatchMember], born_host: bytes
) -> None:
    first = store.queue("T", 1).next_offset
    offsets = put(store, encode_batch(members), born_host)
    assert store.queue("T", 1).next_offset == first + len(members)
    assert len(offsets) == len(members)
    for number, (member, offset) in enumerate(zip(members, offsets, strict=True)):
        record = encode_record(
            "T", member.body, member.properties, 1, first + number, offset, member.flag, 1,
            BORN_MS, born_host, BORN_MS + 9, store.log.store_host, 3,
        )  # fmt: skip
        assert store.log.record(offset, len(record)) == record
    assert store.log.end_offset == offset + len(record)


def born_at(number: int) -> bytes:
    return BORN_HOST[:-1] + bytes([number & 0xFF])


@given(
    parts=st.lists(st.tuples(st.integers(0, 2), st.integers(-5, 5)), min_size=1, max_size=6),
    count=st.integers(1, 70),
    body=st.binary(max_size=40),
    properties=st.binary(max_size=20),
)
def test_batches_appended_together_are_stored_as_if_alone(
    store: MessageStore, parts: list[tuple[int, int]], count: int, body: bytes, properties: bytes
) -> None:
    members = members_alike([encode_batch([(5, body, properties)] * count)] * len(parts))
    assert members is not None
    queues = [store.queue("T", queue_id) for queue_id, _ in parts]
    expected = {queue_id: store.queue("T", queue_id).next_offset for queue_id in range(3)}
    appended = append_batch(
        store.log,
        members,
        [
            BatchPart(queue, count, 1, BORN_MS + number, number, born_at(number))
            for queue, (_, number) in zip(queues, parts, strict=True)
        ],
        BORN_MS + 9,
    )
    offsets = iter(appended.physical_offsets.tolist())
    for (queue_id, number), first in zip(parts, appended.queue_offsets, strict=True):
        assert first == expected[queue_id]
        for queue_offset in range(first, first + count):
            offset = next(offsets)
            record = encode_record(
                "T", body, properties, queue_id, queue_offset, offset, 5, 1, BORN_MS + number,
                born_at(number), BORN_MS + 9, store.log.store_host, number,
            )  # fmt: skip
            assert store.log.record(offset, len(record)) == record
        expected[queue_id] += count
    assert store.log.end_offset == offset + len(record)
    assert {n: store.queue("T", n).next_offset for n in range(3)} == expected


@pytest.mark.parametrize(
    "bodies",
    [
        [encode_batch([(0, b"ab", b"")]), encode_batch([(0, b"a", b"")])],
        [encode_batch([(0, b"ab", b"")]), encode_batch([(0, b"a", b"c")])],
        [encode_batch([(0, b"a", b"")]), encode_batch([(1, b"a", b"")])],
        [encode_batch([(0, b"a", b"")] * 2), encode_batch([(0, bytes(24), b"")])],
        [encode_batch([(0, b"a", b"")])[:12], encode_batch([(0, b"a", b"")])[11:]],
        [b"", b""],
        [bytes(30), bytes(30)],
    ],
)
def test_batches_that_are_not_alike(bodies: list[bytes]) -> None:
    assert members_alike(bodies) is None


@pytest.mark.parametrize("host", [Host("10.0.0.7", 10911), Host("2001:db8::7", 4711)])
@pytest.mark.parametrize("places", [[0], [0, 281, 1 << 40]])
def test_ids(host: Host, places: list[int]) -> None:
    ids = offset_ids(pack_host(host), np.array(places)).decode()
    assert ids == ",".join(encode_offset_id(host, place) for place in places)


@given(
    members=irregular,
    left_out=st.integers(0, 60),
    damage=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=3),
)
def test_what_is_a_batch_does_not_depend_on_the_reader(
    members: list[BatchMember], left_out: int, damage: list[tuple[int, int]]
) -> None:
    body = bytearray(encode_batch(members))
    for at, byte in damage:
        body[at % len(body)] = byte
    damaged = bytes(body[: max(len(body) - left_out, 0)])
    try:
        expected = split_batch(damaged)
    except MessageError as error:
        with pytest.raises(MessageError, match=re.escape(str(error))):
            members_of(damaged)
        return
    found = members_of(damaged)
    count = len(found)  # of a regular batch, columns are one number
    assert np.broadcast_to(found.flag, count).tolist() == [member.flag for member in expected]
    sizes = np.broadcast_to(found.body_size, count).tolist()
    assert sizes == [len(member.body) for member in expected]
    assert int(np.broadcast_to(found.size, count).sum()) == len(damaged)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0",
        bytes(22),
        (23).to_bytes(4) + bytes(18),
        encode_batch([(0, b"a", b"")]) + b"\0\0\0",
        encode_batch([(0, b"a", b"")])[:-1],
        (24).to_bytes(4) + bytes(12) + (3).to_bytes(4) + bytes(4),
        (24).to_bytes(4) + bytes(12) + (0xFFFFFFFF).to_bytes(4) + bytes(4),
        (22).to_bytes(4) + bytes(16) + b"\xff\xff",
    ],
)
def test_broken_batches(store: MessageStore, body: bytes) -> None:
    before = store.log.end_offset
    with pytest.raises(MessageError):
        put(store, body)
    assert store.log.end_offset == before


def test_a_batch_stays_in_one_file(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append(store, bytes(40 * KiB))
        offsets = put(store, encode_batch([(0, bytes(1000), b"")] * 30))
        assert offsets[0] == 64 * KiB
        settle(store)
        assert store.max_queue_offset("T", 1) == 30


def test_a_batch_too_large_for_a_file(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append(store, b"before")
        end = store.log.end_offset
        with pytest.raises(MessageError, match="does not fit a CommitLog file of 65536"):
            put(store, encode_batch([(0, bytes(1000), b"")] * 70))
        assert store.log.end_offset == end
        assert store.queue("T", 1).next_offset == 0


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandClock()
    with opened(tmp_path, clock=clock) as store:
        append(store, bytes(60 * KiB))
        end = store.log.end_offset
        body = encode_batch([(0, bytes(1000), b"")] * 10)

        def full(fs: FileSystem, path: Path, size_bytes: int, reserved_bytes: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(FileSystem, "create_file", full)
            with pytest.raises(DiskFull):
                put(store, body)
        assert store.log.end_offset == end
        assert store.queue("T", 1).next_offset == 0
        clock.seconds += 1
        assert put(store, body)[0] == 64 * KiB
