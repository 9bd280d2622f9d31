"""Bodies that brokers, name servers and their clients exchange about topics and routes.

All are JSON in fastjson2's dialect (see ``wire.fastjson``). Only a broker may register with a compressed body, a zlib
stream of:

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

Source: RocketMQ's ``org.apache.rocketmq.remoting.protocol.{body,route,statictopic}``, ``TopicConfig#encode``,
``RegisterBrokerBody#encode``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Iterator
from typing import Annotated, Any, Final, TypeVar

import msgspec

from firearrow.errors import MessageError
from firearrow.steps import result_of
from firearrow.wire import fastjson
from firearrow.wire.headers import RouteHeader

T = TypeVar("T")

STANDARD_JSON_VERSION: Final = 401  # MQVersion V4_9_4: from it on clients read standard JSON
MASTER_ID: Final = 0  # the broker id of a master; slaves have others
QUEUE_TYPE: Final = "queue.type"  # an attribute of topics
PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1

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


class Body(msgspec.Struct, rename="camel", frozen=True):
    """Base of the bodies; ``fastjson.dumps`` writes them and ``fastjson.decode`` reads them."""


LEAD: Final = 100_000
"""Changes that are added to a version to make it later than another that was not seen for a minute."""


class DataVersion(Body, frozen=True):
    """Version of a table's state: two states are the same when all three numbers are."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def next_version(self, now_ms: int) -> DataVersion:
        """Return the version after one more change, made at ``now_ms``."""
        return DataVersion(self.state_version, now_ms, self.counter + 1)

    def leading(self, now_ms: int) -> DataVersion:
        """Return a version that is later than any that another broker has made from this one meanwhile."""
        return DataVersion(self.state_version, now_ms, self.counter + LEAD)

    def is_later_than(self, other: DataVersion) -> bool:
        """Tell whether it is the later one, by the rules of RocketMQ's ``DataVersion#compare``."""
        ours = self.state_version, self.counter, self.timestamp
        return ours > (other.state_version, other.counter, other.timestamp)


class TopicConfig(Body, frozen=True):
    """A broker's configuration of a topic. ``perm`` is the sum of 4 read, 2 write, 1 inherit."""

    topic_name: str | None = None
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = {}

    @property
    def wants_batches(self) -> bool:
        """True if the topic must have queues of batches (``firearrow.store.batchqueue``)."""
        return self.attributes.get(QUEUE_TYPE) == "BatchCQ"

    def to_line(self) -> str:
        """Return the topic's line in a compressed register body."""
        head = (self.topic_name, self.read_queue_nums, self.write_queue_nums, self.perm)
        attributes = fastjson.dumps(self.attributes).decode()
        return " ".join((*map(str, head), self.topic_filter_type, attributes))

    @classmethod
    def from_line(cls, line: str) -> TopicConfig:
        """Read such a line; raises MessageError when it is none."""
        name, *rest = line.split(" ", 5)
        try:
            read, write, perm, filter_type = int(rest[0]), int(rest[1]), int(rest[2]), rest[3]
        except (ValueError, IndexError):
            raise MessageError(f"not a topic config: {line[:80]!r}") from None
        attributes: dict[str, str] = {}
        if len(rest) > 4 and rest[4] != "{}":  # nearly no topic has any
            attributes = _part(rest[4].encode(), dict[str, str])
        return cls(name, read, write, perm, filter_type, attributes=attributes)


class TopicQueueMappingInfo(Body, frozen=True):
    """Logical queues of a static topic that a broker holds now."""

    topic: str | None = None
    scope: str | None = "__global__"
    total_queues: int = 0
    bname: str | None = None
    epoch: int = 0
    dirty: bool = False
    curr_id_map: dict[int, int] = {}


class TopicConfigTable(Body, frozen=True):
    """The topics of a broker and their version; without the mapping fields it is topics.json."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}
    mapping_data_version: DataVersion | None = None
    topic_queue_mapping_detail_map: dict[str, Any] | None = None
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] | None = None


FilterServers = Annotated[list[str], msgspec.Meta(max_length=FILTER_SERVERS_MAX)]


class RegisterBody(Body, frozen=True):
    """103: registration of a broker."""

    topic_config_serialize_wrapper: TopicConfigTable = TopicConfigTable()
    filter_server_list: FilterServers = []

    def encode(self, compressed: bool = False) -> bytes:
        """Return the plain or the compressed form."""
        return zlib.compress(b"".join(self._parts())) if compressed else fastjson.dumps(self)

    def _parts(self) -> Iterator[bytes]:
        table = self.topic_config_serialize_wrapper
        mappings = table.topic_queue_mapping_info_map or {}
        yield _with_length(fastjson.dumps(table.data_version))
        yield _LENGTH.pack(len(table.topic_config_table))
        for topic in table.topic_config_table.values():
            yield _with_length(topic.to_line().encode())
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
            return (yield from _read_plain(fastjson.ObjectEntries(data)))
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
        if size > fastjson.ENTRY_BYTES_MAX:
            raise MessageError(
                f"a part of the register body has {size} bytes, the limit is {fastjson.ENTRY_BYTES_MAX}", position=start
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
    assert len(data) <= fastjson.ENTRY_BYTES_MAX, "it was cut out of a registration"
    return fastjson.decode(data, type_, PART_LIMITS)


def _read_plain(entries: fastjson.ObjectEntries) -> Generator[None, None, RegisterBody]:
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


def _read_wrapper(entries: fastjson.ObjectEntries, found: _RegistrationParts) -> Iterator[None]:
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
    entries: fastjson.ObjectEntries, type_: type[T], table: dict[str, T], found: _RegistrationParts
) -> Iterator[None]:
    for number, name in enumerate(entries.names(), 1):
        _check_count(number, "topics")
        text = entries.value()
        table[name] = _part(text, type_)
        if found.ends_step(len(text)):
            yield


def _read_compressed(reader: _Reader) -> Generator[None, None, RegisterBody]:
    found = _RegistrationParts()
    found.version = _part(reader.piece(), DataVersion)
    for _ in range(_check_count(reader.number(), "topics")):
        line = reader.piece()
        topic = TopicConfig.from_line(line.decode())
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


QUEUES_MAX = 65_536
"""Limit of the queues of a topic that a client accepts: each costs it some 200 bytes. Topics have hundreds."""


class QueueData(Body, frozen=True):
    """The queues of a topic on one broker name."""

    broker_name: str
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


class BrokerData(Body, frozen=True):
    """The addresses (``ip:port``) of one broker name by broker id; 0 is the master."""

    cluster: str | None
    broker_name: str
    broker_addrs: dict[int, str]
    enable_acting_master: bool = False
    zone_name: str | None = None

    @property
    def address(self) -> str:
        """Address of the master, or otherwise of the slave with the lowest id."""
        return self.broker_addrs[min(self.broker_addrs)]


class Route(Body, frozen=True):
    """105, 217: the brokers and queues of a topic."""

    queue_datas: list[QueueData] = []
    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None

    def usable(self) -> tuple[Route, list[str]]:
        """Return the route without its unusable entries, and the faults of these entries.

        A name server passes on any numbers that brokers and administrators send to it.
        """
        faults: list[str] = []
        left = QUEUES_MAX

        def fits(what: str, count: int) -> bool:
            nonlocal left
            if 0 <= count <= left:
                left -= count
                return True
            faults.append(f"{what} has {count} queues, a topic may have {QUEUES_MAX}")
            return False

        def is_order(part: str) -> bool:
            broker, _, number = part.strip().partition(":")
            if broker and number.isascii() and number.isdecimal() and len(number) < 10:
                return fits(f"broker {broker!r} in orderTopicConf", int(number))
            if broker or number:
                faults.append(f"{part!r} in orderTopicConf is no broker with a number")
            return False

        queues = [
            data
            for data in self.queue_datas
            if fits(f"broker {data.broker_name!r}", max(data.read_queue_nums, data.write_queue_nums))
        ]
        order = self.order_topic_conf
        if order:
            left = QUEUES_MAX
            order = ";".join(part.strip() for part in order.split(";") if is_order(part))
        mappings = self.topic_queue_mapping_by_broker
        for name, mapping in list((mappings or {}).items()):
            left = QUEUES_MAX
            if not fits(f"the mapping of broker {name!r}", mapping.total_queues):
                mappings = {key: it for key, it in (mappings or {}).items() if key != name}
        if not faults:
            assert len(queues) == len(self.queue_datas), "an entry that is left out has a fault"
            return self, faults
        assert mappings is None or len(mappings) <= len(self.topic_queue_mapping_by_broker or ())
        return msgspec.structs.replace(
            self, queue_datas=queues, order_topic_conf=order, topic_queue_mapping_by_broker=mappings
        ), faults


def is_standard_json_wanted(version: int, header: RouteHeader) -> bool:
    """Tell whether a client of a version reads standard JSON in place of fastjson's dialect."""
    return version >= STANDARD_JSON_VERSION or bool(header.accept_standard_json_only)


def route_body(route: Route, *, standard: bool) -> bytes:
    """Write a route, as standard JSON or in fastjson's dialect."""
    return fastjson.dumps_standard(route) if standard else fastjson.dumps(route)


class ClusterInfo(Body, frozen=True):
    """106: all brokers, and the broker names of each cluster."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class TopicList(Body, frozen=True):
    """206, 224, 304, 305, 311 to 313, 343: names of topics."""

    topic_list: list[str] = []
    broker_addr: str | None = None


class KVTable(Body, frozen=True):
    """28, 103, 219: pairs of text."""

    table: dict[str, str] = {}


class MemberGroup(Body, frozen=True):
    """The addresses of one broker name, as the answer to 901 lists them."""

    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[int, str] = {}


class MemberGroupBody(Body, frozen=True):
    """901: a member group, absent when the broker name is unknown."""

    broker_member_group: MemberGroup | None = None
