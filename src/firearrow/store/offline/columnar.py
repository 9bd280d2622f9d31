"""Records as an Arrow IPC stream, for whoever reads columns; needs the extra ``arrow``."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import IO, Any, Final

from firearrow.errors import ConfigError

_BATCH_ROWS: Final = 4096
_WIDE: Final = {
    "queueOffset",
    "physicalOffset",
    "bornTimestamp",
    "storeTimestamp",
    "preparedTransactionOffset",
    "bodyCRC",
}
_NUMBERS: Final = {"queueId", "storeSize", "flag", "sysFlag", "reconsumeTimes", "bodyLength"}
_TEXTS: Final = ("topic", "bornHost", "storeHost", "offsetMsgId", "uniqKey", "bodyError")
COLUMNS: Final = (*_TEXTS, *sorted(_NUMBERS), *sorted(_WIDE), "properties", "body")


def write_stream(rows: Iterable[dict[str, Any]], sink: IO[bytes]) -> int:
    """Write rows of ``firearrow.store.offline.records.as_row``; return how many there were.

    Raises ConfigError where pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # an extra
    except ImportError:
        raise ConfigError(
            "--format arrow needs the package pyarrow: install Firearrow with the extra arrow (docs/start.md)"
        ) from None
    types: dict[str, Any] = {name: pa.string() for name in _TEXTS}
    types |= {name: pa.int32() for name in _NUMBERS} | {name: pa.int64() for name in _WIDE}
    types |= {"properties": pa.map_(pa.string(), pa.string()), "body": pa.binary()}
    schema = pa.schema([(name, types[name]) for name in COLUMNS])
    count = 0
    rest = iter(rows)
    with pa.ipc.new_stream(sink, schema) as writer:
        while batch := list(islice(rest, _BATCH_ROWS)):
            for row in batch:
                row["properties"] = list(row["properties"].items())
            columns = [[row.get(name) for row in batch] for name in COLUMNS]
            arrays = [pa.array(column, types[name]) for name, column in zip(COLUMNS, columns, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            count += len(batch)
    return count
