"""Options of the jobs of `firearrow pipeline`: input, work, and Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Generic, Literal, TypeVar

from firearrow.cli.parameters import (
    NOT_ASKED,
    TIMES,
    Options,
    Pairs,
    Parameter,
    count,
    either,
    exclude,
    moment,
    pair,
    positive,
    require_one,
    require_order,
    seconds,
    switch,
    valued,
    whole_seconds,
)

if TYPE_CHECKING:
    from firearrow.spark.jobs.workers import Workers

RETENTION_HOURS: Final = 72.0

# --- input ---

Paths = tuple[str, ...]
_PATH: Final = "a store's directory, or a URI such as s3://bucket/store; several may be given"
Format = Annotated[
    Pairs, valued("KEY=VALUE", "an option of the format rocketmq, for example subscribe=Orders; may be repeated", pair)
]
_ARCHIVE: Final = "an archive's directory, or a URI such as s3://bucket/archive"
Now = Annotated[
    int | None, valued("TIME", "the time that counts as the present, in ISO 8601 (default: the clock's)", moment)
]


class Reading(Options):
    """Input of a job; ``places`` are the options of a subclass that exclude each other."""

    places: ClassVar[tuple[str, ...]] = ()
    path: Annotated[Paths, NOT_ASKED] = ()
    name_server: Annotated[str | None, NOT_ASKED] = None
    archive: Annotated[str | None, NOT_ASKED] = None
    option: Annotated[Pairs, NOT_ASKED] = ()
    now: Annotated[int | None, NOT_ASKED] = None

    def check(self) -> None:
        """Raise WrongOptions for options that exclude each other, and for a missing one."""
        if self.places:
            require_one(self, *self.places)

    def source(self) -> dict[str, str]:
        """Give the options of Spark's source."""
        given = dict(self.option)
        if self.name_server:
            return {**given, "nameServer": self.name_server}
        if not self.path:
            return given
        if len(self.path) == 1:
            return {**given, "path": self.path[0]}
        return {**given, "paths": json.dumps(self.path)}

    def named(self) -> str:
        """Give the name of the source for the report."""
        return ", ".join(self.path) or self.name_server or self.archive or ""


class OfFiles(Reading):
    """Files of stores, for a job that needs more than brokers give."""

    path: Annotated[Paths, valued("DIR", _PATH, needed=True)] = ()
    option: Format = ()


class OfMessages(Reading):
    """Files of stores, or brokers."""

    places: ClassVar[tuple[str, ...]] = ("path", "name_server")
    path: Annotated[Paths, valued("DIR", _PATH)] = ()
    name_server: Annotated[str | None, valued("HOST:PORT;...", "read from the brokers of this cluster")] = None
    option: Format = ()


class OfAnything(OfMessages):
    """Files of stores, brokers or an archive."""

    places: ClassVar[tuple[str, ...]] = ("path", "name_server", "archive")
    archive: Annotated[str | None, valued("DIR", _ARCHIVE)] = None


class OfArchive(Reading):
    """An archive."""

    places: ClassVar[tuple[str, ...]] = ("archive",)
    archive: Annotated[str, valued("DIR", _ARCHIVE)] = ""


# --- single jobs ---


def _window(text: str) -> Parameter:
    return valued("SECONDS", text, whole_seconds)


Retention = Annotated[float, valued("N", f"fileReservedTime of the brokers (default: {RETENTION_HOURS:g})", positive)]


class Backlog(OfFiles):
    """Options of `backlog`."""

    now: Now = None
    retention_hours: Retention = RETENTION_HOURS
    window: Annotated[int, _window("time span for the rate of arriving messages (default: 3600)")] = 3600
    parts: Annotated[int, valued("N", "values of each part (default: 10)", count)] = 10
    sample: Annotated[
        float | None,
        valued("SECONDS", "read committed offsets twice, this far apart, to measure how fast groups consume", seconds),
    ] = None
    consume_rate: Annotated[
        float | None, valued("N", "assume that each group consumes this many messages of a topic per second", positive)
    ] = None

    def check(self) -> None:
        """Raise WrongOptions where options exclude each other."""
        exclude(self, "sample", "consume_rate")


class Accounting(OfMessages):
    """Options of `accounting`."""

    now: Now = None
    retention_hours: Retention = RETENTION_HOURS
    free_bytes: Annotated[
        int | None, valued("N", "free space on the disk (default: that of the disk of --path)", count)
    ] = None


class Transactions(OfFiles):
    """Options of `transactions`."""

    now: Now = None


class Duplicates(OfMessages):
    """Options of `duplicates`."""

    window: Annotated[int, _window("seconds that a consumer remembers a received message (default: 600)")] = 600


class Latency(OfMessages):
    """Options of `latency`."""

    now: Now = None
    delay_levels: Annotated[str | None, valued("TEXT", "messageDelayLevel of the brokers (default: RocketMQ's)")] = None


class Sink(Options):
    """Target of a job that sends."""

    to_topic: Annotated[str | None, valued("TOPIC", "the topic to send to")] = None
    to_name_server: Annotated[str | None, valued("HOST:PORT;...", "the cluster to send to")] = None
    sink_option: Annotated[
        Pairs, valued("KEY=VALUE", "an option of the sink, for example accessKey=...; may be repeated", pair)
    ] = ()

    def sink(self) -> dict[str, str]:
        """Give the options of Spark's sink; the options must name a cluster."""
        assert self.to_name_server is not None, "checked before a job sends"
        return {"nameServer": self.to_name_server, **dict(self.sink_option)}


class Deadletters(Sink, OfMessages):
    """Options of `deadletters`."""

    where: Annotated[
        str | None, valued("SQL", "a condition that selects letters, on their columns and `text` (the body)")
    ] = None
    resend: Annotated[
        bool, switch("send the selected letters again, to --to-topic or to the topic that each came from")
    ] = False
    dry_run: Annotated[bool, switch("with --resend: only show what would be sent")] = False
    audit: Annotated[
        str | None, valued("DIR", "Parquet table of the letters that were sent; a letter in it is not sent again")
    ] = None


_KEEP: Final = "remove messages from the archive that are older than this number of days (in UTC)"


class ArchiveJob(OfMessages):
    """Options of `archive`."""

    to: Annotated[str, valued("DIR", "the archive's directory, or a URI such as s3://bucket/archive", needed=True)] = ""
    follow: Annotated[
        bool, switch("continue with new messages, until interrupted, and join small files as they pile up")
    ] = False
    interval: Annotated[
        float, valued("SECONDS", "with --follow: how often to check for new messages (default: 60)", seconds)
    ] = 60.0
    compact: Annotated[bool, switch("at the end, join small files of a topic and day")] = False
    keep: Annotated[int | None, valued("DAYS", _KEEP, count)] = None
    iceberg: Annotated[
        str | None,
        valued(
            "[CATALOG:]NAMESPACE.TABLE",
            "add the files to an Iceberg table, in a catalog that pyiceberg is configured for",
        ),
    ] = None
    tables: Annotated[
        str | None,
        valued("DIR|FILE", "fill typed tables, too: of a file in TOML, or of topics with the attribute table.format"),
    ] = None
    dry_run: Annotated[bool, switch("only show what would be archived of each queue")] = False


class Expire(OfArchive):
    """Options of `expire`."""

    keep: Annotated[int, valued("DAYS", _KEEP, count, needed=True)] = 0


class TablesJob(OfMessages):
    """Options of `tables`."""

    to: Annotated[
        str | None, valued("DIR", "directory of the tables, or a URI such as s3://bucket/lake (default: FILE's root)")
    ] = None
    file: Annotated[Path | None, valued("FILE", "a file in TOML that says which topics become tables")] = None
    topic: Annotated[str | None, valued("PATTERN", "topics whose whole name matches, without a file")] = None
    format: Annotated[Literal["delta", "iceberg"], Parameter("format of the tables (default: delta)")] = "delta"
    catalog: Annotated[
        str | None,
        valued(
            "[CATALOG:]NAMESPACE",
            "with iceberg: namespace of the tables, in a catalog that pyiceberg is configured for",
        ),
    ] = None
    bodies: Annotated[Literal["json", "avro", "protobuf"], Parameter("format of the bodies (default: json)")] = "json"
    schema: Annotated[
        str | None,
        valued("TEXT|FILE", "columns such as 'order string, cents long', a JSON or Avro schema, or a descriptor file"),
    ] = None
    registry: Annotated[str | None, valued("URL", "a schema registry; bodies begin with the id of their schema")] = None
    subject: Annotated[str | None, valued("NAME", "the subject in the registry that has the columns")] = None
    message: Annotated[str | None, valued("NAME", "the message of Protobuf, in the file or the registry")] = None
    partition: Annotated[
        tuple[str, ...], valued("BY", "day, hour, bucket(N, COLUMN) or a column (default: day); may be repeated")
    ] = ()
    cluster: Annotated[tuple[str, ...], valued("COLUMN", "a column that files are sorted by; may be repeated")] = ()
    mode: Annotated[
        Literal["append", "upsert"], Parameter("a row for each message, or the last one of each key (default: append)")
    ] = "append"
    key: Annotated[str | None, valued("COLUMN", "with upsert: the column of the key (default: the message's keys)")] = (
        None
    )

    def check(self) -> None:
        """Raise WrongOptions unless a file or a pattern names the topics."""
        super().check()
        exclude(self, "file", "topic")


class ServeJob(TablesJob):
    """Options of `serve`."""

    lag: Annotated[
        float | None, valued("SECONDS", "time after which messages must be in their tables (default: 60)", positive)
    ] = None
    instance: Annotated[
        str | None,
        valued("NAME", "with several instances: a name that stays, so that a new start takes its tables at once"),
    ] = None
    host: Annotated[str, valued("HOST", "address for health and metrics (default: 127.0.0.1)")] = "127.0.0.1"
    port: Annotated[int, valued("PORT", "port for health and metrics; 0 for any (default: 5559)", count)] = 5559


class Sending(Sink):
    """Options of a job that sends many messages, and may be continued."""

    job: Annotated[
        str, valued("DIR", "directory for the job's progress; run again with the same one to continue", needed=True)
    ] = ""
    rate: Annotated[float | None, valued("N", "largest number of messages per second", positive)] = None
    dry_run: Annotated[bool, switch("only show what would be sent")] = False


class Restore(Sending, OfArchive):
    """Options of `restore`."""

    topic: Annotated[
        tuple[str, ...],
        valued("TOPIC[=NAME]", "a topic to restore, and its new name (default: all topics); may be repeated"),
    ] = ()


class Replay(Sending, OfAnything):
    """Options of `replay`."""

    since: Annotated[int | None, valued("TIME", "stored at this time or later", moment)] = None
    until: Annotated[int | None, valued("TIME", f"stored before that time; {TIMES}", moment)] = None
    tag: Annotated[tuple[str, ...], valued("TAG", "with this tag; may be repeated")] = ()
    key: Annotated[tuple[str, ...], valued("KEY", "with this key or id; may be repeated")] = ()
    where: Annotated[str | None, valued("SQL", "a condition on the columns of messages")] = None
    all_topics: Annotated[
        bool,
        switch(
            "also replay the broker's own topics (originals of delayed messages, half messages) "
            "and the copies in retry and dead-letter topics"
        ),
    ] = False

    def check(self) -> None:
        """Raise WrongOptions for places or times that contradict each other."""
        super().check()
        require_order(self.since, self.until, included=False)


class WatchJob(Sink, OfMessages):
    """Options of `watch`."""

    alert: Annotated[
        tuple[str, ...],
        valued("RULE", "METRIC > NUMBER, for example 'deadLetters > 0' or 'lag > 10000'; may be repeated", needed=True),
    ] = ()
    webhook: Annotated[str | None, valued("URL", "post alerts as JSON to this URL")] = None
    checkpoint: Annotated[
        str | None, valued("DIR", "directory that the query continues from after a restart (default: none)")
    ] = None
    interval: Annotated[float, valued("SECONDS", "how often to check lag and lost (default: 10)", seconds)] = 10.0
    once: Annotated[bool, switch("read all present messages from the beginning, and end")] = False


# Options of every command that runs Spark: its master, its settings, and the output.


Progress = Annotated[bool | None, either("show progress on standard error (default: on a terminal)")]
Page = Annotated[Path | None, valued("FILE", "also write an HTML page with charts")]


class SparkOptions(Options):
    """Settings of Spark, for any master."""

    master: Annotated[str | None, NOT_ASKED] = None
    conf: Annotated[Pairs, valued("KEY=VALUE", "a setting of Spark; may be repeated", pair)] = ()
    archives: Annotated[
        str | None,
        valued("FILE[#NAME]", "a packed Python environment for a cluster's executors: .tar.gz, .tgz or .tar"),
    ] = None
    py_files: Annotated[
        tuple[str, ...], valued("FILE", "a package for a cluster's executors: .whl, .zip, .egg or .py; may be repeated")
    ] = ()
    spark_log: Annotated[
        Path | None, valued("FILE", "file for Spark's own messages (default: only its error, if it does not start)")
    ] = None


class RunOptions(SparkOptions):
    """Master of Spark, and output of the report."""

    master: Annotated[
        str,
        valued(
            "URL",
            "where Spark runs: local[N], spark://..., yarn, k8s://..., or sc://... for a Spark Connect server "
            "(default: local[*])",
        ),
    ] = "local[*]"
    top: Annotated[int, valued("N", "largest number of rows to show of a table; 0 for all (default: 20)", count)] = 20
    json: Annotated[bool, switch("print one JSON object")] = False
    report: Page = None
    progress: Progress = None


Asked = TypeVar("Asked", bound=Reading)


@dataclass(frozen=True, slots=True)
class WorkersRun(Generic[Asked]):
    """One run of a job that needs workers, but no JVM."""

    workers: Workers
    options: Asked
    how: RunOptions
    now_ms: int
