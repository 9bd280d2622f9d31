"""Body compression: which kind a system flag names, and the three codecs.

A sender compresses large bodies (4 KiB and more by default) and sets the system flag: bit 0x1, and the kind in bits 8
to 10. The broker stores the bytes as sent; consumers decompress.

====  =====  =======================================================
kind  flag   payload
====  =====  =======================================================
1     0x100  LZ4 frame format (package ``lz4``)
2     0x200  Zstandard frame (package ``zstandard``)
3     0x300  zlib stream
0     0x000  zlib stream, from clients older than the kind bits
====  =====  =======================================================

Sources: MessageSysFlag, CompressorFactory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum
from importlib import import_module
from types import ModuleType

from firearrow.errors import MessageError, MissingPackage
from firearrow.message.sysflag import COMPRESSED, COMPRESSION_MASK, COMPRESSION_SHIFT

MiB = 1 << 20

DECOMPRESSED_BYTES_MAX = 64 * MiB
"""Size limit of a decompressed body. A body is at most 4 MiB as sent. One that grows beyond sixteen times that counts
as an attack on the consumer's memory."""

_BEGINNINGS = {1: b"\x04\x22\x4d\x18", 2: b"\x28\xb5\x2f\xfd", 3: b"\x78"}

LEVEL = 5  # the level of the Java client, for zlib and zstd


class Compression(IntEnum):
    """The kinds of compression, by their number in the system flag."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def compression_of(sys_flag: int) -> Compression | None:
    """Return how a body with this system flag is compressed, None if it is not.

    Raises MessageError for a kind that no RocketMQ release knows.
    """
    if not sys_flag & COMPRESSED:
        return None
    number = (sys_flag & COMPRESSION_MASK) >> COMPRESSION_SHIFT
    try:
        return Compression(number or Compression.ZLIB)
    except ValueError as error:
        raise MessageError(f"{number} is not a kind of compression", "sysFlag") from error


def is_as_said(body: bytes, sys_flag: int) -> bool:
    """Tell whether a body begins as its system flag says. An uncompressed body may begin with anything."""
    try:
        kind = compression_of(sys_flag)
    except MessageError:
        return False
    return kind is None or body.startswith(_BEGINNINGS[kind])


def compress(body: bytes, kind: Compression, level: int = LEVEL) -> bytes:
    """Compress a body. ``level`` is on the codec's scale; LZ4 ignores it and is always fast.

    Raises ConfigError when the package for the kind is not installed.
    """
    if kind is Compression.ZLIB:
        return zlib.compress(body, level)
    packed: bytes
    if kind is Compression.LZ4:
        packed = _package("lz4.frame").compress(body)
    else:
        packed = _package("zstandard").ZstdCompressor(level=level).compress(body)
    return packed


def decompress(body: bytes, sys_flag: int, body_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Return a body as its sender saw it. An uncompressed body is returned unchanged.

    Raises MessageError when the bytes are damaged or cut, or when they grow beyond ``body_bytes_max`` (memory use stays
    below that). Raises ConfigError when a package is not installed, which is no fault of the message.
    """
    kind = compression_of(sys_flag)
    return body if kind is None else _DECOMPRESS[kind](body, body_bytes_max)


def _unzlib(body: bytes, body_bytes_max: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        # One byte more than allowed tells "exactly full" from "too large".
        plain = stream.decompress(body, body_bytes_max + 1)
    except zlib.error as error:
        raise _damaged(Compression.ZLIB, str(error)) from error
    return _whole(plain, stream.eof, Compression.ZLIB, body_bytes_max)


def _unlz4(body: bytes, body_bytes_max: int) -> bytes:
    stream = _package("lz4.frame").LZ4FrameDecompressor()
    try:
        plain: bytes = stream.decompress(body, max_length=body_bytes_max + 1)
    except (RuntimeError, EOFError) as error:
        raise _damaged(Compression.LZ4, str(error)) from error
    return _whole(plain, stream.eof, Compression.LZ4, body_bytes_max)


def _unzstd(body: bytes, body_bytes_max: int) -> bytes:
    zstandard = _package("zstandard")
    try:
        # The codec trusts the size that a frame declares, whatever its limit.
        declared: int = zstandard.frame_content_size(body)
        if declared > body_bytes_max:
            raise _too_large(body_bytes_max)
        stream = zstandard.ZstdDecompressor()
        plain: bytes = stream.decompress(body, max_output_size=body_bytes_max + 1)
    except zstandard.ZstdError as error:
        # If the frame declares no size, the codec does not tell damage from growth.
        reason = f"{error}, or it grows beyond {body_bytes_max} bytes"
        raise _damaged(Compression.ZSTD, reason) from error
    return _whole(plain, True, Compression.ZSTD, body_bytes_max)


def _whole(plain: bytes, ended: bool, kind: Compression, body_bytes_max: int) -> bytes:
    if len(plain) > body_bytes_max:
        raise _too_large(body_bytes_max)
    if not ended:
        raise _damaged(kind, "the stream ends too early")
    return plain


def _damaged(kind: Compression, reason: str) -> MessageError:
    return MessageError(f"not a whole {kind.name} stream: {reason}", "body")


def _too_large(body_bytes_max: int) -> MessageError:
    return MessageError(f"grows beyond {body_bytes_max} bytes when decompressed", "body")


def _package(module: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingPackage("the body needs", module.partition(".")[0], "compress") from error


_DECOMPRESS: dict[Compression, Callable[[bytes, int], bytes]] = {
    Compression.LZ4: _unlz4,
    Compression.ZSTD: _unzstd,
    Compression.ZLIB: _unzlib,
}
