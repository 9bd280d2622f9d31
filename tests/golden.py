"""The stores in `tests/data/golden`, written by the original broker, for any test that reads one.

`extract` unpacks a store; `expected` gives its messages as the official Java client decoded them,
see the README beside the data for the fields.
"""

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "golden"

golden_names = ("file-cq-clean", "file-cq-killed", "rocksdb-cq-clean")

ADDED_BY_CLIENT = frozenset({"MIN_OFFSET", "MAX_OFFSET"})
"""Properties in `expected` that the Java client added after it read the record."""


def extract(name: str, dest: Path) -> Path:
    """Unpack a store below `dest` and return its directory (the store root)."""
    with tarfile.open(DATA / f"{name}.tar.gz") as archive:
        archive.extractall(dest, filter="data")
    return dest / name


def expected(name: str) -> list[dict[str, Any]]:
    """Return every readable message of a store, as the Java client decoded it."""
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def settings_file(name: str) -> Path:
    """Return the settings with which the broker of a store ran."""
    return DATA / f"{name}.conf"
