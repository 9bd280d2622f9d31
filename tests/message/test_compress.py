"""Body compression: round trips, damage, bombs and missing packages."""

import sys
import zlib
from contextlib import suppress

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import ConfigError, MessageError
from firearrow.message.compress import Compression, compress, compression_of, decompress
from tests.message.writing import with_compression

KINDS = list(Compression)
kinds = st.sampled_from(KINDS)


@given(st.binary(max_size=2000), kinds, st.integers(1, 9))
def test_what_is_compressed_comes_back(body: bytes, kind: Compression, level: int) -> None:
    packed = compress(body, kind, level)
    assert decompress(packed, with_compression(0, kind)) == body


def test_bodies_that_are_not_compressed_come_back_as_they_are() -> None:
    assert decompress(b"plain", 0x8) == b"plain"
    assert compression_of(0x300) is None


@pytest.mark.parametrize(("kind", "flag"), [(1, 257), (2, 513), (3, 769)])
def test_flags_that_java_clients_set(kind: int, flag: int) -> None:
    assert with_compression(0, Compression(kind)) == flag
    assert compression_of(flag) is Compression(kind)


def test_flags_keep_their_other_bits() -> None:
    assert with_compression(0x708, Compression.LZ4) == 0x109


def test_old_clients_compressed_with_zlib_and_named_no_kind() -> None:
    assert decompress(zlib.compress(b"old"), 0x1) == b"old"


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(MessageError, match="4 is not a kind of compression"):
        decompress(b"", 0x401)


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_may_just_fill_the_limit(kind: Compression) -> None:
    packed = compress(b"x" * 1000, kind)
    flag = with_compression(0, kind)
    assert len(decompress(packed, flag, 1000)) == 1000
    with pytest.raises(MessageError, match="999 bytes"):
        decompress(packed, flag, 999)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_is_refused(kind: Compression) -> None:
    bomb = compress(bytes(65 << 20), kind, 9)
    assert len(bomb) < 1 << 20
    with pytest.raises(MessageError, match=f"{64 << 20} bytes"):
        decompress(bomb, with_compression(0, kind))


def stream_zstd(body: bytes) -> bytes:
    """Compress as Java's stream does: the frame does not declare its size."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(body) + stream.flush()


def test_zstandard_frames_without_a_declared_size() -> None:
    packed = stream_zstd(b"x" * 1000)
    assert zstandard.frame_content_size(packed) == -1
    assert decompress(packed, 513) == b"x" * 1000
    with pytest.raises(MessageError, match="999 bytes"):
        decompress(packed, 513, 999)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_body_is_refused_wherever_it_is_cut(kind: Compression) -> None:
    packed = compress(b"the quick brown fox " * 20, kind)
    for end in range(len(packed)):
        with pytest.raises(MessageError, match="not a whole"):
            decompress(packed[:end], with_compression(0, kind))


@given(st.binary(max_size=100), kinds)
def test_random_bytes_are_refused_or_read(body: bytes, kind: Compression) -> None:
    with suppress(MessageError):
        assert len(decompress(body, with_compression(0, kind), 10_000)) <= 10_000


@given(st.integers(0, 10_000), st.integers(0, 255), kinds)
def test_damaged_bodies_are_refused_or_read(at: int, byte: int, kind: Compression) -> None:
    packed = bytearray(compress(b"the quick brown fox " * 20, kind))
    packed[at % len(packed)] = byte
    with suppress(MessageError):
        assert len(decompress(bytes(packed), with_compression(0, kind), 10_000)) <= 10_000


@pytest.mark.parametrize(
    ("kind", "module", "package"), [(Compression.LZ4, "lz4.frame", "lz4"), (Compression.ZSTD, "zstandard", "zstandard")]
)
def test_a_missing_package_is_named(
    kind: Compression, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = compress(b"x", kind)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"needs {package}: pip install 'firearrow\[compress\]'"):
        decompress(packed, with_compression(0, kind))
    with pytest.raises(ConfigError, match=rf"needs {package}: pip install 'firearrow\[compress\]'"):
        compress(b"x", kind)
