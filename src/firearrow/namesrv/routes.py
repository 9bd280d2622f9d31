"""Tables of a name server: brokers, their clusters and topics, and their leases.

Brokers register their topics, and repeat that (every 30 s). A registration is forgotten when its lease ends, when its
connection closes or when the broker unregisters. The tables are never on disk.

=============== ============================================ ===============================
table           key                                          value
=============== ============================================ ===============================
topics          topic, broker name                           queues and permission
brokers         broker name                                  cluster, addresses by broker id
clusters        cluster                                      broker names
live            cluster, broker address                      data version, lease, channel
filter servers  cluster, broker address                      addresses
mappings        static topic, broker name                    logical queues on that broker
=============== ============================================ ===============================

All values are immutable and replaced on change. ``version`` counts the changes: values derived from these tables are
outdated when it has changed. The tables know no sockets; a channel is any object that stands for a broker's connection.

Source of the rules: RocketMQ's ``RouteInfoManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from typing import Final

import msgspec

from firearrow.clock import Clock
from firearrow.errors import BrokerError
from firearrow.message.names import broker_member_topic
from firearrow.namesrv.config import NamesrvConfig
from firearrow.steps import result_of
from firearrow.wire.bodies import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    ClusterInfo,
    DataVersion,
    MemberGroup,
    QueueData,
    Route,
    TopicConfig,
    TopicConfigTable,
    TopicQueueMappingInfo,
)
from firearrow.wire.codes import ResponseCode
from firearrow.wire.headers import RegisterBroker
from firearrow.wire.registerbody import RegisterBody

LEASE_SECONDS: Final = 120.0  # Java: DEFAULT_BROKER_CHANNEL_EXPIRED_TIME; two registrations may fail

STEP_TOPICS: Final = 2000  # of a registration that are taken in one step; two milliseconds
NAME_CHARS_MAX: Final = 255  # of a topic, or a filter server's address
# Bytes kept for a topic, for a queue of a static one, and for a broker, in addition to names.
TOPIC_BYTES, QUEUE_BYTES, BROKER_BYTES = 300, 100, 2000
KEPT_BYTES_MAX: Final = 128 * 1024 * 1024
"""Limit for one connection: a broker with the maximum count of topics needs two thirds of it."""
UNIT_FLAG: Final = 1
UNIT_SUB_FLAG: Final = 2

_SYNC_MEMBER_PREFIX: Final = broker_member_topic("")


class Live(msgspec.Struct, frozen=True):
    """A registered broker process; times are of the monotonic clock, in seconds."""

    broker_name: str
    channel: object
    data_version: DataVersion
    ha_server_addr: str
    lease_seconds: float
    expires_at: float


class Registered(msgspec.Struct, frozen=True):
    """Answer to a registration: the master of the broker, if it is a slave that has one."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class MinBrokerIdChange(msgspec.Struct, frozen=True):
    """Change of the smallest broker id of a broker name; ``tell`` are the addresses to notify."""

    broker_name: str
    min_broker_id: int
    min_broker_addr: str
    offline_broker_addr: str | None
    ha_broker_addr: str | None
    tell: tuple[str, ...]


_Key = tuple[str, str]


class RouteTables:
    """The tables of a name server.

    ``config`` is called at each use, because the configuration can change while the server runs. ``on_min_broker_id``
    is called when the smallest broker id changes. ``keep`` is called with a channel and the change, in bytes, of the
    data that are kept of it; it may refuse more by a BrokerError.
    """

    def __init__(
        self,
        clock: Clock,
        config: Callable[[], NamesrvConfig],
        on_min_broker_id: Callable[[MinBrokerIdChange], None] | None = None,
        keep: Callable[[object, int], None] = lambda channel, size: None,
    ) -> None:
        self._clock = clock
        self._config = config
        self._on_min_broker_id = on_min_broker_id
        self._keep = keep
        self._kept: dict[_Key, tuple[object, int]] = {}  # the channel and the bytes
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._live: dict[_Key, Live] = {}
        self._filter_servers: dict[_Key, list[str]] = {}
        self._mappings: dict[str, dict[str, TopicQueueMappingInfo]] = {}
        self.version: int = 0

    # --- registration -----------------------------------------------------------------------

    def register(self, header: RegisterBroker, body: RegisterBody, channel: object) -> Registered:
        """Do all steps of `register_in_steps` at once."""
        return result_of(self.register_in_steps(header, body, channel))

    def register_in_steps(
        self, header: RegisterBroker, body: RegisterBody, channel: object
    ) -> Generator[None, None, Registered]:
        """Register a broker and its topics; this begins or renews its lease.

        An unknown broker with exactly one topic is refused with code 1: that is an incremental registration, and its
        base is missing. A broker is ignored if another address has its id with a newer state. An address is one broker:
        if it had another name, that is forgotten.

        Topics are taken in steps. If the broker is forgotten meanwhile, the rest has no effect.
        """
        table = body.topic_config_serialize_wrapper
        address, name, cluster = header.broker_addr, header.broker_name, header.cluster_name
        live = self._live.get((cluster, address))
        if live is not None and live.broker_name != name:
            self.unregister(cluster, live.broker_name, address)
        before = self._brokers.get(name)
        before_addrs = before.broker_addrs if before else {}
        addrs = {
            broker_id: other
            for broker_id, other in before_addrs.items()
            if other != address or broker_id == header.broker_id
        }
        if self._is_outdated(cluster, addrs.get(header.broker_id), address, table.data_version):
            self.unregister(cluster, name, address)
            return Registered()
        if header.broker_id not in addrs and len(table.topic_config_table) == 1:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "register broker failed")
        self._hold((cluster, address), channel, _size_of(body))
        is_new = before is None or header.broker_id not in addrs
        addrs = dict(sorted({**addrs, header.broker_id: address}.items()))
        broker = BrokerData(
            before.cluster if before else cluster, name, addrs, bool(header.enable_acting_master), header.zone_name
        )
        self._put_broker(cluster, broker)
        known = None if is_new else self._live.get((cluster, address))
        # Before the topics: the whole broker is forgotten if the connection ends between two steps. Its version is set
        # when all topics are registered.
        self._put_live(header, body, channel, known.data_version if known else DataVersion())
        yield from self._put_tables(header, broker, table, known)
        if self._is_here(header):
            self._put_live(header, body, channel, table.data_version)
        if before_addrs and header.broker_id < min(before_addrs):
            self._tell_min_broker_id(broker, None, header.ha_server_addr)
        return self._master_of(cluster, broker, header.broker_id)

    def _hold(self, key: _Key, channel: object, size: int) -> None:
        """Count a registration for its channel, and for no other."""
        holder, held = self._kept.get(key, (channel, 0))
        if holder is channel:
            self._keep(channel, size - held)
        else:
            self._keep(channel, size)
            self._keep(holder, -held)
        self._kept[key] = channel, size

    def _is_outdated(self, cluster: str, holder: str | None, address: str, version: DataVersion) -> bool:
        if holder is None or holder == address:
            return False
        live = self._live.get((cluster, holder))
        return live is not None and live.data_version.state_version > version.state_version

    def _put_broker(self, cluster: str, broker: BrokerData) -> None:
        names = self._clusters.setdefault(cluster, {})
        if broker.broker_name not in names or self._brokers.get(broker.broker_name) != broker:
            names[broker.broker_name] = None
            self._brokers[broker.broker_name] = broker
            self.version += 1

    def _put_tables(
        self, header: RegisterBroker, broker: BrokerData, table: TopicConfigTable, known: Live | None
    ) -> Iterator[None]:
        """Take over the topics of a master, or of the slave that would be the next master."""
        is_master = header.broker_id == MASTER_ID
        knows_acting = header.enable_acting_master is not None
        is_prime_slave = knows_acting and not is_master and header.broker_id == min(broker.broker_addrs)
        if not (is_master or is_prime_slave):
            return
        mappings = table.topic_queue_mapping_info_map or {}
        if self._config().delete_topic_with_broker_registration and not mappings:
            self._drop_missing_topics(broker.broker_name, table)
        is_changed = known is None or known.data_version != table.data_version
        read_only = is_prime_slave and broker.enable_acting_master
        for number, (name, topic) in enumerate(table.topic_config_table.items(), 1):
            if number % STEP_TOPICS == 0:
                yield
                if not self._is_here(header):
                    return
            topic_name = topic.topic_name or name
            if is_changed or broker.broker_name not in self._topics.get(topic_name, {}):
                self._put_queues(topic_name, _queues_of(broker.broker_name, topic, read_only))
        if is_changed:
            for number, (topic_name, mapping) in enumerate(mappings.items(), 1):
                if number % STEP_TOPICS == 0:
                    yield
                    if not self._is_here(header):
                        return
                self._mappings.setdefault(topic_name, {})[mapping.bname or ""] = mapping
                self.version += 1

    def _is_here(self, header: RegisterBroker) -> bool:
        broker = self._brokers.get(header.broker_name)
        return broker is not None and header.broker_addr in broker.broker_addrs.values()

    def _drop_missing_topics(self, broker_name: str, table: TopicConfigTable) -> None:
        kept = table.topic_config_table
        for topic in [t for t, on in self._topics.items() if broker_name in on and t not in kept]:
            self._drop_queues(topic, broker_name)

    def _put_queues(self, topic: str, queues: QueueData) -> None:
        on = self._topics.setdefault(topic, {})
        if on.get(queues.broker_name) != queues:
            on[queues.broker_name] = queues
            self.version += 1

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        on = self._topics.get(topic, {})
        if on.pop(broker_name, None) is not None:
            self.version += 1
            if not on:
                del self._topics[topic]

    def _put_live(self, header: RegisterBroker, body: RegisterBody, channel: object, version: DataVersion) -> None:
        key = (header.cluster_name, header.broker_addr)
        millis = header.heartbeat_timeout_millis
        lease = LEASE_SECONDS if millis is None else millis / 1000
        self._live[key] = Live(
            header.broker_name, channel, version, header.ha_server_addr, lease, self._clock.monotonic() + lease
        )
        before = self._filter_servers.pop(key, [])
        if body.filter_server_list:
            self._filter_servers[key] = body.filter_server_list
        if before != body.filter_server_list:
            self.version += 1

    def _master_of(self, cluster: str, broker: BrokerData, broker_id: int) -> Registered:
        master = broker.broker_addrs.get(MASTER_ID)
        if broker_id == MASTER_ID or master is None:
            return Registered()
        live = self._live.get((cluster, master))
        return Registered() if live is None else Registered(live.ha_server_addr, master)

    def touch(self, cluster: str, address: str) -> None:
        """Renew the lease of a broker, if it is known."""
        live = self._live.get((cluster, address))
        if live is not None:
            expires_at = self._clock.monotonic() + live.lease_seconds
            self._live[cluster, address] = msgspec.structs.replace(live, expires_at=expires_at)

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """Return the version of the topics that a broker registered last; None if the broker is unknown."""
        live = self._live.get((cluster, address))
        return None if live is None else live.data_version

    # --- forgetting -------------------------------------------------------------------------

    def unregister(self, cluster: str, broker_name: str, address: str, broker_id: int | None = None) -> None:
        """Forget an address of a broker name, and with its last one the name and its queues.

        With a ``broker_id`` that the address no longer has, nothing is forgotten: a late request of an earlier broker
        must not remove the broker that took its address. (Java: RouteInfoManager#unRegisterBroker removes it.)
        """
        known = self._brokers.get(broker_name)
        if broker_id is not None and known is not None:
            ids = [key for key, value in known.broker_addrs.items() if value == address]
            if ids and broker_id not in ids:
                return
        live = self._live.get((cluster, address))
        if live is not None and live.broker_name == broker_name:
            del self._live[cluster, address]
            holder, held = self._kept.pop((cluster, address))
            self._keep(holder, -held)
        if self._filter_servers.pop((cluster, address), None) is not None:
            self.version += 1
        before = self._brokers.get(broker_name)
        if before is None:
            return
        addrs = {key: value for key, value in before.broker_addrs.items() if value != address}
        if addrs == before.broker_addrs:
            return
        self.version += 1
        if not addrs:
            self._forget_name(broker_name)
            return
        broker = msgspec.structs.replace(before, broker_addrs=addrs)
        self._brokers[broker_name] = broker
        if broker.enable_acting_master and MASTER_ID not in addrs:
            self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE)
        if broker.enable_acting_master and min(addrs) != min(before.broker_addrs):
            self._tell_min_broker_id(broker, address, None)

    def _forget_name(self, broker_name: str) -> None:
        del self._brokers[broker_name]
        for cluster in [cluster for cluster, on in self._clusters.items() if broker_name in on]:
            del self._clusters[cluster][broker_name]
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        for topic in [topic for topic, on in self._topics.items() if broker_name in on]:
            self._drop_queues(topic, broker_name)

    def expire(self) -> list[object]:
        """Forget every broker whose lease has ended; return their channels, which the caller must close."""
        now = self._clock.monotonic()
        dead = {key: live for key, live in self._live.items() if live.expires_at < now}
        self._forget(dead.items())
        return [live.channel for live in dead.values()]

    def close_channel(self, channel: object) -> None:
        """Forget all registrations of a connection that has ended."""
        self._forget([(k, live) for k, live in self._live.items() if live.channel is channel])

    def _forget(self, gone: Iterable[tuple[_Key, Live]]) -> None:
        for (cluster, address), live in gone:
            self.unregister(cluster, live.broker_name, address)

    def _tell_min_broker_id(self, broker: BrokerData, offline: str | None, ha_address: str | None) -> None:
        if self._on_min_broker_id is None or not self._config().notify_min_broker_id_changed:
            return
        addrs = broker.broker_addrs
        lowest = min(addrs)
        tell_all = offline is not None or len(addrs) == 1
        tell = tuple(addr for key, addr in addrs.items() if tell_all or key != lowest)
        self._on_min_broker_id(MinBrokerIdChange(broker.broker_name, lowest, addrs[lowest], offline, ha_address, tell))

    # --- changes by administrators ----------------------------------------------------------

    def wipe_write_perm(self, broker_name: str) -> int:
        """Remove the write permission from all topics on a broker name; return their count."""
        return self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Make all topics on a broker name readable and writable; return their count.

        The inherit bit is lost, as in RocketMQ.
        """
        return self._change_perm(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def _change_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        changed = [on for on in self._topics.values() if broker_name in on]
        for on in changed:
            queues = on[broker_name]
            on[broker_name] = msgspec.structs.replace(queues, perm=change(queues.perm))
        self.version += 1
        return len(changed)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget the queues of a topic, all of them or those in one cluster."""
        names = self._clusters.get(cluster, {}) if cluster else self._topics.get(topic, {})
        for broker_name in list(names):
            self._drop_queues(topic, broker_name)

    def add_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Add queues of a topic, up to the first that is on no known broker name."""
        for item in queues:
            if item.broker_name not in self._brokers:
                return
            self._put_queues(topic, item)

    # --- queries ----------------------------------------------------------------------------

    def route(self, topic: str) -> Route | None:
        """Return the route of a topic; None when no registered broker has it."""
        on = self._topics.get(topic, {})
        brokers = [self._brokers[name] for name in on if name in self._brokers]
        if not brokers:
            return None
        route = Route(
            list(on.values()),
            brokers,
            dict(self._filter_servers_of(brokers)),
            topic_queue_mapping_by_broker=self._mappings.get(topic),
        )
        if self._config().support_acting_master and not topic.startswith(_SYNC_MEMBER_PREFIX):
            brokers = [_with_acting_master(broker, on[broker.broker_name]) for broker in brokers]
            route = msgspec.structs.replace(route, broker_datas=brokers)
        return route

    def _filter_servers_of(self, brokers: list[BrokerData]) -> Iterator[tuple[str, list[str]]]:
        if self._filter_servers:
            for broker in brokers:
                for address in broker.broker_addrs.values():
                    servers = self._filter_servers.get((broker.cluster or "", address))
                    if servers:
                        yield address, servers

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers and clusters."""
        names = {cluster: list(names) for cluster, names in self._clusters.items()}
        return ClusterInfo(dict(self._brokers), names)

    def member_group(self, cluster: str, broker_name: str) -> MemberGroup:
        """Return the addresses of a broker name, none if it is unknown."""
        broker = self._brokers.get(broker_name)
        return MemberGroup(cluster, broker_name, broker.broker_addrs if broker else {})

    def topics(self) -> list[str]:
        """Return all topics."""
        return list(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics that are on any broker of a cluster."""
        names = self._clusters.get(cluster, {})
        return [topic for topic, on in self._topics.items() if not names.keys().isdisjoint(on)]

    def topics_with_flags(self, having: int, lacking: int = 0) -> list[str]:
        """Return the topics whose system flag on their first broker fits."""
        flags = {topic: next(iter(on.values())).topic_sys_flag for topic, on in self._topics.items()}
        return [topic for topic, flag in flags.items() if flag & having and not flag & lacking]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the topics named after clusters and brokers, and the address of some broker."""
        names = [name for cluster, on in self._clusters.items() for name in (cluster, *on)]
        addresses = (a for broker in self._brokers.values() for a in broker.broker_addrs.values())
        return list(dict.fromkeys(names)), next(addresses, None)


def _size_of(body: RegisterBody) -> int:
    """Return about the size in bytes that a registration takes; raises BrokerError for a name that is too long."""
    table = body.topic_config_serialize_wrapper
    mappings = table.topic_queue_mapping_info_map or {}
    names = [topic.topic_name or name for name, topic in table.topic_config_table.items()]
    longest = max(map(len, chain(names, mappings, body.filter_server_list)), default=0)
    if longest > NAME_CHARS_MAX:
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER, f"a name has {longest} characters, the limit is {NAME_CHARS_MAX}"
        )
    queues = sum(len(mapping.curr_id_map) for mapping in mappings.values())
    text = sum(map(len, names))
    return text + TOPIC_BYTES * (len(names) + len(mappings)) + QUEUE_BYTES * queues + BROKER_BYTES


def _queues_of(broker_name: str, topic: TopicConfig, read_only: bool) -> QueueData:
    return QueueData(
        broker_name,
        topic.read_queue_nums,
        topic.write_queue_nums,
        topic.perm & ~PERM_WRITE if read_only else topic.perm,
        topic.topic_sys_flag,
    )


def _with_acting_master(broker: BrokerData, queues: QueueData) -> BrokerData:
    """Show the slave with the lowest id as master if there is no master and only reading is allowed."""
    addrs = broker.broker_addrs
    if MASTER_ID in addrs or not broker.enable_acting_master or queues.perm & PERM_WRITE:
        return broker
    lowest = min(addrs)
    acting = {MASTER_ID if key == lowest else key: addr for key, addr in addrs.items()}
    return msgspec.structs.replace(broker, broker_addrs=acting)
