"""The options of ``format("rocketmq")``: names, allowed values and defaults.

The names follow Spark's Kafka source where it has such an option, in any case. Each group of options is a dataclass,
whose fields are the rows of the table, so a module takes only the group that it needs. ``parse`` reads all groups, and
``as_markdown`` is the reference in ``docs/spark-options.md``.

A wrong option raises ConfigError, which names the option, its value and the allowed values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from typing import Any, Final, NamedTuple

from firearrow.clock import moment_ms
from firearrow.config.kinds import COUNT, DURATION, FLAG, NAMES, POSITIVE, SIZE, TEXT, Kind, MiB, one_of, proposal
from firearrow.errors import ConfigError
from firearrow.message.names import is_system_topic
from firearrow.spark.offsets import Position, require_order
from firearrow.spark.tables import TABLES

SPARKS_OWN: Final = frozenset({"queryname", "outputmode"})
"""Options of Spark itself, which come in the same mapping."""

_DECODING: Final = frozenset({"bodyformat", "bodyschema", "bodymessage", "schemaregistry"})

Assignment = tuple[tuple[str, str, tuple[int, ...]], ...]


class OptionRow(NamedTuple):
    """One option: its name, the values that it takes, its meaning, and its default as a user would write it."""

    name: str
    kind: Kind
    text: str
    shown: str  # empty: no default


def _option(
    name: str, kind: Kind, text: str, default: Any = None, shown: str | None = None, *, secret: bool = False
) -> Any:
    if shown is None:
        shown = "" if default in (None, ()) else str(default)
        shown = shown.lower() if isinstance(default, bool) else shown
    return field(default=default, repr=not secret, metadata={"row": OptionRow(name, kind, text, shown)})


# --- kinds of values that only these options have ---


def _paths(value: str) -> tuple[str, ...]:
    parts = json.loads(value)
    if not isinstance(parts, list) or not parts:
        raise ValueError
    if not all(isinstance(part, str) and part.strip() for part in parts):
        raise ValueError
    return tuple(parts)


def _tags(value: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in value.split("||"))
    if not all(parts):
        raise ValueError
    return () if parts == ("*",) else parts


def _words(value: str) -> tuple[str, ...]:
    parts = tuple(value.split())
    if not parts:
        raise ValueError
    return parts


def _pattern(value: str) -> str:
    try:
        re.compile(TEXT.read(value))
    except re.error as error:
        raise ValueError(str(error)) from None
    return value


def _assign(value: str) -> Assignment:
    found: list[tuple[str, str, tuple[int, ...]]] = []
    table = json.loads(value)
    if not isinstance(table, dict) or not table:
        raise ValueError
    for topic, brokers in sorted(table.items()):
        if not isinstance(brokers, dict) or not brokers:
            raise ValueError
        for broker, queues in sorted(brokers.items()):
            if not isinstance(queues, list) or not queues:
                raise ValueError
            if not all(type(queue) is int and queue >= 0 for queue in queues):
                raise ValueError
            found.append((topic, broker, tuple(sorted(set(queues)))))
    return tuple(found)


def _offsets(value: str) -> str:
    if value.strip().lower() in {"earliest", "latest"}:
        return value.strip().lower()
    if not isinstance(json.loads(value), dict):
        raise ValueError
    return value


def _times(value: str) -> int | str:
    """Read a time for all queues, or check the JSON of several times."""
    if not value.lstrip().startswith("{"):
        return moment_ms(value)
    json.loads(value)
    return value


_PATH: Final = Kind(lambda text: (TEXT.read(text),), "a store's directory, or a URI such as s3://bucket/store")
_SERVERS: Final = Kind(NAMES.read, "host:port, several separated by ; or ,")
_REGEX: Final = Kind(_pattern, "a regular expression")
_OFFSETS: Final = Kind(
    _offsets, 'earliest, latest or JSON {"topic": {"broker": {"queueId": offset}}} (-2 earliest, -1 latest)'
)
_TIMES: Final = Kind(_times, 'a time, or JSON {"topic": {"broker": {"queueId": time}}}: ISO 8601, or ms since 1970')


def _one_of(*words: str) -> Kind:
    return one_of(*words, any_case=True)


# --- the options ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Location:
    """Store files or brokers."""

    paths: tuple[str, ...] = _option(
        "path", _PATH, "the store to read; `load([...])` takes several, as `paths` does", ()
    )
    more_paths: tuple[str, ...] = _option(
        "paths", Kind(_paths, "a JSON list of paths"), "several stores, one for each broker", ()
    )
    name_servers: tuple[str, ...] = _option(
        "nameServer", _SERVERS, "the name servers of a cluster, to read from or write to its brokers", ()
    )
    archive: str | None = _option(
        "archive",
        TEXT,
        "the directory or URI of an archive of the same stores or brokers: archived messages are read from it, "
        "others from the stores or brokers",
    )
    table: str = _option("table", _one_of(*TABLES), "the table; from brokers only `messages`", "messages")
    broker_name: str | None = _option(
        "brokerName",
        TEXT,
        "of a store: the value of the column `broker`, by default the name in the store's configuration or, without "
        "one, the name of its directory; of a cluster: the only broker to read from or write to",
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """Choice of messages."""

    subscribe: tuple[str, ...] = _option("subscribe", NAMES, "topics, by name", ())
    pattern: str | None = _option("subscribePattern", _REGEX, "topics whose whole name matches")
    assign: tuple[tuple[str, str, tuple[int, ...]], ...] = _option(
        "assign", Kind(_assign, 'JSON {"topic": {"broker": [queueId, ...]}}'), "single queues", ()
    )
    tags: tuple[str, ...] = _option(
        "tags", Kind(_tags, "tags separated by ||, or *"), "only messages with one of these tags", ()
    )
    keys: tuple[str, ...] = _option(
        "keys",
        Kind(_words, "words separated by spaces"),
        "only messages with one of these words as a key or as their unique id",
        (),
    )
    system_topics: bool = _option(
        "systemTopics",
        FLAG,
        "whether the broker's own topics are read too, such as SCHEDULE_TOPIC_XXXX and RMQ_SYS_TRANS_HALF_TOPIC: they "
        "hold originals of delayed messages and half messages, which consumers don't see. Those that `subscribe` or "
        "`assign` names are always read, and so are all with visibility=log",
        False,
    )

    def wants(self, topic: str) -> bool:
        """Tell whether a topic is chosen; by default every topic is that is not the broker's."""
        if self.subscribe:
            return topic in self.subscribe
        if self.assign:
            return any(topic == name for name, _, _ in self.assign)
        if not self.system_topics and is_system_topic(topic):
            return False
        return self.pattern is None or re.fullmatch(self.pattern, topic) is not None

    def wants_queue(self) -> Callable[[str, str, int], bool]:
        """Return a function that tells of topic, broker and queue id whether the queue is chosen.

        It is for one pass over the queues: a store may have a million of them, and the options may name as many.
        """
        if self.assign:
            assigned = {(topic, broker, queue_id) for topic, broker, ids in self.assign for queue_id in ids}
            return lambda topic, broker, queue_id: (topic, broker, queue_id) in assigned
        wants = cache(self.wants)
        return lambda topic, broker, queue_id: wants(topic)


@dataclass(frozen=True, slots=True)
class Range:
    """Begin and end of reading.

    ``firearrow.spark.offsets`` describes the JSON. None stands for the default of a batch (earliest to latest) or of a
    stream (from latest on).
    """

    starting_offsets: str | None = _option(
        "startingOffsets", _OFFSETS, "begin of a read", None, "earliest; of a stream latest"
    )
    ending_offsets: str | None = _option("endingOffsets", _OFFSETS, "end of a batch", None, "latest")
    starting_ms: int | str | None = _option(
        "startingTimestamp",
        _TIMES,
        "begin with the first message that was stored at or after this time; queues that "
        "JSON does not name begin at startingOffsets",
    )
    ending_ms: int | str | None = _option(
        "endingTimestamp",
        _TIMES,
        "end before the first message that was stored at or after this time; queues that "
        "JSON does not name end at endingOffsets",
    )
    by_timestamp: str = _option(
        "startingOffsetsByTimestampStrategy",
        _one_of("error", "latest"),
        "a queue without a message after startingTimestamp is an error, or begins at its end (`latest`)",
        "error",
    )

    def positions(self, begin: str) -> tuple[Position, Position]:
        """Return the begin and end; ``begin`` is the default begin."""
        start = self.starting_offsets or begin
        end = self.ending_offsets or "latest"
        return (
            Position.of("startingOffsets", start, self.starting_ms),
            Position.of("endingOffsets", end, self.ending_ms),
        )


@dataclass(frozen=True, slots=True)
class Trigger:
    """Size of a step of a stream."""

    offsets_max: int | None = _option(
        "maxOffsetsPerTrigger", POSITIVE, "largest number of messages in a step, which takes the first stored ones"
    )
    bytes_max: int | None = _option(
        "maxBytesPerTrigger", SIZE, "approximate number of bytes in a step, which takes the first stored messages"
    )
    offsets_min: int | None = _option("minOffsetsPerTrigger", POSITIVE, "number of messages that a step waits for")
    delay_max_ms: int = _option(
        "maxTriggerDelay", DURATION, "longest wait of a step for minOffsetsPerTrigger", 900_000, "15m"
    )


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Reading messages."""

    fail_on_data_loss: bool = _option(
        "failOnDataLoss",
        FLAG,
        "whether missing messages are an error (retention has deleted them meanwhile, or files of "
        "the log or of queues are missing or cut); with false they are skipped, with a warning",
        True,
    )
    allow_new_store: bool = _option(
        "allowNewStore",
        FLAG,
        "whether a stream goes on though its checkpoint is of another store of the same broker name: it reads the new "
        "store from its beginning, and unread messages of the other store are lost",
        False,
    )
    partitions_min: int | None = _option(
        "minPartitions", POSITIVE, "smallest number of tasks (if there are as many messages)"
    )
    split_bytes: int = _option(
        "splitBytes",
        SIZE,
        "approximate number of bytes of messages in a task, of files more if there would be over 100,000 tasks",
        128 * MiB,
        "128m",
    )
    batch_bytes: int = _option(
        "batchBytes", SIZE, "approximate number of bytes of messages in an Arrow batch", 4 * MiB, "4m"
    )
    columns: tuple[str, ...] = _option(
        "columns",
        NAMES,
        "the columns to read, in this order, for streams and Spark Connect, where queries do not choose them. If you "
        "give a schema, it decides",
        (),
        "all",
    )
    properties: str = _option(
        "properties",
        _one_of("raw", "map", "none"),
        "the column `properties`: the stored string, a map, or no column. If you give a schema, "
        "the column's type decides",
        "raw",
    )
    decompress: bool = _option("decompress", FLAG, "whether compressed bodies are decompressed", True)
    visibility: str = _option(
        "visibility",
        _one_of("consumer", "log"),
        "of files: the messages in ConsumeQueues, or every record of the log. ConsumeQueues hold all messages that "
        "consumers see",
        "consumer",
    )
    verify_crc: bool = _option("verifyCrc", FLAG, "of files: whether the CRC of each body is checked", False)
    on_corrupt: str = _option(
        "onCorrupt",
        _one_of("fail", "skip"),
        "of files: bytes that contradict the format are an error, or `skip` leaves the message out",
        "fail",
    )
    pushdown: str = _option(
        "pushdown",
        _one_of("off", "on"),
        "of files: whether the filters of a query limit the reading. Spark then applies the "
        "filters of one query to all other queries on the same DataFrame: with `on`, use the result of each "
        "`load()` for one query only. The options for topics, offsets, times, tags and "
        "keys limit the reading as well, and safely. Needs "
        "spark.sql.python.filterPushdown.enabled",
        "off",
    )


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """Connections to brokers."""

    consumer_group: str | None = _option(
        "consumerGroup",
        TEXT,
        "the consumer group that pulls, and under which a stream commits its progress",
        None,
        "firearrow-spark",
    )
    commit_offsets: bool = _option("commitOffsets", FLAG, "whether a stream commits its progress to the brokers", False)
    access_key: str | None = _option("accessKey", TEXT, "access key, if the brokers require one")
    secret_key: str | None = _option("secretKey", TEXT, "the secret key that belongs to it", secret=True)
    security_token: str | None = _option("securityToken", TEXT, "security token of temporary credentials", secret=True)
    tls: bool = _option("tls", FLAG, "whether connections use TLS", False)
    tls_ca: str | None = _option("tlsCa", TEXT, "file with the CA certificates that brokers are checked against")
    tls_certificate: str | None = _option("tlsCertificate", TEXT, "file with the client's certificate")
    tls_key: str | None = _option("tlsKey", TEXT, "file with the key of this certificate")
    tls_verify: bool = _option("tlsVerify", FLAG, "whether the certificates of brokers are checked", True)
    timeout_ms: int = _option("timeout", DURATION, "timeout of a request", 15_000, "15s")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Writing messages."""

    topic: str | None = _option("topic", TEXT, "the topic of rows without a column `topic`")
    producer_group: str = _option("producerGroup", TEXT, "the producer group that sends", "firearrow-spark")
    order_key: str | None = _option(
        "orderKey", TEXT, "the column that chooses the queue: rows with equal values go to one queue, in order"
    )
    send_batch: int = _option("sendBatch", POSITIVE, "largest number of messages in a request", 512)
    retries: int = _option("retries", COUNT, "number of retries of a failed send, at another broker if possible", 3)
    idempotent: bool = _option(
        "idempotent", FLAG, "whether a repeated task gives its messages the same ids again", False
    )
    delivery: str = _option(
        "delivery",
        _one_of("at-least-once", "exactly-once"),
        "of a stream: with `exactly-once`, consumers get the messages of a step when the step ends, each once",
        "at-least-once",
    )
    checkpoint: str | None = _option(
        "checkpointLocation",
        TEXT,
        "Spark's own option: the directory or URI of the stream's checkpoint. With `delivery=exactly-once` it also "
        "records which messages a step has",
    )

    @property
    def is_exactly_once(self) -> bool:
        """Tell whether consumers must see each message once."""
        return self.delivery == "exactly-once"


@dataclass(frozen=True, slots=True)
class Options:
    """All options, by group."""

    place: Location = Location()
    choice: Choice = Choice()
    range: Range = Range()
    trigger: Trigger = Trigger()
    reading: ReadOptions = ReadOptions()
    access: AccessOptions = AccessOptions()
    sink: SinkOptions = SinkOptions()


_GROUPS: Final[dict[str, Any]] = {
    "place": Location,
    "choice": Choice,
    "range": Range,
    "trigger": Trigger,
    "reading": ReadOptions,
    "access": AccessOptions,
    "sink": SinkOptions,
}


def rows(group: type) -> Iterator[tuple[Field[Any], OptionRow]]:
    """Yield the options of a group, each with the field that it sets."""
    for known in fields(group):
        yield known, known.metadata["row"]


_KNOWN: Final = {row.name.lower(): row for group in _GROUPS.values() for _, row in rows(group)}


def parse(given: Mapping[str, str]) -> Options:
    """Read the options of a source. Raises ConfigError; see ``for_sink`` for a sink's options."""
    options = _read(given)
    place = options.place
    if place.paths and place.name_servers:
        raise ConfigError("options path and nameServer exclude each other: use files or brokers")
    if not place.paths and not place.name_servers:
        raise ConfigError("option path (a store's files) or nameServer (a cluster) is missing")
    if place.archive is not None and place.table != "messages":
        raise ConfigError(f"option archive: an archive has messages, but no table={place.table!r}")
    if place.archive is not None and options.reading.visibility != "consumer":
        raise ConfigError("option archive: an archive has only messages that consumers see, not visibility=log")
    if place.broker_name is not None and len(place.paths) > 1:
        raise ConfigError(f"option brokerName={place.broker_name!r} names one store, but path names {len(place.paths)}")
    require_order(*options.range.positions("earliest"))
    chosen = [
        name
        for name, value in (
            ("subscribe", options.choice.subscribe),
            ("subscribePattern", options.choice.pattern),
            ("assign", options.choice.assign),
        )
        if value
    ]
    if len(chosen) > 1:
        raise ConfigError(f"options {' and '.join(chosen)} exclude each other")
    if place.table != "messages" or options.reading.visibility == "log":  # other tables and the log are whole
        return replace(options, choice=replace(options.choice, system_topics=True))
    return options


def with_system_topics(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a job that reads the broker's own topics too, unless its user decides otherwise."""
    return {"systemTopics": "true", **options}


def for_sink(given: Mapping[str, str]) -> Options:
    """Read the options of a sink. Raises ConfigError."""
    options = _read(given)
    if not options.place.name_servers:
        raise ConfigError("option nameServer is missing: messages are written to brokers")
    return options


def _read(given: Mapping[str, str]) -> Options:
    texts = {name.lower(): value for name, value in given.items()}
    for name in texts:
        if name not in _KNOWN and name not in SPARKS_OWN:
            hint = proposal(name, (row.name for row in _KNOWN.values()))
            if name in _DECODING:
                hint = ": firearrow.spark.decoded(...) decodes the bodies of what load() returns"
            raise ConfigError(f"option {name}={texts[name]!r}: there is no such option{hint}")
    return Options(**{name: _group(group, texts) for name, group in _GROUPS.items()})


def _group(group: type, texts: Mapping[str, str]) -> Any:
    values = {
        known.name: _value(row, texts[row.name.lower()]) for known, row in rows(group) if row.name.lower() in texts
    }
    if group is Location:
        values["paths"] = tuple(dict.fromkeys((*values.get("paths", ()), *values.pop("more_paths", ()))))
    return group(**values)


def _value(row: OptionRow, text: str) -> Any:
    try:
        return row.kind.read(text)
    except ValueError as error:
        why = f" ({error})" if str(error) and row.kind in {_REGEX, _TIMES} else ""
        raise ConfigError(f"option {row.name}={text!r}: allowed is {row.kind.allowed}{why}") from None


def as_markdown() -> str:
    """Return the reference of all options, a table for each group."""
    parts: list[str] = []
    for group in _GROUPS.values():
        parts += ["", f"## {(group.__doc__ or '').splitlines()[0].rstrip('.')}", ""]
        parts += ["| option | default | may be | meaning |", "|---|---|---|---|"]
        for known, row in rows(group):
            assert known.default is not MISSING
            cells = (f"`{row.name}`", row.shown, row.kind.allowed, row.text)
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(parts).lstrip() + "\n"
