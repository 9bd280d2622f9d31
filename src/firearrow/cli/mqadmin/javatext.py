"""Values, numbers, times and maps in the text form of Java's programs; maps are in the order of their hashes.

Scripts compare the output of `mqadmin`, and many of its tables are in the order of a Java `HashMap`. This order follows
from the keys' hashes, the size of the table, which is a power of two, and the order of insertion.

    new HashMap        16 buckets, twice as many when more than three quarters are taken; the keys of a bucket are in
                       the order of insertion
    ConcurrentHashMap  the same, but it grows as soon as three quarters are taken; growing reverses the order of a
                       bucket except for its end (`Properties` is such a map)

Sources: OpenJDK 17, ``HashMap#resize``, ``ConcurrentHashMap#transfer``; ``Formatter``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final, TypeVar

from firearrow.errors import ConfigError
from firearrow.message.names import java_hash
from firearrow.wire.client_bodies import MessageQueue
from firearrow.wire.fastjson import java_double

K = TypeVar("K")

TABLE_SIZE: Final = 16


def shown(value: Any) -> str:
    """Write a value as ``String.valueOf`` does; a map in its present order."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return java_double(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}={shown(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    return str(value)


def fixed(value: float, places: int) -> str:
    """Write a number with ``places`` decimals, a half rounded up, as ``%.2f`` prints it."""
    number = Decimal(repr(float(value)))
    return str(number.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP))


def front(text: str | None, longest: int) -> str:
    """Cut a text to ``longest`` characters."""
    return shown(text)[:longest]


def moment(ms: int) -> str:
    """Write a time in ms as ``2026-01-31 08:00:00,123``, local."""
    return f"{_local(ms):%Y-%m-%d %H:%M:%S},{ms % 1000:03d}"


def second(ms: int) -> str:
    """Write a time in ms as ``2026-01-31 08:00:00``, local."""
    return f"{_local(ms):%Y-%m-%d %H:%M:%S}"


def digits(ms: int) -> str:
    """Write a time in ms as ``20260131080000123``, local."""
    return f"{_local(ms):%Y%m%d%H%M%S}{ms % 1000:03d}"


def moment_of(text: str) -> int:
    """Read a time: ms since 1970, or ``2026-01-31#08:00:00:123``, local."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return int(datetime.strptime(text, "%Y-%m-%d#%H:%M:%S:%f").astimezone().timestamp() * 1000)
    except ValueError:
        why = "is neither a number of ms nor a time like 2026-01-31#08:00:00:000"
        raise ConfigError(f"{text!r} {why}") from None


def _local(ms: int) -> datetime:
    return datetime.fromtimestamp(ms // 1000, UTC).astimezone()


def queue_hash(queue: MessageQueue) -> int:
    """Hash a queue as Java's ``MessageQueue#hashCode`` does."""
    code = 31 + java_hash(queue.broker_name)
    code = code * 31 + queue.queue_id
    return code * 31 + java_hash(queue.topic)


def hash_order(keys: Iterable[K], hash_of: Callable[[K], int], table_size: int = TABLE_SIZE) -> list[K]:
    """Sort keys, each once, in the order of a `HashMap` after inserting them one after another."""
    size = table_size
    found = list(dict.fromkeys(keys))
    while len(found) > size * 3 // 4:
        size *= 2
    return sorted(found, key=lambda key: _spread(hash_of(key)) & size - 1)


def text_order(keys: Iterable[str], table_size: int = TABLE_SIZE) -> list[str]:
    """Sort texts in the order of a `HashMap`."""
    return hash_order(keys, java_hash, table_size)


def copied_order(keys: Sequence[K], hash_of: Callable[[K], int]) -> list[K]:
    """Sort keys in the order of a `HashMap` that is a copy of another map."""
    size = 1
    while size < int(len(keys) / 0.75 + 1):
        size *= 2
    return hash_order(keys, hash_of, size)


def concurrent_order(keys: Iterable[str]) -> list[str]:
    """Sort texts in the order of a `ConcurrentHashMap` after inserting them one after another."""
    table: list[list[str]] = [[] for _ in range(TABLE_SIZE)]
    for count, key in enumerate(dict.fromkeys(keys), 1):
        table[_spread(java_hash(key)) & len(table) - 1].append(key)
        if count >= len(table) * 3 // 4:
            table = _moved(table)
    return [key for bucket in table for key in bucket]


def copied_concurrent_order(keys: Iterable[str]) -> list[str]:
    """Sort texts in the order of a `ConcurrentHashMap` that is a copy of another one.

    The copy makes its table for one and a half times as many keys, and then doubles it (``tryPresize``).
    """
    found = concurrent_order(keys)
    size = 2
    while size < 2 * (len(found) + len(found) // 2 + 1):
        size *= 2
    return hash_order(found, java_hash, size)


def _moved(table: list[list[str]]) -> list[list[str]]:
    """Double a table; the end of a bucket that stays together keeps its order."""
    size = len(table)
    halves: tuple[list[list[str]], list[list[str]]] = ([], [])
    for bucket in table:
        bits = [bool(_spread(java_hash(key)) & size) for key in bucket]
        kept = len(bucket)
        while kept and bits[kept - 1] == bits[-1]:
            kept -= 1
        for half, bit in zip(halves, (False, True), strict=True):
            turned = [key for key, own in zip(bucket[:kept], bits, strict=False) if own == bit]
            tail = bucket[kept:] if bits and bits[-1] == bit else []
            half.append([*reversed(turned), *tail])
    return [*halves[0], *halves[1]]


def _spread(code: int) -> int:
    code &= 0xFFFFFFFF
    return code ^ code >> 16
