"""Columns of records, where a batch alone decides: sizes, kinds of hosts, bodies that grow."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from firearrow.message.hosts import Host, pack_host
from firearrow.message.record import encode_record
from firearrow.message.sysflag import COMPRESSED
from firearrow.spark.columns.messages import BatchTooLarge, MessageColumns, UndecodableRows, timestamps
from firearrow.spark.tables import MESSAGES
from firearrow.store.scan import scan
from tests.spark import logs, oracle
from tests.spark.source.test_files import by_place, read

FOUR, SIX = pack_host(Host("10.0.0.1", 80)), pack_host(Host("2001:db8::1", 443))


def messages(*records: tuple[bytes, bytes, bytes, int]) -> MessageColumns:
    """Records of bodies, hosts and system flags as a scan has them."""
    data, place = b"", 0
    for body, born, stored, flag in records:
        data += encode_record("T", body, b"", 0, 0, place, 0, flag, 1, born, 2, stored)
        place = len(data)
    return MessageColumns(scan(data, 0, len(data)), "b")


@pytest.mark.parametrize("born", [(FOUR, FOUR), (SIX, SIX), (FOUR, SIX), (SIX, FOUR)])
@pytest.mark.parametrize("stored", [(FOUR, FOUR), (SIX, SIX), (FOUR, SIX), (SIX, FOUR)])
def test_hosts_of_both_kinds(born: tuple[bytes, bytes], stored: tuple[bytes, bytes]) -> None:
    texts = {FOUR: "10.0.0.1:80", SIX: "2001:db8::1:443"}
    found = messages(*((b"", one, other, 0) for one, other in zip(born, stored, strict=True)))
    assert found.column("bornHost", pa.string()).to_pylist() == [texts[host] for host in born]
    assert found.column("storeHost", pa.string()).to_pylist() == [texts[host] for host in stored]
    ids = found.column("offsetMsgId", pa.string()).to_pylist()
    places = found.columns.physical_offset.tolist()
    assert ids == [f"{host.hex()}{place:016x}".upper() for host, place in zip(stored, places, strict=True)]


def test_no_records_are_an_empty_batch() -> None:
    batch = MessageColumns(scan(b"", 0, 0), "b").batch(MESSAGES)
    assert batch.num_rows == 0
    assert batch.schema == MESSAGES


def test_times_beyond_all_calendars_do_not_overflow() -> None:
    most = (1 << 63) - 1
    found = timestamps(np.array([0, 5, most, -most - 1], np.int64)).cast(pa.int64()).to_pylist()
    assert found[:2] == [0, 5000]
    assert found[2] > 1 << 62
    assert found[3] < -(1 << 62)


def test_rows_that_can_not_be_decompressed_are_named() -> None:
    found = messages(
        (zlib.compress(b"good"), FOUR, FOUR, COMPRESSED), (b"bad", FOUR, FOUR, COMPRESSED), (b"plain", FOUR, FOUR, 0)
    )
    with pytest.raises(UndecodableRows, match="not a whole ZLIB stream") as raised:
        found.batch(MESSAGES)
    assert raised.value.rows == [1]


def test_bodies_that_grow_are_read_in_smaller_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "s"
    logs.write(root, [logs.Sent(body=bytes([n]) * 900, kind=3) for n in range(8)])
    monkeypatch.setattr("firearrow.spark.columns.messages.BATCH_BYTES_MAX", 2000)
    packed = zlib.compress(b"x" * 1500)
    with pytest.raises(BatchTooLarge):
        messages(*[(packed, FOUR, FOUR, COMPRESSED)] * 2).batch(MESSAGES)
    found = by_place(read(root))
    assert [row["body"] for row in found] == [row["body"] for row in oracle.log(root, "")]
