"""Messages read the slow way: a loop over records with `struct`, and nothing of the source's code.

It knows the format from the documents alone, so that what it and the vectorised reader agree on is
what the format says.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lz4.frame
import zstandard

HEAD = struct.Struct(">iIiiiqqiq")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def records(data: bytes, base: int, broker: str) -> Iterator[dict[str, Any]]:
    """The records of one log file, as rows of the table `messages`; a map for properties."""
    at = 0
    while at + 8 <= len(data):
        row = record_at(data, at, broker)
        if row is None or row["commitLogOffset"] != base + at:
            return
        yield row
        at += row["storeSize"]


def record_at(data: bytes, at: int, broker: str) -> dict[str, Any] | None:
    """The record at a place; None if there is none."""
    size, magic = struct.unpack_from(">iI", data, at)
    if magic not in (0xDAA320A7, 0xDAA320AB) or size < 91 or at + size > len(data):
        return None
    _, _, crc, queue_id, flag, queue_offset, physical, sys_flag, born = HEAD.unpack_from(data, at)
    place = at + HEAD.size
    born_host, place = _host(data, place, bool(sys_flag & 0x10))
    (stored,) = struct.unpack_from(">q", data, place)
    host_at = place + 8
    store_host, place = _host(data, host_at, bool(sys_flag & 0x20))
    host_bytes = data[host_at:place]
    reconsumed, prepared, body_size = struct.unpack_from(">iqi", data, place)
    place += 16
    body = data[place : place + body_size]
    place += body_size
    if not 0 <= body_size <= size or place + 4 > at + size:
        return None
    if magic == 0xDAA320AB:
        (topic_size,) = struct.unpack_from(">H", data, place)
        place += 2
    else:
        topic_size = data[place]
        place += 1
    topic = data[place : place + topic_size].decode("utf-8", "replace")
    place += topic_size
    (text_size,) = struct.unpack_from(">H", data, place)
    if place + 2 + text_size != at + size:
        return None
    text = data[place + 2 : place + 2 + text_size].decode("utf-8", "replace")
    properties = _properties(text)
    offset_id = (host_bytes + struct.pack(">q", physical)).hex().upper()
    return {
        "broker": broker,
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": queue_offset,
        "commitLogOffset": physical,
        "storeSize": size,
        "msgId": properties.get("UNIQ_KEY", offset_id),
        "offsetMsgId": offset_id,
        "flag": flag,
        "sysFlag": sys_flag,
        "bornTimestamp": EPOCH + timedelta(milliseconds=born),
        "bornHost": born_host,
        "storeTimestamp": EPOCH + timedelta(milliseconds=stored),
        "storeHost": store_host,
        "reconsumeTimes": reconsumed,
        "preparedTransactionOffset": prepared,
        "bodyCrc": crc,
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "properties": text,
        "map": properties,
        "body": _plain(body, sys_flag),
        "stored": body,
    }


def _host(data: bytes, at: int, six: bool) -> tuple[str, int]:
    size = 16 if six else 4
    (port,) = struct.unpack_from(">i", data, at + size)
    return f"{ipaddress.ip_address(data[at : at + size])}:{port}", at + size + 4


def _properties(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            found[name] = value
    return found


def _plain(body: bytes, sys_flag: int) -> bytes:
    if not sys_flag & 1:
        return body
    kind = sys_flag >> 8 & 7
    if kind == 1:
        return bytes(lz4.frame.decompress(body))
    if kind == 2:
        return zstandard.ZstdDecompressor().decompress(body, max_output_size=1 << 26)
    return zlib.decompress(body)


def log(root: Path, broker: str) -> list[dict[str, Any]]:
    """Every record of a store's log."""
    found: list[dict[str, Any]] = []
    for path in sorted((root / "commitlog").iterdir()):
        found += records(path.read_bytes(), int(path.name), broker)
    return found


def visible(root: Path, broker: str) -> list[dict[str, Any]]:
    """What the files of ConsumeQueues refer to, in the order of the log."""
    files = {int(path.name): path.read_bytes() for path in (root / "commitlog").iterdir()}
    found: list[dict[str, Any]] = []
    for path in sorted((root / "consumequeue").glob("*/*/*")):
        data = path.read_bytes()
        for at in range(0, len(data) - 19, 20):
            physical, size, _ = struct.unpack_from(">qiq", data, at)
            if size in (0, 0x7FFFFFFF):
                continue
            base = max((start for start in files if start <= physical), default=0)
            row = record_at(files[base], physical - base, broker)
            assert row is not None
            found.append(row)
    return sorted(found, key=lambda row: int(row["commitLogOffset"]))
