"""Inner batches: for each message the record that it would be alone."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.message.batch import BatchMember, encode_batch
from firearrow.message.hosts import pack_host
from firearrow.message.record import decode_record, encode_record
from firearrow.message.sysflag import BORN_HOST_V6, COMPRESSED, INNER_BATCH, NEED_UNWRAP
from firearrow.spark.columns.innerbatches import has_inner, unwrapped
from firearrow.spark.columns.messages import UndecodableRows
from firearrow.store.scan import Columns

WRAPPED = INNER_BATCH | NEED_UNWRAP
FOUR, SIX = pack_host(("10.0.0.1", 7)), pack_host(("2001:db8::1", 7))
ZLIB = 3 << 8


def record(
    body: bytes, properties: bytes, queue_offset: int, *, topic: str = "T", flag: int = 0, sys_flag: int = 0
) -> bytes:
    born = SIX if sys_flag & BORN_HOST_V6 else FOUR
    return encode_record(topic, body, properties, 3, queue_offset, 4096, flag, sys_flag, 11, born, 12, FOUR, 2, 5)


def batch(members: list[BatchMember], first: int, *, topic: str = "T", sys_flag: int = WRAPPED, more: int = 0) -> bytes:
    body = encode_batch(members)
    if sys_flag & COMPRESSED:
        body = zlib.compress(body)
    number = b"INNER_NUM\x01%d\x02" % (len(members) + more)
    return record(body, number, first, topic=topic, flag=9, sys_flag=sys_flag)


def columns_of(records: list[bytes]) -> Columns:
    sizes = np.array(list(map(len, records)), np.int64)
    buffer = b"".join(records)
    return Columns(buffer, sizes.cumsum() - sizes, len(buffer))


def pieces(columns: Columns, start: int, end: int) -> list[bytes]:
    found = unwrapped(columns, np.full(len(columns), start), np.full(len(columns), end))
    assert found.valid.all()
    return found.slices(found.position, found.size)


members = st.lists(
    st.builds(
        BatchMember,
        st.integers(-(1 << 31), (1 << 31) - 1),
        st.binary(max_size=40),
        st.sampled_from([b"", b"TAGS\x01A\x02", b"KEYS\x01\xe6\xa0\x87\x02", b"x" * 300]),
    ),
    min_size=1,
    max_size=6,
)


@given(
    batches=st.lists(members, min_size=1, max_size=4),
    topic=st.sampled_from(["T", "%RETRY%" + "g" * 200]),
    sys_flag=st.sampled_from([0, BORN_HOST_V6, COMPRESSED | ZLIB, BORN_HOST_V6 | COMPRESSED | ZLIB]),
    start=st.integers(0, 20),
    length=st.integers(0, 20),
)
def test_messages_are_as_if_they_were_stored_alone(
    batches: list[list[BatchMember]], topic: str, sys_flag: int, start: int, length: int
) -> None:
    stored = [record(b"single", b"", 0, topic=topic)]
    alone = [stored[0]]
    kept = WRAPPED | sys_flag & ~COMPRESSED
    for some in batches:
        stored.append(batch(some, len(alone), topic=topic, sys_flag=WRAPPED | sys_flag))
        alone += [
            record(body, properties, at, topic=topic, flag=flag, sys_flag=kept)
            for at, (flag, body, properties) in enumerate(some, len(alone))
        ]
    columns = columns_of(stored)
    assert has_inner(columns)
    assert pieces(columns, start, start + length) == alone[start : start + length]


def test_a_batch_that_clients_do_not_take_apart_stays_whole() -> None:
    member = BatchMember(0, b"a", b"")
    one = batch([member, member], 0, sys_flag=INNER_BATCH)
    assert not has_inner(columns_of([one, record(b"b", b"", 2)]))
    both = columns_of([one, batch([member], 2)])
    assert pieces(both, 0, 9)[0] == one


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (batch([BatchMember(0, b"a", b"")], 1, more=1), "the batch has 1 messages, but says 2"),
        (record(b"no batch", b"INNER_NUM\x011\x02", 1, sys_flag=WRAPPED), "8 bytes are too few"),
        (record(b"", b"INNER_NUM\x011\x02", 1, sys_flag=WRAPPED), "there are no messages"),
        (record(b"x", b"INNER_NUM\x011\x02", 1, sys_flag=WRAPPED | COMPRESSED | ZLIB), "not a whole ZLIB"),
    ],
)
def test_what_is_no_batch(bad: bytes, reason: str) -> None:
    columns = columns_of([record(b"single", b"", 0), bad, batch([BatchMember(0, b"a", b"")], 2)])
    with pytest.raises(UndecodableRows, match=reason) as caught:
        pieces(columns, 0, 9)
    assert caught.value.rows == [1]


def test_a_record_of_a_batch_says_where_it_came_from() -> None:
    stored = batch([BatchMember(4, b"a", b"TAGS\x01A\x02"), BatchMember(0, b"b", b"")], 7)
    first, second = (decode_record(piece) for piece in pieces(columns_of([stored]), 0, 99))
    outer = decode_record(stored)
    assert (first.queue_offset, second.queue_offset) == (7, 8)
    assert first.physical_offset == second.physical_offset == outer.physical_offset
    assert (first.flag, first.body, first.properties) == (4, b"a", {"TAGS": "A"})
    assert first.store_timestamp_ms == outer.store_timestamp_ms
    assert first.body_crc == zlib.crc32(b"a") & 0x7FFFFFFF
