"""The options of `firearrow pipeline`'s jobs, and what their values may be."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from firearrow.cli.values import count, moment, pair, positive

RETENTION_HOURS: Final = 72.0

Parser = argparse.ArgumentParser


def add_source(parser: Parser) -> None:
    """What a job reads: the files of stores, or brokers."""
    _add_messages(parser, parser.add_mutually_exclusive_group(required=True))


def add_files(parser: Parser) -> None:
    """What a job reads that needs more than brokers tell: the files of stores."""
    _add_paths(parser, required=True)
    _add_source_options(parser)


def add_source_or_archive(parser: Parser) -> None:
    """What a job reads that takes messages of an archive, too."""
    place = parser.add_mutually_exclusive_group(required=True)
    _add_messages(parser, place)
    _add_archive_place(place)


def add_archive_source(parser: Parser) -> None:
    """What a job of archives reads."""
    _add_archive_place(parser.add_mutually_exclusive_group(required=True))


def _add_messages(parser: Parser, place: argparse._MutuallyExclusiveGroup) -> None:
    _add_paths(place)
    place.add_argument(
        "--name-server", metavar="HOST:PORT;...", help="read from the brokers of this cluster"
    )
    _add_source_options(parser)


def _add_paths(place: argparse._ActionsContainer, *, required: bool = False) -> None:
    place.add_argument(
        "--path",
        action="append",
        required=required,
        metavar="DIR",
        help="a store's directory, or a URI such as s3://bucket/store; several may be given",
    )


def _add_source_options(parser: Parser) -> None:
    parser.add_argument(
        "--option",
        type=pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the format rocketmq, for example subscribe=Orders; may be repeated",
    )


def _add_archive_place(place: argparse._MutuallyExclusiveGroup) -> None:
    place.add_argument(
        "--archive",
        metavar="DIR",
        help="an archive's directory, or a URI such as s3://bucket/archive",
    )


def add_now(parser: Parser) -> None:
    """For a job that counts ages: until when."""
    parser.add_argument(
        "--now",
        type=moment,
        metavar="TIME",
        help="the time that counts as the present, in ISO 8601 (default: the clock's)",
    )


def add_spark(parser: Parser) -> None:
    """Where and how Spark runs."""
    parser.add_argument(
        "--master",
        default="local[*]",
        metavar="URL",
        help="where Spark runs: local[N], spark://..., yarn, k8s://... (default: local[*])",
    )
    add_session(parser)


def add_session(parser: Parser) -> None:
    """How Spark is set, wherever it runs."""
    parser.add_argument(
        "--conf",
        type=pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of Spark; may be repeated",
    )
    parser.add_argument(
        "--spark-log",
        type=Path,
        metavar="FILE",
        help="file for Spark's own messages (default: only its error, if it does not start)",
    )


def add_output(parser: Parser) -> None:
    """How a report is shown."""
    parser.add_argument(
        "--top",
        type=count,
        default=20,
        metavar="N",
        help="largest number of rows to show of a table; 0 for all (default: 20)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_report(parser)
    add_progress(parser)


def add_report(parser: Parser) -> None:
    """Whether a page is written."""
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="also write an HTML page with charts"
    )


def add_progress(parser: Parser) -> None:
    """Whether a command shows its progress."""
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="show progress on standard error (default: on a terminal)",
    )


def add_nothing(parser: Parser) -> None:
    """Options of a job that has none of its own."""


def add_retention(parser: Parser) -> None:
    """How long brokers keep what they have."""
    parser.add_argument(
        "--retention-hours",
        type=positive,
        default=RETENTION_HOURS,
        metavar="N",
        help=f"fileReservedTime of the brokers (default: {RETENTION_HOURS:g})",
    )


def add_window(parser: Parser, seconds: int, what: str) -> None:
    """The seconds over which rates are taken."""
    parser.add_argument(
        "--window",
        type=count,
        default=seconds,
        metavar="SECONDS",
        help=f"{what} (default: {seconds})",
    )


def add_backlog(parser: Parser) -> None:
    """Options of `backlog`."""
    add_retention(parser)
    add_window(parser, 3600, "time span for the rate of arriving messages")
    parser.add_argument(
        "--parts", type=count, default=10, metavar="N", help="values of each part (default: 10)"
    )
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument(
        "--sample",
        type=positive,
        metavar="SECONDS",
        help="read committed offsets twice, this far apart, to measure how fast groups consume",
    )
    rate.add_argument(
        "--consume-rate",
        type=positive,
        metavar="N",
        help="assume that each group consumes this many messages of a topic per second",
    )


def add_accounting(parser: Parser) -> None:
    """Options of `accounting`."""
    add_retention(parser)
    parser.add_argument(
        "--free-bytes",
        type=count,
        metavar="N",
        help="free space on the disk (default: that of the disk of --path)",
    )


def _add_sink(parser: Parser) -> None:
    parser.add_argument("--to-topic", metavar="TOPIC", help="the topic to send to")
    parser.add_argument("--to-name-server", metavar="HOST:PORT;...", help="the cluster to send to")
    parser.add_argument(
        "--sink-option",
        type=pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the sink, for example accessKey=...; may be repeated",
    )


def add_deadletters(parser: Parser) -> None:
    """Options of `deadletters`."""
    parser.add_argument(
        "--where",
        metavar="SQL",
        help="a condition that selects letters, on their columns and `text` (the body)",
    )
    parser.add_argument(
        "--resend",
        action="store_true",
        help="send the selected letters again, to --to-topic or to the topic that each came from",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="with --resend: only show what would be sent"
    )
    parser.add_argument(
        "--audit",
        metavar="DIR",
        help="Parquet table of the letters that were sent; a letter in it is not sent again",
    )
    _add_sink(parser)


def add_latency(parser: Parser) -> None:
    """Options of `latency`."""
    parser.add_argument(
        "--delay-levels",
        metavar="TEXT",
        help="messageDelayLevel of the brokers (default: RocketMQ's)",
    )


def add_archive(parser: Parser) -> None:
    """Options of `archive`."""
    parser.add_argument(
        "--to",
        required=True,
        metavar="DIR",
        help="the archive's directory, or a URI such as s3://bucket/archive",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="continue with new messages, until interrupted, and join small files as they pile up",
    )
    parser.add_argument(
        "--interval",
        type=positive,
        default=60.0,
        metavar="SECONDS",
        help="with --follow: how often to check for new messages (default: 60)",
    )
    parser.add_argument(
        "--compact", action="store_true", help="at the end, join small files of a topic and day"
    )
    _add_keep(parser, required=False)
    parser.add_argument(
        "--iceberg",
        metavar="[CATALOG:]NAMESPACE.TABLE",
        help="add the files to an Iceberg table, in a catalog that pyiceberg is configured for",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only show what would be archived of each queue"
    )


def add_expire(parser: Parser) -> None:
    """Options of `expire`."""
    _add_keep(parser, required=True)


def _add_keep(parser: Parser, *, required: bool) -> None:
    parser.add_argument(
        "--keep",
        type=count,
        required=required,
        metavar="DAYS",
        help="remove from the archive what was stored more days (in UTC) before today",
    )


def _add_sending(parser: Parser) -> None:
    _add_sink(parser)
    parser.add_argument(
        "--job",
        required=True,
        metavar="DIR",
        help="directory for the job's progress; run again with the same one to continue",
    )
    parser.add_argument(
        "--rate", type=positive, metavar="N", help="largest number of messages per second"
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be sent")


def add_restore(parser: Parser) -> None:
    """Options of `restore`."""
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC[=NAME]",
        help="a topic to restore, and its new name (default: all topics); may be repeated",
    )
    _add_sending(parser)


def add_replay(parser: Parser) -> None:
    """Options of `replay`."""
    parser.add_argument("--since", type=moment, metavar="TIME", help="stored at this time or later")
    parser.add_argument("--until", type=moment, metavar="TIME", help="stored before that time")
    parser.add_argument("--tag", action="append", default=[], help="with this tag; may be repeated")
    parser.add_argument(
        "--key", action="append", default=[], help="with this key or id; may be repeated"
    )
    parser.add_argument("--where", metavar="SQL", help="a condition on the columns of messages")
    parser.add_argument(
        "--all-topics",
        action="store_true",
        help="also replay the broker's own topics (originals of delayed messages, half messages) "
        "and the copies in retry and dead-letter topics",
    )
    _add_sending(parser)


def add_watch(parser: Parser) -> None:
    """Options of `watch`."""
    parser.add_argument(
        "--alert",
        action="append",
        required=True,
        metavar="RULE",
        help="METRIC > NUMBER, for example 'deadLetters > 0' or 'lag > 10000'; may be repeated",
    )
    parser.add_argument("--webhook", metavar="URL", help="post alerts as JSON to this URL")
    _add_sink(parser)
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="directory from which the query continues after a restart (default: none)",
    )
    parser.add_argument(
        "--interval",
        type=positive,
        default=10.0,
        metavar="SECONDS",
        help="how often to check lag and lost (default: 10)",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="read everything that is there, from the beginning, and end",
    )
