"""Registrations, for tests of the name server's tables and answers."""

from firearrow.wire.bodies import DataVersion, TopicConfig, TopicConfigTable
from firearrow.wire.headers import RegisterBroker
from firearrow.wire.registerbody import RegisterBody


class ManualClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now_ms(self) -> int:
        """Wall clock."""
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        """Seconds."""
        return self.seconds


def header(
    address: str = "1.1.1.1:10911",
    broker_id: int = 0,
    *,
    name: str = "broker-a",
    cluster: str = "C",
    acting: bool | None = None,
    lease_ms: int | None = None,
    zone: str | None = None,
) -> RegisterBroker:
    """Who registers; the address of its HA server is derived from its own."""
    return RegisterBroker(
        broker_name=name,
        broker_addr=address,
        cluster_name=cluster,
        broker_id=broker_id,
        ha_server_addr=f"ha-of-{address}",
        heartbeat_timeout_millis=lease_ms,
        enable_acting_master=acting,
        zone_name=zone,
    )


def topic(name: str, queues: int = 4, perm: int = 6, sys_flag: int = 0) -> TopicConfig:
    """A topic with as many read as write queues."""
    return TopicConfig(name, queues, queues, perm, topic_sys_flag=sys_flag)


def body(*topics: TopicConfig, counter: int = 1, state: int = 0, filters: list[str] | None = None) -> RegisterBody:
    """What it registers."""
    table = TopicConfigTable(DataVersion(state, 0, counter), {topic.topic_name or "": topic for topic in topics})
    return RegisterBody(table, filters or [])


TWO = (topic("T1"), topic("T2"))
