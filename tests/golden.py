"""Read the stores in `tests/data/golden`, which the original broker wrote.

`extract` unpacks a store; `expected` returns its messages as the official Java client decoded them. The README
beside the data explains the fields.
"""

import gzip
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from firearrow.message.model import MessageView
from firearrow.message.sysflag import COMPRESSED
from tests.archives import unpack

DATA = Path(__file__).parent / "data" / "golden"

golden_names = ("file-cq-clean", "file-cq-killed", "rocksdb-cq-clean")

ADDED_BY_CLIENT = frozenset({"MIN_OFFSET", "MAX_OFFSET"})
"""Properties in `expected` that the Java client added after it read the record."""


def extract(name: str, dest: Path) -> Path:
    """Unpack a store below `dest` and return its directory (the store root)."""
    unpack(DATA / f"{name}.tar.gz", dest)
    return dest / name


def expected(name: str) -> list[dict[str, Any]]:
    """Return every readable message of a store, as the Java client decoded it."""
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def settings_file(name: str) -> Path:
    """Return the settings with which the broker of a store ran."""
    return DATA / f"{name}.conf"


def as_java_prints(view: MessageView) -> dict[str, Any]:
    """Return a decoded record in the form of a line of the expected messages.

    The Java client clears the bit "compressed" when it has decompressed a body.
    """
    body = view.body_decompressed()
    return {
        "topic": view.topic,
        "queueId": view.queue_id,
        "queueOffset": view.queue_offset,
        "physicalOffset": view.physical_offset,
        "storeSize": view.store_size,
        "bodyCRC": view.body_crc,
        "flag": view.flag,
        "sysFlag": view.sys_flag & ~COMPRESSED,
        "bornTimestamp": view.born_timestamp_ms,
        "storeTimestamp": view.store_timestamp_ms,
        "reconsumeTimes": view.reconsume_times,
        "preparedTransactionOffset": view.prepared_transaction_offset,
        "offsetMsgId": view.offset_message_id,
        "uniqKey": view.unique_key or view.offset_message_id,
        "bodyLength": len(body),
        "bodySha256": sha256(body).hexdigest(),
        "properties": view.properties,
    }
