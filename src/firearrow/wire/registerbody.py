"""Registration of a broker at a name server, and its two forms.

It is JSON, or a zlib stream of:

========  ====================================================================================
size      content
========  ====================================================================================
4 + n     data version, JSON
4         number of topics
4 + n     each topic: ``name read write perm SINGLE_TAG {"message.type":"FIFO"}``
4 + n     filter servers, a JSON list
4         number of static topics
4 + n     each of them: its mapping, JSON
========  ====================================================================================

Numbers and lengths are big-endian i32. The topic line for 4 read and 5 write queues is
``542034203520362053494e474c455f544147207b7d``, ``T 4 5 6 SINGLE_TAG {}``. It has no place for a
topic's ``order`` and ``topicSysFlag``. Releases before 5.0.0 send neither attributes nor mappings.

A registration is read in steps of some milliseconds, so that no broker holds up a name server. JSON is cut into the
entries of its objects for that.

Source: RocketMQ's ``RegisterBrokerBody#encode``, ``TopicConfig#encode``.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Generator, Iterator
from typing import Annotated, Any, Final, NoReturn, TypeVar

import msgspec

from firearrow.errors import MessageError
from firearrow.steps import result_of
from firearrow.wire import fastjson
from firearrow.wire.bodies import Body, DataVersion, TopicConfig, TopicConfigTable, TopicQueueMappingInfo

T = TypeVar("T")

# A broker with 100,000 topics registers with about 20 MB.
REGISTER_BODY_BYTES_MAX: Final = 32 * 1024 * 1024
INFLATED_BYTES: Final = 512 * 1024  # in one step; two milliseconds
# Each takes some microseconds here. Topics with nothing but a name would fit by the million.
REGISTER_TOPICS_MAX: Final = 200_000
# They are in the route of each topic. No broker has had any since 5.0.0.
FILTER_SERVERS_MAX: Final = 1000
STEP_TOPICS: Final = 100
STEP_BYTES: Final = 64 * 1024  # of topics with long attributes
# Of a part of a registration. It may differ from plain JSON only by a static topic's integer keys without quotes. None
# goes to the parser, which takes a thousand times as long as the rest.
PART_LIMITS: Final = fastjson.TextLimits(0, 256 * 1024)
_LENGTH: Final = struct.Struct(">i")
# Parts of an object that is cut into its entries: a name with the comma before it, the text up to the next bracket, and
# a value without brackets.
_A_TEXT: Final = rb'"(?:[^"\\]++|\\.|(?!))*+"'
_TO_NAME: Final = re.compile(rb"\s*+,?+\s*+(%b|-?+[0-9]++)\s*+:\s*+" % _A_TEXT, re.DOTALL)
_TO_BRACKET: Final = re.compile(rb"(?:[^\"{}\[\]]++|%b|(?!))*+" % _A_TEXT, re.DOTALL)
_LEAF: Final = re.compile(rb"(?:%b|[^\"{}\[\],]++|(?!))++" % _A_TEXT, re.DOTALL)
_OPENING: Final = re.compile(rb"\s*+\{\s*+")
_CLOSED: Final = re.compile(rb"\s*+\}\s*+")
# Size limit of one name or value that is cut out: it takes up to 12 ms. A static topic of 40,000 queues has less.
ENTRY_BYTES_MAX: Final = 512 * 1024
BRACKETS_MAX: Final = 10_000  # in one value that is cut out; 3 ms
_BRACKETS: Final = frozenset((b"{", b"[", b"}", b"]"))

FilterServers = Annotated[list[str], msgspec.Meta(max_length=FILTER_SERVERS_MAX)]


class RegisterBody(Body, frozen=True):
    """103: registration of a broker."""

    topic_config_serialize_wrapper: TopicConfigTable = TopicConfigTable()
    filter_server_list: FilterServers = msgspec.field(default_factory=list)

    def encode(self, compressed: bool = False) -> bytes:
        """Return the plain or the compressed form."""
        return zlib.compress(b"".join(self._parts())) if compressed else fastjson.dumps(self)

    def _parts(self) -> Iterator[bytes]:
        table = self.topic_config_serialize_wrapper
        mappings = table.topic_queue_mapping_info_map or {}
        yield _with_length(fastjson.dumps(table.data_version))
        yield _LENGTH.pack(len(table.topic_config_table))
        for topic in table.topic_config_table.values():
            yield _with_length(line_of(topic).encode())
        yield _with_length(fastjson.dumps(self.filter_server_list))
        yield _LENGTH.pack(len(mappings))
        for mapping in mappings.values():
            yield _with_length(fastjson.dumps(mapping))

    @classmethod
    def decode(cls, data: bytes, compressed: bool = False) -> RegisterBody:
        """Read either form; raises MessageError that names the fault."""
        return result_of(cls.decode_in_steps(data, compressed))

    @staticmethod
    def decode_in_steps(data: bytes, compressed: bool = False) -> Generator[None, None, RegisterBody]:
        """Read either form in steps of some milliseconds, whatever its length.

        Raises MessageError that names the fault.
        """
        if not compressed:
            return (yield from _read_plain(ObjectEntries(data)))
        plain = yield from _inflate(data)
        try:
            return (yield from _read_compressed(_Reader(plain)))
        except UnicodeDecodeError as error:
            raise MessageError(f"the compressed register body can't be read: {error}") from None


def body_crc32(data: bytes) -> int:
    """Return the checksum of a register body: CRC-32 without its highest bit."""
    return zlib.crc32(data) & 0x7FFFFFFF


class _Reader:
    """Reader of the fields of a compressed register body, one after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at_end(self) -> bool:
        assert self._at <= len(self._data), "a part that leaves the body is an error"
        return self._at == len(self._data)

    def number(self) -> int:
        if self._at + _LENGTH.size > len(self._data):
            raise MessageError("the register body ends too early", position=self._at)
        number: int = _LENGTH.unpack_from(self._data, self._at)[0]
        if number < 0:
            raise MessageError(f"{number} can't be a length", position=self._at)
        self._at += _LENGTH.size
        return number

    def piece(self) -> bytes:
        start = self._at + _LENGTH.size
        size = self.number()
        if size > ENTRY_BYTES_MAX:
            raise MessageError(
                f"a part of the register body has {size} bytes, the limit is {ENTRY_BYTES_MAX}", position=start
            )
        end = start + size
        if end > len(self._data):
            raise MessageError("the register body ends too early", position=start)
        self._at = end
        return self._data[start:end]


class _RegistrationParts:
    """The parts of a registration that are read already."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicConfig] = {}
        self.mappings: dict[str, TopicQueueMappingInfo] = {}
        self.details: dict[str, Any] | None = None
        self.version = DataVersion()
        self.mapping_version: DataVersion | None = None
        self.filter_servers: list[str] = []
        self._items = self._bytes = 0

    def ends_step(self, size: int) -> bool:
        """Tell whether another step must begin behind a part of this size in bytes."""
        self._items += 1
        self._bytes += size
        if self._items < STEP_TOPICS and self._bytes < STEP_BYTES:
            return False
        self._items = self._bytes = 0
        return True

    def body(self) -> RegisterBody:
        """The registration."""
        table = TopicConfigTable(self.version, self.topics, self.mapping_version, self.details, self.mappings)
        return RegisterBody(table, self.filter_servers)


def _part(data: bytes, type_: type[T]) -> T:
    """Read a part of a registration."""
    assert len(data) <= ENTRY_BYTES_MAX, "it was cut out of a registration"
    return fastjson.decode(data, type_, PART_LIMITS)


def _read_plain(entries: ObjectEntries) -> Generator[None, None, RegisterBody]:
    found = _RegistrationParts()
    for name in entries.names():
        if name == "topicConfigSerializeWrapper":
            yield from _read_wrapper(entries, found)
        elif name == "filterServerList":
            found.filter_servers = _part(entries.value(), FilterServers)
        else:
            entries.value()
        yield
    if not entries.at_end:
        raise MessageError("there is more after the end of the register body")
    return found.body()


def _read_wrapper(entries: ObjectEntries, found: _RegistrationParts) -> Iterator[None]:
    for name in entries.names():
        if name == "dataVersion":
            found.version = _part(entries.value(), DataVersion)
        elif name == "topicConfigTable":
            yield from _read_table(entries, TopicConfig, found.topics, found)
        elif name == "topicQueueMappingInfoMap":
            yield from _read_table(entries, TopicQueueMappingInfo, found.mappings, found)
        elif name == "topicQueueMappingDetailMap":
            found.details = {}
            yield from _read_table(entries, Any, found.details, found)
        elif name == "mappingDataVersion":
            text = entries.value()
            found.mapping_version = None if text == b"null" else _part(text, DataVersion)
        else:
            entries.value()
        yield


def _read_table(
    entries: ObjectEntries, type_: type[T], table: dict[str, T], found: _RegistrationParts
) -> Iterator[None]:
    for number, name in enumerate(entries.names(), 1):
        _check_count(number, "topics")
        text = entries.value()
        table[name] = _part(text, type_)
        if found.ends_step(len(text)):
            yield


def line_of(topic: TopicConfig) -> str:
    """Return the line of a topic in a compressed register body."""
    head = (topic.topic_name, topic.read_queue_nums, topic.write_queue_nums, topic.perm)
    attributes = fastjson.dumps(topic.attributes).decode()
    return " ".join((*map(str, head), topic.topic_filter_type, attributes))


def topic_in(line: str) -> TopicConfig:
    """Read such a line; raises MessageError when it is none."""
    name, *rest = line.split(" ", 5)
    try:
        read, write, perm, filter_type = int(rest[0]), int(rest[1]), int(rest[2]), rest[3]
    except (ValueError, IndexError):
        raise MessageError(f"not a topic config: {line[:80]!r}") from None
    attributes: dict[str, str] = {}
    if len(rest) > 4 and rest[4] != "{}":  # nearly no topic has any
        attributes = _part(rest[4].encode(), dict[str, str])
    return TopicConfig(name, read, write, perm, filter_type, attributes=attributes)


def _read_compressed(reader: _Reader) -> Generator[None, None, RegisterBody]:
    found = _RegistrationParts()
    found.version = _part(reader.piece(), DataVersion)
    for _ in range(_check_count(reader.number(), "topics")):
        line = reader.piece()
        topic = topic_in(line.decode())
        found.topics[topic.topic_name or ""] = topic
        if found.ends_step(len(line)):
            yield
    found.filter_servers = _part(reader.piece(), FilterServers)
    for _ in range(0 if reader.at_end else _check_count(reader.number(), "static topics")):
        text = reader.piece()
        mapping = _part(text, TopicQueueMappingInfo)
        found.mappings[mapping.topic or ""] = mapping
        if found.ends_step(len(text)):
            yield
    return found.body()


def _check_count(count: int, of_what: str) -> int:
    if count > REGISTER_TOPICS_MAX:
        raise MessageError(f"the register body has {count} {of_what}, the limit is {REGISTER_TOPICS_MAX}")
    return count


def _inflate(data: bytes) -> Generator[None, None, bytes]:
    inflater = zlib.decompressobj()
    pieces: list[bytes] = []
    left, room = data, REGISTER_BODY_BYTES_MAX
    try:
        while not inflater.eof and (left or not pieces):
            pieces.append(inflater.decompress(left, min(INFLATED_BYTES, room + 1)))
            left, room = inflater.unconsumed_tail, room - len(pieces[-1])
            if room < 0:
                raise MessageError(f"the register body holds more than {REGISTER_BODY_BYTES_MAX} bytes")
            yield
    except zlib.error as error:
        raise MessageError(f"the register body is no zlib stream: {error}") from None
    if not inflater.eof:
        raise MessageError("the register body is cut off")
    plain = b"".join(pieces)
    assert len(plain) == REGISTER_BODY_BYTES_MAX - room
    return plain


def _with_length(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


class ObjectEntries:
    """Iterator that cuts a long text into entries of its objects, so that each entry can be read separately.

    A loop over ``names`` is within an object. For each name it takes the ``value``, or loops over the names of that
    value. Both raise MessageError for a text that can't be cut.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at_end(self) -> bool:
        """Tell whether nothing is left."""
        return self._at == len(self._data)

    def names(self) -> Iterator[str]:
        """Iterate over the names of the next object; a null has none."""
        if self._take(_OPENING, self._at + ENTRY_BYTES_MAX) is None:
            if self.value().strip() == b"null":
                return
            self._fail("an object is missing")
        while self._take(_CLOSED, self._at + ENTRY_BYTES_MAX) is None:
            name = self._take(_TO_NAME, self._at + ENTRY_BYTES_MAX)
            if name is None:
                self._fail("a name is missing")
            yield fastjson.decode(name[1], str)

    def value(self) -> bytes:
        """Return the text of the next value."""
        start = self._at
        end = start + ENTRY_BYTES_MAX
        opened = brackets = 0
        while True:
            self._take(_TO_BRACKET if opened else _LEAF, end)
            bracket = self._data[self._at : self._at + 1]
            if opened or self._at == start:
                if bracket not in _BRACKETS:
                    self._fail(f"a bracket is missing, or a value has over {ENTRY_BYTES_MAX} bytes")
                self._at += 1
                opened += 1 if bracket in (b"{", b"[") else -1
                brackets += 1
            if not opened:
                assert self._at > start, "a value has a byte at least, so a loop over values ends"
                return self._data[start : self._at]
            if opened < 0 or brackets > BRACKETS_MAX:
                self._fail(f"a value has brackets that match nothing, or over {BRACKETS_MAX}")

    def _take(self, pattern: re.Pattern[bytes], end: int) -> re.Match[bytes] | None:
        found = pattern.match(self._data, self._at, end)
        if found is not None:
            self._at = found.end()
        return found

    def _fail(self, why: str) -> NoReturn:
        raise MessageError(why, "JSON", self._at)
