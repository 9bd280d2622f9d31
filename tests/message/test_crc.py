"""The CRC is zlib's, whichever library computes it."""

from __future__ import annotations

import runpy
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.message import crc


@given(st.binary(max_size=2000), st.integers(0, 50))
def test_it_is_the_same_as_zlibs(data: bytes, start: int) -> None:
    assert crc.crc32(data) == zlib.crc32(data)
    assert crc.crc32(memoryview(data)[start:]) == zlib.crc32(data[start:])


def test_zlib_does_where_zlib_ng_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", None)
    assert runpy.run_path(str(Path(crc.__file__)))["crc32"] is zlib.crc32
    assert crc.crc32 is not zlib.crc32
