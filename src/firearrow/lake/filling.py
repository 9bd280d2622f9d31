"""Filling of the tables of a lake from stores or brokers: each message once, in one commit per table and interval.

All tables share one look at the queues. Only a table whose topic has new messages takes a step. A table that cannot go
on, for example because its schema has changed incompatibly, stops with a sentence, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import Event
from typing import Final

import msgspec

from firearrow.client.queues import Bound, Queue
from firearrow.clock import Clock, SystemClock
from firearrow.errors import CatalogError, ConfigError, FirearrowError
from firearrow.lake.catalogs import NEEDED, IcebergTables, LakeCatalog
from firearrow.lake.decoding import BodyDecoder, decoder_of
from firearrow.lake.instances import BEAT_SECONDS, Instances
from firearrow.lake.spec import TableSpec, specs_of, table_name
from firearrow.lake.typedtable import TypedTable
from firearrow.lake.upserts import UpsertTable
from firearrow.logs import Log
from firearrow.spark.jobs.archive.archiving import Archiver, ArchiveSettings, ArchiveStep, Source, require_apart, source
from firearrow.spark.jobs.archive.catalogs import ANSWER_SECONDS
from firearrow.spark.jobs.archive.fileplace import FilePlace
from firearrow.spark.jobs.workers import Workers, WorkersLost
from firearrow.spark.options import parse
from firearrow.spark.source.files import FileOrigin
from firearrow.spark.source.opening import open_origin
from firearrow.spark.source.origin import ConfiguredOrigin, Origin

log: Final = Log(__name__)

LAG_SECONDS: Final = 60.0
UPKEEP_SECONDS: Final = 3600.0
RETRY_SECONDS: Final = 600.0  # schemas are registered before their messages are sent, so few messages wait
_ROUNDS_OF_LAG: Final = 3  # a message waits one round at most, and its step takes time


def typed_table(lake: str, topic: str, spec: TableSpec, decoder: BodyDecoder | None = None) -> TypedTable:
    """Return the table of a topic in the directory or URI of a lake, by default with the newest schema of its registry.

    Raises ConfigError for a schema that cannot be columns.
    """
    kind = UpsertTable if spec.mode == "upsert" else TypedTable
    of_topic = msgspec.structs.replace(spec, topics=topic)
    return kind(lake, table_name(topic), of_topic, decoder or decoder_of(spec))


def topic_source(options: Mapping[str, str], topic: str) -> tuple[Source, ArchiveSettings]:
    """Return the source of a topic, from the options of a read; raise ConfigError for options that choose messages."""
    given = {name.lower() for name in options}
    for name in ("subscribe", "subscribePattern", "assign"):
        if name.lower() in given:
            raise ConfigError(f"option {name}: the tables name the topics")
    return source({**options, "subscribe": topic})


@dataclass
class TableStatus:
    """State of a table, for metrics and reports. ``fresh_ms`` is a time before which all messages are in the table."""

    topic: str
    name: str
    lag_seconds: float
    steps: int = 0
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    undecoded: int = 0
    fresh_ms: int | None = None
    trouble: str = ""

    def add(self, step: ArchiveStep) -> None:
        """Count a step."""
        self.steps += 1
        self.rows += sum(file.rows for file in step.added)
        self.files += len(step.added)
        self.size_bytes += sum(file.size_bytes for file in step.added)
        self.undecoded += step.undecoded


@dataclass
class _Filled:
    """A table that is filled, and what fills it."""

    spec: TableSpec
    decoder: BodyDecoder
    table: TypedTable
    archiver: Archiver
    retried_ms: int
    iceberg: IcebergTables | None
    is_published: bool = False

    def is_due(self, now_ms: int) -> bool:
        """Tell whether a registry can know more schemas of undecoded messages by now."""
        return bool(self.spec.registry) and now_ms - self.retried_ms >= 1000 * RETRY_SECONDS


@dataclass(frozen=True)
class Lake:
    """Tables to fill: the options of a read, the directory or URI of the tables, and their specifications.

    Without ``by_attributes``, the attributes of topics do not count.
    """

    options: Mapping[str, str]
    root: str
    specs: tuple[TableSpec, ...] = ()
    lag_seconds: float = LAG_SECONDS
    by_attributes: bool = True
    catalog: LakeCatalog | None = None

    def check(self) -> None:
        """Raise ConfigError for options that no lake can have, and for a missing or wrong catalog."""
        topic_source(self.options, "any")
        if self.catalog is not None:
            self.catalog.catalog.check()
        elif any(spec.format == "iceberg" for spec in self.specs):
            raise ConfigError(NEEDED)

    def topics(self) -> dict[str, TableSpec]:
        """Return the specification of each topic that becomes a table; raise ConfigError for wrong attributes, and for
        two topics of one name."""
        origin = open_origin(parse(self.options))
        assert isinstance(origin, ConfiguredOrigin), "stores and brokers know their topics"
        known = origin.attributes()
        found = specs_of(known if self.by_attributes else {topic: {} for topic in known}, self.specs)
        names: dict[str, str] = {}
        for topic in sorted(found):
            other = names.setdefault(table_name(topic), topic)
            if other != topic:
                raise ConfigError(f"topics {other!r} and {topic!r} would both be the table {table_name(topic)}")
        return found


class LakeFilling:
    """Filling of all tables of a lake, in rounds."""

    def __init__(
        self, workers: Workers, lake: Lake, *, instances: Instances | None = None, clock: Clock | None = None
    ) -> None:
        lake.check()
        self.statuses: dict[str, TableStatus] = {}
        self.trouble: str = "the topics are not read yet"
        """The reason why the topics are not known, an empty text if they are."""
        self._workers = workers
        self._lake = lake
        self._instances = instances
        self._clock = clock or SystemClock()
        self._origin: Origin | None = None
        self._topics: frozenset[str] = frozenset()
        self._filled: dict[str, _Filled] = {}
        self._tried_ms: dict[str, int] = {}  # of each topic: the begin of the last round with its table
        self._tidied_ms: dict[str, int] = {}
        self._patience: float | None = None  # with a catalog, which must not stop other tables

    def round(self) -> bool:
        """Bring the tables of this instance up to the present; tell whether a message was new.

        A table that cannot go on has its ``trouble``. Raises only if the topics cannot be read, and WorkersLost.
        """
        return self._round(lambda _: True)

    def _round(self, is_due: Callable[[TableStatus], bool]) -> bool:
        if self._instances is not None:
            self._instances.beat()
        topics = self._lake.topics()
        mine = {topic: spec for topic, spec in topics.items() if self._has(table_name(topic))}
        for topic in self.statuses.keys() - mine.keys():
            del self.statuses[topic]
            self._filled.pop(topic, None)
        if not mine:
            return False
        now_ms = self._clock.now_ms()
        bounds = self._bounds(mine)
        was_new = False
        for topic, spec in sorted(mine.items()):
            lag = spec.lag or self._lake.lag_seconds
            status = self.statuses.setdefault(topic, TableStatus(topic, table_name(topic), lag))
            if not is_due(status):
                continue
            self._tried_ms[topic] = now_ms
            try:
                was_new |= self._step(status, spec, {q: bound for q, bound in bounds.items() if q.topic == topic})
                self._publish(self._filled[topic])
                status.fresh_ms, status.trouble = now_ms, ""
            except WorkersLost:
                raise
            except (FirearrowError, OSError) as error:
                if not isinstance(error, CatalogError):
                    self._filled.pop(topic, None)
                if status.trouble != str(error):
                    log.warning("a table stops", extra={"table": status.name, "reason": str(error)})
                status.trouble = str(error)
        return was_new

    def follow(self, stop: Event, on_round: Callable[[], object] = lambda: None) -> None:
        """Fill the tables until ``stop`` is set, so that no message waits longer than the lag of its table.

        A table takes three steps in its lag at most, so that its files are not smaller than they need to be. Raises
        WorkersLost if the workers can't go on.
        """
        self._patience = ANSWER_SECONDS
        while not stop.is_set():
            try:
                self._round(lambda status: self._milliseconds_left(status) <= 0)
                self.trouble = ""
            except WorkersLost:
                raise
            except FirearrowError as error:
                self.trouble = str(error)
                log.warning("the topics can't be read", extra={"reason": self.trouble})
            self.tidy()
            on_round()
            stop.wait(self._pause_seconds())
        if self._instances is not None:
            self._instances.leave()

    def _pause_seconds(self) -> float:
        """Return the time until the next round."""
        statuses = self.statuses.values()
        if self.trouble or not statuses:
            pause = min((status.lag_seconds for status in statuses), default=self._lake.lag_seconds) / _ROUNDS_OF_LAG
        else:
            pause = max(0.0, min(map(self._milliseconds_left, statuses)) / 1000)
        return min(pause, BEAT_SECONDS)

    def _milliseconds_left(self, status: TableStatus) -> float:
        """Return the time until the next step of a table."""
        pause = 1000 * status.lag_seconds / _ROUNDS_OF_LAG
        return self._tried_ms.get(status.topic, 0) + pause - self._clock.now_ms()

    def tidy(self) -> None:
        """Join the small files of tables, and remove files that no reader needs, once an hour."""
        now_ms = self._clock.now_ms()
        for topic, filled in self._filled.items():
            if now_ms - self._tidied_ms.setdefault(topic, now_ms) < 1000 * UPKEEP_SECONDS:
                continue
            self._tidied_ms[topic] = now_ms
            try:
                filled.table.compact()
                filled.is_published = False
                self._publish(filled)
                if filled.iceberg is not None:
                    filled.iceberg.expire_snapshots(self._patience)
                filled.table.clean()  # last: files stay until no snapshot of Iceberg needs them
            except FirearrowError as error:
                log.warning("a table is not tidied", extra={"table": filled.table.name, "reason": str(error)})

    def _has(self, name: str) -> bool:
        return self._instances is None or self._instances.has(name)

    def _bounds(self, topics: Iterable[str]) -> Mapping[Queue, Bound]:
        chosen = frozenset(topics)
        if self._origin is None or chosen != self._topics:
            opener, _ = topic_source(self._lake.options, ",".join(sorted(chosen)))
            self._origin, self._topics = opener(), chosen
            self._filled.clear()
            if isinstance(self._origin, FileOrigin):
                require_apart(self._origin.options.place.paths, FilePlace(self._lake.root))
        return self._origin.bounds()

    def _step(self, status: TableStatus, spec: TableSpec, bounds: Mapping[Queue, Bound]) -> bool:
        """Bring a table up to some bounds; tell whether a message was new."""
        filled = self._filled_table(status.topic, spec)
        before = status.steps
        while (step := filled.archiver.step(bounds)) is not None:
            status.add(step)
            filled.is_published = False
        return status.steps > before

    def _publish(self, filled: _Filled) -> None:
        """Let the Iceberg tables follow, if there are any; the Delta tables have their messages already."""
        if filled.spec.format != "iceberg" or filled.is_published:
            return
        if filled.iceberg is None:
            raise ConfigError(NEEDED)
        filled.iceberg.publish(self._patience)
        filled.is_published = True

    def _filled_table(self, topic: str, spec: TableSpec) -> _Filled:
        """Return the table of a topic, brought to the present schema.

        Undecoded messages are decoded again if the schema has changed. With a registry, this happens from time to time,
        too: it may know the schemas of their ids by now.
        """
        decoder = decoder_of(spec)
        known = self._filled.get(topic)
        now_ms = self._clock.now_ms()
        if known is not None and known.spec == spec and known.decoder == decoder and not known.is_due(now_ms):
            return known
        table = typed_table(self._lake.root, topic, spec, decoder)
        table.evolve(self._workers)
        self.statuses[topic].rows += table.retry(self._workers)
        opener, settings = topic_source(self._lake.options, topic)
        archiver = Archiver(self._workers, opener, table, settings, self._origin)
        catalog = self._lake.catalog
        iceberg = IcebergTables(catalog, table) if spec.format == "iceberg" and catalog is not None else None
        self._filled[topic] = _Filled(spec, decoder, table, archiver, now_ms, iceberg)
        return self._filled[topic]
