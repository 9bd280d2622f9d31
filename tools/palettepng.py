"""Pictures of at most 256 colours: PNG files of a browser, made small without a library for pictures."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
COLOURS: Final = 256
_TRUE_COLOUR: Final = 2
_WITH_ALPHA: Final = 6
_PALETTE: Final = 3


def with_palette(png: bytes) -> bytes:
    """Give a PNG of 8 bits per channel as one with a palette: the most frequent colours, the nearest for others."""
    pixels = _pixels(png)
    height, width, _ = pixels.shape
    values = pixels.astype(np.uint32)
    packed = values[:, :, 0] << 16 | values[:, :, 1] << 8 | values[:, :, 2]
    colours, at, counts = np.unique(packed, return_inverse=True, return_counts=True)
    kept = np.sort(np.argsort(counts)[::-1][:COLOURS])
    index = _nearest(colours, colours[kept])[at].reshape(height, width)
    lines = np.zeros((height, width + 1), np.uint8)  # the first byte of a line is its filter: none
    lines[:, 1:] = index
    palette = b"".join(int(colour).to_bytes(3, "big") for colour in colours[kept])
    head = struct.pack(">IIBBBBB", width, height, 8, _PALETTE, 0, 0, 0)
    data = zlib.compress(lines.tobytes(), 9)
    return SIGNATURE + b"".join(
        chunk(kind, body) for kind, body in ((b"IHDR", head), (b"PLTE", palette), (b"IDAT", data), (b"IEND", b""))
    )


def _nearest(colours: NDArray[np.uint32], palette: NDArray[np.uint32]) -> NDArray[np.uint8]:
    def channels(packed: NDArray[np.uint32]) -> NDArray[np.int64]:
        return np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=1).astype(np.int64)

    found = np.zeros(len(colours), np.uint8)
    wanted, offered = channels(colours), channels(palette)
    for number, colour in enumerate(wanted):
        found[number] = np.abs(offered - colour).sum(axis=1).argmin()
    return found


def _pixels(png: bytes) -> NDArray[np.uint8]:
    parts = list(chunks(png))
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", parts[0][1])
    assert (depth, interlaced) == (8, 0), "browsers write such files"
    assert kind in (_TRUE_COLOUR, _WITH_ALPHA), "browsers write true colours"
    size = 4 if kind == _WITH_ALPHA else 3
    lines = np.frombuffer(zlib.decompress(b"".join(body for name, body in parts if name == b"IDAT")), np.uint8)
    lines = lines.reshape(height, 1 + width * size)
    found = np.zeros((height, width, size), np.uint8)
    above = np.zeros((width, size), np.uint8)
    for number, line in enumerate(lines):
        above = found[number] = _unfiltered(int(line[0]), line[1:].reshape(width, size), above)
    return found


def _unfiltered(kind: int, line: NDArray[np.uint8], above: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Undo the filter of a line; see the standard, section 9."""
    if kind == 0:
        return line
    if kind == 1:
        return np.cumsum(line, axis=0, dtype=np.uint8)
    if kind == 2:
        return line + above
    done = np.zeros_like(line).astype(int)
    left = corner = np.zeros(line.shape[1], int)
    for at, (value, up) in enumerate(zip(line.astype(int), above.astype(int), strict=True)):
        guess = (left + up) // 2 if kind == 3 else _paeth(left, up, corner)
        left = done[at] = value + guess & 255
        corner = up
    return done.astype(np.uint8)


def _paeth(left: NDArray[np.int_], up: NDArray[np.int_], corner: NDArray[np.int_]) -> NDArray[np.int_]:
    guess = left + up - corner
    far = np.abs(np.stack([guess - left, guess - up, guess - corner]))
    chosen: NDArray[np.int_] = np.choose(far.argmin(axis=0), [left, up, corner])
    return chosen


def chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Give the name and the body of each part of a file."""
    at = len(SIGNATURE)
    while at < len(png):
        size, name = struct.unpack_from(">I4s", png, at)
        yield name, png[at + 8 : at + 8 + size]
        at += size + 12


def chunk(name: bytes, body: bytes) -> bytes:
    """Give a part of a file, with its length and its sum."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
