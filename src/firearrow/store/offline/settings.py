"""What brokers configure, as far as it can be read (`firearrow.state`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from firearrow import state
from firearrow.errors import CorruptStore, FirearrowError
from firearrow.state import TOPICS, StatePart, object_of, stored_state, table_of


def stored_config(directory: Path, part: StatePart) -> dict[str, Any] | str:
    """What a part of the state in a configuration directory holds; or why it can't be read.

    Raises ConfigError where it is a database, and the package for it is missing.
    """
    try:
        return stored_state(directory, part)
    except CorruptStore as error:
        return str(error)


def topics_with_batches(directory: Path) -> frozenset[str]:
    """The topics with the attribute ``queue.type=BatchCQ``, as far as they can be read."""
    return state.topics_with_batches(table_of(stored_config(directory, TOPICS), "topicConfigTable"))


def parse_config(path: Path) -> dict[str, Any] | str:
    """What a configuration file itself holds, or why it can't be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return str(error)
    if not data:
        return "it is empty"
    try:
        return object_of(data)
    except (FirearrowError, ValueError) as error:
        return str(error) if data.strip(b"\0") else "all its bytes are zero"
