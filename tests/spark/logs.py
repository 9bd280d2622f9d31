"""Stores made by hand, of any records: log files and ConsumeQueues as a broker would write them."""

from __future__ import annotations

import lzma
import struct
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import lz4.frame
import zstandard
from hypothesis import strategies as st

from firearrow.message.hosts import pack_host
from firearrow.message.names import tag_code
from firearrow.message.properties import parse
from firearrow.message.record import encode_blank, encode_record
from firearrow.message.sysflag import TRANSACTION_PREPARED

BROKER = "broker-t"
START_MS = 1_795_000_000_000
ENDINGS = ("", "torn", "garbage")


class Sent(NamedTuple):
    """A message before it has a place. ``kind`` is how its body is compressed, 0 not at all."""

    topic: str = "T"
    queue_id: int = 0
    body: bytes = b"body"
    properties: bytes = b""
    kind: int = 0
    born_host: tuple[str, int] = ("10.0.0.1", 1)
    store_host: tuple[str, int] = ("127.0.0.1", 10911)
    flag: int = 0
    step_ms: int = 1
    is_visible: bool = True


def write(root: Path, sent: Sequence[Sent], file_bytes: int = 4096, ending: str = "") -> dict[tuple[str, int], int]:
    """Write a store; return how many messages each queue has.

    The last file ends in zeros, or in half a record (``torn``), or in bytes of anything.
    """
    files: list[bytearray] = [bytearray()]
    queues: dict[tuple[str, int], bytearray] = {}
    counts: Counter[tuple[str, int]] = Counter()
    now_ms = START_MS
    for message in sent:
        now_ms += message.step_ms
        key = message.topic, message.queue_id
        physical = file_bytes * (len(files) - 1) + len(files[-1])
        record = _record(message, counts[key], physical, now_ms)
        if len(files[-1]) + len(record) + 8 > file_bytes:
            files[-1] += encode_blank(file_bytes - len(files[-1]))
            files[-1] += bytes(file_bytes - len(files[-1]))
            files.append(bytearray())
            physical = file_bytes * (len(files) - 1)
            record = _record(message, counts[key], physical, now_ms)
        files[-1] += record
        if message.is_visible:
            tag = tag_code(parse(message.properties).get("TAGS"))
            entry = struct.pack(">qiq", physical, len(record), tag)
            queues.setdefault(key, bytearray()).extend(entry)
            counts[key] += 1
    _end(files, ending, file_bytes)
    _save(root, files, queues, file_bytes)
    return dict(counts)


def _record(message: Sent, queue_offset: int, physical: int, now_ms: int) -> bytes:
    flag, body = _packed(message.body, message.kind)
    flag |= 0 if message.is_visible else TRANSACTION_PREPARED
    return encode_record(
        message.topic,
        body,
        message.properties,
        message.queue_id,
        queue_offset,
        physical,
        message.flag,
        flag,
        now_ms - 3,
        pack_host(message.born_host),
        now_ms,
        pack_host(message.store_host),
        message.flag & 7,
        message.flag & 0xFF,
    )


def _packed(body: bytes, kind: int) -> tuple[int, bytes]:
    if kind == 0:
        return 0, body
    packed = {1: lz4.frame.compress, 2: zstandard.ZstdCompressor().compress, 3: zlib.compress, 4: zlib.compress}[kind](
        body
    )
    return 1 | (kind % 4) << 8, packed


def _end(files: list[bytearray], ending: str, file_bytes: int) -> None:
    room = file_bytes - len(files[-1])
    if ending == "torn" and room > 200:
        physical = file_bytes * (len(files) - 1) + len(files[-1])
        files[-1] += _record(Sent(body=b"x" * 60), 0, physical, START_MS)[:130]
    elif ending == "garbage":
        files[-1] += lzma.compress(b"garbage")[: max(room, 0)]
    files[-1] += bytes(file_bytes - len(files[-1]))


def _save(root: Path, files: list[bytearray], queues: dict[tuple[str, int], bytearray], file_bytes: int) -> None:
    (root / "commitlog").mkdir(parents=True)
    for number, data in enumerate(files):
        (root / "commitlog" / f"{number * file_bytes:020d}").write_bytes(data)
    (root / "consumequeue").mkdir()
    per_file = 20 * 8
    for (topic, queue_id), entries in queues.items():
        directory = root / "consumequeue" / topic / str(queue_id)
        directory.mkdir(parents=True)
        for base in range(0, len(entries), per_file):
            part = entries[base : base + per_file].ljust(per_file, b"\0")
            (directory / f"{base:020d}").write_bytes(part)


# --- any messages ---

NAMES = ("UNIQ_KEY", "KEYS", "TAGS", "KEYSX", "UNIQ_KEYS", "a", "WAIT", "long-name-of-a-property")
VALUES = ("", "A", "TagB", "k1 k2", "标签", "é" * 9, "x" * 40, "a\x01b", "0123456789ABCDEF")
ODD_PAIRS = ("", "noname", "\x01value", "TAGS", "a\x01")
HOSTS = (("10.0.0.1", 1), ("10.0.0.2", 65535), ("2001:db8::1", 7), ("::", 0))
TOPICS = ("T", "topic-b", "%RETRY%" + "g" * 130, "other")


def any_message(chance: Random) -> Sent:
    """A message of any kind: V1 and V2, both kinds of hosts, compressed, odd properties."""
    plain = chance.random() < 0.5
    return Sent(
        chance.choice(TOPICS),
        chance.randrange(3),
        chance.randbytes(chance.randrange(60)),
        b"TAGS\x01A\x02UNIQ_KEY\x0100FF\x02" if plain else any_properties(chance),
        chance.choice((0, 0, 0, 1, 2, 3, 4)),
        HOSTS[0] if plain else chance.choice(HOSTS),
        HOSTS[0] if plain else chance.choice(HOSTS),
        chance.randrange(-(1 << 31), 1 << 31),
        chance.randrange(5),
        chance.random() < 0.8,
    )


def any_properties(chance: Random) -> bytes:
    """A properties string, well formed or not."""
    pairs = [
        chance.choice(ODD_PAIRS) if chance.random() < 0.1 else f"{chance.choice(NAMES)}\x01{chance.choice(VALUES)}"
        for _ in range(chance.randrange(6))
    ]
    text = "\x02".join(pairs).encode()
    if chance.random() < 0.1:
        text = text.replace(b"a", b"\xff")
    return text if chance.random() < 0.3 or not pairs else text + b"\x02"


def any_messages(seed: int, count: int) -> list[Sent]:
    """Messages that follow from a seed."""
    chance = Random(seed)
    return [any_message(chance) for _ in range(count)]


stores = st.builds(any_messages, st.integers(0, 1 << 32), st.integers(0, 40))
