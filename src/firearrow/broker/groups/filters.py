"""Filter expressions of consumer groups (RocketMQ's ``ConsumerFilterManager``).

A subscription by SQL92 in a heartbeat puts its expression here, and a pull looks it up. It is dead from the moment that
its group has no members or no longer subscribes to the topic. It is removed ``filterDataCleanTimeSpan`` ms later.
``config/consumerFilter.json``::

    {
        "filterDataByTopic":{
            "T":{
                "groupFilterData":{
                    "g":{
                        "bloomFilterData":{
                            "bitNum":112,
                            "bitPos":[90,68,28]
                        },
                        "bornTime":1795210273639,
                        "clientVersion":1795210273001,
                        "consumerGroup":"g",
                        "dead":false,
                        "deadTime":0,
                        "expression":"a > 5",
                        "expressionType":"SQL92",
                        "topic":"T"
                    }
                },
                "topic":"T"
            }
        }
    }

A file with another size of the filter (``maxErrorRateOfBloomFilter`` or ``expectConsumerNumUseFilter`` was changed)
counts as empty, as with RocketMQ.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from firearrow.broker.config import BrokerConfig
from firearrow.broker.state.persistence import CONFIG_DIRECTORY, JsonFile, StateFile, typed, unknown_fields
from firearrow.broker.state.settings import Settings
from firearrow.clock import Clock
from firearrow.errors import BrokerError, FilterError
from firearrow.filter.bloom import BloomFilter
from firearrow.filter.sql import SQL_TERMS_MAX, SqlFilter, compile_sql
from firearrow.logs import Log
from firearrow.message.names import java_hash
from firearrow.message.properties import ORIGIN_GROUP, RETRY_TOPIC, TAGS, finder, parse
from firearrow.state import FILTERS
from firearrow.store import Wanted
from firearrow.wire.client_bodies import SQL92, SubscriptionData, is_by_tags
from firearrow.wire.codes import ResponseCode

log: Final = Log(__name__)

_origin_group: Final = finder(ORIGIN_GROUP)
_tags: Final = finder(TAGS)

FILE_NAME: Final = FILTERS.file_name
KEPT_CHARS_MAX: Final = 8 << 20
"""Limit of the characters of all expressions together, each counted with `_ROW_CHARS` more. An expression in use takes
up to 50 bytes of memory a character. Expressions beyond the limit are not kept.
"""
_ROW_CHARS: Final = 256
_DEAD_AT_START_MS: Final = 30_000  # age of the deaths of expressions that the file has as alive, as RocketMQ

_TABLE: Final = "filterDataByTopic"
_GROUPS: Final = "groupFilterData"


class BloomData(msgspec.Struct, rename="camel", frozen=True):
    """Bits of a group for a topic in a Bloom filter, and the count of all bits."""

    bit_num: int = 0
    bit_pos: tuple[int, ...] = ()


class FilterData(msgspec.Struct, rename="camel", dict=True):
    """Expression of a group for a topic. Times are ms since 1970; ``client_version`` is its creation time at the
    client.
    """

    topic: str = ""
    consumer_group: str = ""
    expression: str = ""
    expression_type: str = SQL92
    born_time: int = 0
    dead_time: int = 0
    client_version: int = 0
    bloom_filter_data: BloomData = BloomData()

    @property
    def is_dead(self) -> bool:
        """Tell whether no member uses it now."""
        return self.dead_time >= self.born_time

    @cached_property
    def filter(self) -> SqlFilter | None:
        """Compiled expression; None if it can't be compiled here.

        Java: ExpressionMessageFilter takes every message if the expression in a file can't be read.
        """
        try:
            return compile_filter(self.expression, self.expression_type)
        except FilterError:
            return None


class RetriedFilter:
    """Filters a group's retry topic: by the group's expression for the original topic of a message. Without one, the
    message matches.

    Source: RocketMQ's ``ExpressionForRetryMessageFilter``.
    """

    cost: Final = SQL_TERMS_MAX
    chars: Final = 1
    names: Final = None  # the names depend on the original topic of a message

    def __init__(self, filters: ConsumerFilters, group: str) -> None:
        self._filters = filters
        self._group = group

    def wants(self, properties: bytes) -> bool:
        """Tell whether a message with these properties is wanted."""
        topic = parse(properties).get(RETRY_TOPIC, "")
        data = self._filters.find(topic, self._group)
        chosen = None if data is None else data.filter
        return chosen is None or chosen.wants(properties)


class OwnRetries(NamedTuple):
    """Filter of a retry topic that several groups share: the group of the popped message, and its filter."""

    group: str
    wanted: Wanted

    @property
    def cost(self) -> int:
        """Highest cost of one look."""
        return 2 if isinstance(self.wanted, frozenset | None) else 1 + self.wanted.cost

    @property
    def chars(self) -> int:
        """Length of the expression."""
        return 1 if isinstance(self.wanted, frozenset | None) else self.wanted.chars

    @property
    def names(self) -> None:
        """None: some filters decide by values, others by hash codes."""
        return None

    def wants(self, properties: bytes) -> bool:
        """Tell whether a message with these properties belongs to the group and matches."""
        if _origin_group(properties) != self.group.encode():
            return False
        if isinstance(self.wanted, frozenset):
            return java_hash((_tags(properties) or b"").decode("utf-8", "replace")) in self.wanted
        return self.wanted is None or self.wanted.wants(properties)


def filter_of(config: BrokerConfig, expression: str, expression_type: str | None) -> SqlFilter:
    """Read an expression that is not by tags, for a client that wants to use it.

    Raises BrokerError for one that can't be read, and where the broker does not serve expressions.
    """
    if not config.enable_property_filter:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {expression_type}"
        )
    try:
        return compile_filter(expression, expression_type)
    except FilterError as error:
        code = ResponseCode.SUBSCRIPTION_PARSE_FAILED
        raise BrokerError.lookup(code)(code, str(error)) from None


def compile_filter(expression: str, expression_type: str | None) -> SqlFilter:
    """Read an expression that is not by tags; FilterError names the fault."""
    if expression_type != SQL92:
        raise FilterError(f"{expression_type!r} is not a type of expressions")
    return compile_sql(expression)


class ConsumerFilters:
    """Expressions of all groups by topic."""

    def __init__(self, settings: Settings, clock: Clock, store_root: Path | None = None) -> None:
        config = settings.broker
        self._settings = settings
        self._clock = clock
        self._bloom = BloomFilter(config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter)
        self._by_topic: dict[str, dict[str, FilterData]] = {}
        self._topics_of: dict[str, dict[str, None]] = {}  # by group; an ordered set
        self._unknown: dict[str, Any] = {}
        self._unknown_of: dict[tuple[str, str], dict[str, Any]] = {}
        self._kept_chars = 0
        storage = None
        if store_root is not None:
            path = store_root / CONFIG_DIRECTORY / FILE_NAME
            storage = JsonFile(path, config.config_generations, (_TABLE,))
        self.file: Final = StateFile(storage, self._content)

    def find(self, topic: str, group: str) -> FilterData | None:
        """Return the expression of a group for a topic, dead or not; None if there is none."""
        groups = self._by_topic.get(topic)
        return None if groups is None else groups.get(group)

    def register(self, group: str, wanted: Iterable[SubscriptionData]) -> Generator[None, None, None]:
        """Adopt the expressions of a heartbeat, in steps of one; missing topics become dead.

        An unreadable expression is not kept, and its predecessor is removed: pulls get the error.
        """
        topics = set()
        for data in wanted:
            topics.add(data.topic)
            if not is_by_tags(data.expression_type) and data.sub_string:
                yield
                self._register(group, data)
        for topic in self._topics_of.get(group, ()):
            if topic not in topics:
                self._die(self._by_topic[topic][group])

    def unregister(self, group: str) -> None:
        """Mark the expressions of a group without members as dead."""
        for topic in self._topics_of.get(group, ()):
            self._die(self._by_topic[topic][group])

    def clean(self) -> None:
        """Remove expressions that have been dead for too long."""
        limit = self._clock.now_ms() - self._settings.broker.filter_data_clean_time_span
        for groups in list(self._by_topic.values()):
            for data in list(groups.values()):
                if data.is_dead and data.dead_time <= limit:
                    self._remove(data)

    def load(self) -> None:
        """Read the file; ConfigError when it can't be read. All expressions are dead, as no member is connected yet."""
        raw = self.file.read()
        by_topic: dict[str, Any] = raw.get(_TABLE) or {}
        found = []
        for topic, its in by_topic.items():
            groups: dict[str, Any] = (its or {}).get(_GROUPS) or {}
            for group, fields in groups.items():
                data = typed(fields, FilterData, f"{FILE_NAME}: group {group} of topic {topic}")
                found.append(msgspec.structs.replace(data, topic=topic, consumer_group=group))
                self._unknown_of[topic, group] = unknown_fields(fields, (*_FIELDS, "dead"))
        self._unknown = unknown_fields(raw, (_TABLE,))
        if any(not self._is_of_filter(data) for data in found):
            log.info("expressions of consumers are dropped: the size of the Bloom filter has changed")
            self._unknown_of.clear()
            self.file.behind = True
            return
        dead_ms = self._clock.now_ms() - _DEAD_AT_START_MS
        for data in found:
            self._keep(data)
            if data.dead_time == 0:
                data.dead_time = max(dead_ms, data.born_time)
                self.file.behind = True

    def save(self) -> None:
        """Write the file if anything has changed since the last time."""
        self.file.save()

    def close(self) -> None:
        """Close the file; unsaved changes are lost."""
        self.file.close()

    def _register(self, group: str, data: SubscriptionData) -> None:
        old = self.find(data.topic, group)
        version, expression = data.sub_version, data.sub_string
        if old is not None and version <= old.client_version:
            if version == old.client_version and old.is_dead:
                self._revive(old)
            return
        same = (expression, data.expression_type)
        if old is not None and same == (old.expression, old.expression_type):
            old.client_version = version
            self._revive(old)
            return
        if old is not None:
            self._remove(old)
        try:
            compile_filter(expression, data.expression_type)
        except FilterError as error:
            log.warning(
                "expression of a consumer can't be read", extra={"group": group, "topic": data.topic, "error": error}
            )
            return
        if self._kept_chars + len(expression) + _ROW_CHARS > KEPT_CHARS_MAX:
            log.error(
                "expression of a consumer is not kept: there are too many", extra={"group": group, "topic": data.topic}
            )
            return
        positions = self._bloom.positions(f"{group}#{data.topic}")
        bloom = BloomData(self._bloom.bits, tuple(positions))
        now_ms = self._clock.now_ms()
        self._keep(FilterData(data.topic, group, expression, data.expression_type, now_ms, 0, version, bloom))
        self.file.behind = True

    def _is_of_filter(self, data: FilterData) -> bool:
        bloom = data.bloom_filter_data
        return bloom.bit_num == self._bloom.bits and len(bloom.bit_pos) == self._bloom.hashes

    def _keep(self, data: FilterData) -> None:
        self._by_topic.setdefault(data.topic, {})[data.consumer_group] = data
        self._topics_of.setdefault(data.consumer_group, {})[data.topic] = None
        self._kept_chars += len(data.expression) + _ROW_CHARS

    def _remove(self, data: FilterData) -> None:
        topic, group = data.topic, data.consumer_group
        del self._by_topic[topic][group], self._topics_of[group][topic]
        if not self._by_topic[topic]:
            del self._by_topic[topic]
        if not self._topics_of[group]:
            del self._topics_of[group]
        self._unknown_of.pop((topic, group), None)
        self._kept_chars -= len(data.expression) + _ROW_CHARS
        self.file.behind = True

    def _die(self, data: FilterData) -> None:
        if not data.is_dead:
            data.dead_time = self._clock.now_ms()
            self.file.behind = True

    def _revive(self, data: FilterData) -> None:
        if data.is_dead:
            data.dead_time = 0
        self.file.behind = True

    def _content(self) -> Mapping[str, Any]:
        table = {
            topic: {_GROUPS: {group: self.row(data) for group, data in groups.items()}, "topic": topic}
            for topic, groups in self._by_topic.items()
        }
        return dict(sorted((self._unknown | {_TABLE: table}).items()))

    def row(self, data: FilterData) -> dict[str, Any]:
        """Return an expression in the form of the file."""
        own = {name: getattr(data, field) for name, field in _FIELDS.items()}
        unknown = self._unknown_of.get((data.topic, data.consumer_group), {})
        return dict(sorted((unknown | own | {"dead": data.is_dead}).items()))


_FIELDS: Final = dict(zip(FilterData.__struct_encode_fields__, FilterData.__struct_fields__, strict=True))
