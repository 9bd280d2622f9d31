"""What of a store `firearrow store rebuild` makes, and where."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firearrow.store.offline import OnProgress, Order


def add_made(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--only", choices=["queues", "index"], help="rebuild only these (default: both)"
    )
    parser.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help="write to this directory and leave the store unchanged",
    )
    parser.add_argument(
        "--queue-file-bytes",
        type=int,
        metavar="N",
        help="size of a queue's files (default: by the broker's file, else as they are)",
    )


def order_of(options: argparse.Namespace, on_progress: OnProgress) -> Order:
    """What the options say is to be made; warnings go to standard error."""
    from firearrow.store.offline import Order

    return Order(
        queues=options.only != "index",
        index=options.only != "queues",
        queue_file_bytes=options.queue_file_bytes,
        jobs=options.jobs,
        on_progress=on_progress,
        on_warning=_warn,
    )


def _warn(text: str) -> None:
    print(f"firearrow: {text}", file=sys.stderr)


def as_deleted(entries: int) -> str:
    """Say what became of the messages of a topic that is not configured."""
    return f"taken for deleted, its queues are not made ({entries} entries)"
