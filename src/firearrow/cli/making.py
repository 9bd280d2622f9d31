"""What of a store is made anew, and where: for `store rebuild` and `pipeline rebuild` alike."""

from __future__ import annotations

import argparse
from pathlib import Path


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


def makes_queues(options: argparse.Namespace) -> bool:
    """Whether ConsumeQueues are made anew."""
    return bool(options.only != "index")


def makes_index(options: argparse.Namespace) -> bool:
    """Whether the index is made anew."""
    return bool(options.only != "queues")
