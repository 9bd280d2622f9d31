"""The CRC of many pieces together is zlib's of each, and a scan takes the one way or the other."""

import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from firearrow.message.record import encode_record
from firearrow.store.crc import ROW_BYTES_MAX, ROWS_MIN, crc32_of_rows
from firearrow.store.scan import scan
from tests.store.stores import BORN_HOST, STORE_HOST


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_each_row_has_the_crc_that_zlib_gives(count: int, size: int, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 256, (count, size), dtype=np.uint8)
    assert crc32_of_rows(rows).tolist() == [zlib.crc32(row.tobytes()) for row in rows]


def test_known_value() -> None:
    rows = np.frombuffer(b"123456789", np.uint8).reshape(1, 9)
    assert crc32_of_rows(rows).tolist() == [0xCBF43926]


def record(body: bytes) -> bytes:
    return encode_record("T", body, b"", 0, 0, 0, 0, 0, 1, BORN_HOST, 2, STORE_HOST)


def test_one_altered_body_among_many_of_one_length() -> None:
    for size in (1, 130, ROW_BYTES_MAX, ROW_BYTES_MAX + 1):
        log = bytearray(record(b"x" * size) * ROWS_MIN)
        each = len(log) // ROWS_MIN
        columns = scan(log, 0, len(log))
        assert columns.body_crc_holds().all()
        log[1000 * each + 88] ^= 1
        assert scan(log, 0, len(log)).body_crc_holds().nonzero()[0].tolist() == [
            number for number in range(ROWS_MIN) if number != 1000
        ]
