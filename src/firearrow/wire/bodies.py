"""Bodies that brokers, name servers and their clients exchange about topics and routes.

All are JSON in fastjson2's dialect (see ``wire.fastjson``). `wire.registerbody` has a broker's registration.

Source: RocketMQ's ``org.apache.rocketmq.remoting.protocol.{body,route,statictopic}``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from firearrow.wire import fastjson

if TYPE_CHECKING:
    from firearrow.wire.headers import RouteHeader

STANDARD_JSON_VERSION: Final = 401  # MQVersion V4_9_4: from it on clients read standard JSON
MASTER_ID: Final = 0  # the broker id of a master; slaves have others
QUEUE_TYPE: Final = "queue.type"  # an attribute of topics
PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1


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
