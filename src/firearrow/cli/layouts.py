"""Where a store is and how its broker is configured, as options of a command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from firearrow.errors import ConfigError

if TYPE_CHECKING:
    from firearrow.store.config import StoreConfig
    from firearrow.store.offline import Layout

_MADE_AS = (
    "storeType",
    "useSeparateStorePathForRocksdbCQ",
    "mappedFileSizeConsumeQueue",
    "mapperFileSizeBatchConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
)
"""The keys that say of which kind and size files are; others must not keep a store from being
looked at, and may be those of a slave."""


def add_layout(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "-c",
        dest="file",
        type=Path,
        metavar="FILE",
        help="the broker's properties file: place of the log, kind and size of files, delay levels",
    )
    parser.add_argument(
        "--commitlog", metavar="DIR,...", help="directory of the CommitLog (default: DIR/commitlog)"
    )
    parser.add_argument(
        "--index-slots",
        type=int,
        metavar="N",
        help="hash slots of an IndexFile (default: a quarter of its entries)",
    )
    parser.add_argument(
        "--delay-levels",
        metavar="TEXT",
        help="messageDelayLevel of the broker (default: RocketMQ's)",
    )


def layout_of(options: argparse.Namespace) -> Layout:
    """A command's store, by its options and the broker's file. Raises ConfigError."""
    from firearrow.store.offline import Layout

    settings = _settings(options)
    slots = settings.get("maxHashSlotNum")
    return Layout.of(
        options.directory,
        settings.get("storePathCommitLog"),
        int(slots) if slots else None,
        settings.get("messageDelayLevel"),
        _made_as(settings) if options.file else None,
    )


def _made_as(settings: dict[str, str]) -> StoreConfig:
    from firearrow.config.table import update
    from firearrow.store.config import StoreConfig

    known = {key: settings[key] for key in _MADE_AS if key in settings}
    return update(StoreConfig(), known)


def _settings(options: argparse.Namespace) -> dict[str, str]:
    """The keys of a broker that say how its store is to be read; options win over the file."""
    from firearrow.config import properties

    found = properties.load(options.file) if options.file else {}
    given = {
        "storePathCommitLog": options.commitlog,
        "maxHashSlotNum": options.index_slots,
        "messageDelayLevel": options.delay_levels,
    }
    found |= {key: str(value) for key, value in given.items() if value is not None}
    if not found.get("maxHashSlotNum", "1").isdecimal():
        raise ConfigError(f"maxHashSlotNum={found['maxHashSlotNum']} is not a number")
    return found
