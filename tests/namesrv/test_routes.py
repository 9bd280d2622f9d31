"""The rules by which a name server learns, tells and forgets."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import BrokerError
from firearrow.namesrv.config import NamesrvConfig
from firearrow.namesrv.routes import LEASE_SECONDS, MinBrokerIdChange, Registered, RouteTables
from firearrow.wire.bodies import BrokerData, DataVersion, MemberGroup, QueueData, TopicQueueMappingInfo
from firearrow.wire.registerbody import RegisterBody
from tests.namesrv.strategies import TWO, ManualClock, body, header, topic

A, B, C = "1.1.1.1:10911", "1.1.1.2:10911", "1.1.1.3:10911"


class Setting:
    """Tables with a clock, a configuration that can change, and what they told."""

    def __init__(self, **config: Any) -> None:
        self.clock = ManualClock()
        self.config = NamesrvConfig(**config)
        self.told: list[MinBrokerIdChange] = []
        self.routes = RouteTables(self.clock, lambda: self.config, self.told.append)

    def addresses(self, name: str = "broker-a") -> dict[int, str]:
        return self.routes.member_group("C", name).broker_addrs

    def perm(self, name: str, broker: str = "broker-a") -> int:
        route = self.routes.route(name)
        assert route is not None
        return next(q.perm for q in route.queue_datas if q.broker_name == broker)


def test_a_registered_broker_is_in_every_answer() -> None:
    s = Setting()
    assert s.routes.register(header(zone="z"), body(*TWO), None) == Registered()
    route = s.routes.route("T1")
    assert route is not None
    assert route.queue_datas == [QueueData("broker-a", 4, 4, 6)]
    broker = BrokerData("C", "broker-a", {0: A}, zone_name="z")
    assert route.broker_datas == [broker]
    assert s.routes.cluster_info().broker_addr_table == {"broker-a": broker}
    assert s.routes.cluster_info().cluster_addr_table == {"C": ["broker-a"]}
    assert s.routes.topics() == ["T1", "T2"]
    assert s.routes.topics_of_cluster("C") == ["T1", "T2"]
    assert s.routes.topics_of_cluster("other") == []
    assert s.routes.system_topics() == (["C", "broker-a"], A)
    assert s.routes.member_group("C", "broker-a") == MemberGroup("C", "broker-a", {0: A})
    assert s.routes.data_version("C", A) == DataVersion(0, 0, 1)


def test_an_unknown_topic_has_no_route() -> None:
    s = Setting()
    assert s.routes.route("T1") is None
    assert s.routes.system_topics() == ([], None)
    assert s.routes.member_group("C", "x") == MemberGroup("C", "x", {})
    assert s.routes.data_version("C", A) is None


def test_a_first_registration_with_one_topic_is_refused_and_leaves_no_trace() -> None:
    s = Setting()
    with pytest.raises(BrokerError, match="register broker failed") as caught:
        s.routes.register(header(), body(topic("T1")), None)
    assert caught.value.code == 1
    assert s.routes.version == 0
    assert s.routes.cluster_info().cluster_addr_table == {}


def test_one_topic_is_enough_for_a_known_broker() -> None:
    s = Setting()
    s.routes.register(header(), body(*TWO), None)
    s.routes.register(header(), body(topic("T3"), counter=2), None)
    assert s.routes.topics() == ["T1", "T2", "T3"]


def test_without_topics_a_broker_may_come() -> None:
    s = Setting()
    s.routes.register(header(), body(), None)
    assert s.addresses() == {0: A}


def test_topics_are_taken_over_only_with_a_new_data_version() -> None:
    s = Setting()
    s.routes.register(header(), body(topic("T1", 4), topic("T2")), None)
    s.routes.register(header(), body(topic("T1", 9), topic("T3")), None)
    route = s.routes.route("T1")
    assert route is not None
    assert route.queue_datas[0].read_queue_nums == 4
    assert s.routes.topics() == ["T1", "T2", "T3"]
    s.routes.register(header(), body(topic("T1", 9), topic("T3"), counter=2), None)
    route = s.routes.route("T1")
    assert route is not None
    assert route.queue_datas[0].read_queue_nums == 9


@pytest.mark.parametrize(("delete", "left"), [(False, ["T1", "T2", "T3"]), (True, ["T3"])])
def test_topics_that_a_broker_no_longer_has(delete: bool, left: list[str]) -> None:
    s = Setting(delete_topic_with_broker_registration=delete)
    s.routes.register(header(), body(*TWO), None)
    s.routes.register(header(), body(topic("T3"), counter=2), None)
    assert s.routes.topics() == left


def test_a_slave_brings_no_topics_and_learns_its_master() -> None:
    s = Setting()
    s.routes.register(header(A, 0), body(*TWO), None)
    answer = s.routes.register(header(B, 1), body(topic("T3"), topic("T4")), None)
    assert answer == Registered(f"ha-of-{A}", A)
    assert s.routes.topics() == ["T1", "T2"]
    assert s.addresses() == {0: A, 1: B}


def test_a_slave_without_a_master_learns_nothing() -> None:
    s = Setting()
    assert s.routes.register(header(B, 1), body(*TWO), None) == Registered()
    assert s.routes.topics() == []


def test_a_prime_slave_that_may_act_brings_its_topics_without_the_write_permission() -> None:
    s = Setting()
    s.routes.register(header(B, 1, acting=True), body(*TWO), None)
    assert s.perm("T1") == 4
    s.routes.register(header(C, 2, acting=True), body(topic("T8"), topic("T9")), None)
    assert s.routes.topics() == ["T1", "T2"]


def test_a_prime_slave_of_a_new_broker_that_may_not_act_brings_its_topics_as_they_are() -> None:
    s = Setting()
    s.routes.register(header(B, 1, acting=False), body(*TWO), None)
    assert s.perm("T1") == 6


def test_an_address_has_one_id() -> None:
    s = Setting()
    s.routes.register(header(A, 1), body(*TWO), None)
    s.routes.register(header(A, 0), body(*TWO), None)
    assert s.addresses() == {0: A}


@pytest.mark.parametrize(("state", "holder"), [(4, A), (5, B), (6, B)])
def test_an_id_is_kept_by_the_address_with_the_newer_state(state: int, holder: str) -> None:
    s = Setting()
    s.routes.register(header(A), body(*TWO, state=5), None)
    s.routes.register(header(B), body(*TWO, state=state), None)
    assert s.addresses() == {0: holder}
    assert (s.routes.data_version("C", B) is None) == (holder == A)


def test_brokers_of_several_names_and_clusters_share_a_topic() -> None:
    s = Setting()
    s.routes.register(header(A), body(*TWO), None)
    s.routes.register(header(B, name="broker-b"), body(topic("T1", 2), topic("T5")), None)
    s.routes.register(header(C, name="broker-c", cluster="D"), body(topic("T1"), topic("T6")), None)
    route = s.routes.route("T1")
    assert route is not None
    assert [broker.broker_name for broker in route.broker_datas] == ["broker-a", "broker-b", "broker-c"]
    assert s.routes.topics_of_cluster("D") == ["T1", "T6"]
    assert s.routes.cluster_info().cluster_addr_table == {"C": ["broker-a", "broker-b"], "D": ["broker-c"]}


def test_filter_servers_are_told_by_address() -> None:
    s = Setting()
    s.routes.register(header(), body(*TWO, filters=["1.1.1.9:1"]), None)
    route = s.routes.route("T1")
    assert route is not None
    assert route.filter_server_table == {A: ["1.1.1.9:1"]}
    s.routes.register(header(), body(*TWO), None)
    route = s.routes.route("T1")
    assert route is not None
    assert route.filter_server_table == {}


def test_filter_servers_are_forgotten_with_their_broker() -> None:
    s = Setting()
    s.routes.register(header(), body(*TWO, filters=["1.1.1.9:1"]), None)
    s.routes.unregister("C", "broker-a", A)
    s.routes.register(header(B), body(*TWO, filters=["1.1.1.8:1"]), None)
    route = s.routes.route("T1")
    assert route is not None
    assert route.filter_server_table == {B: ["1.1.1.8:1"]}


def test_static_topics_are_told_by_broker() -> None:
    s = Setting()
    mapping = TopicQueueMappingInfo("T1", total_queues=4, bname="broker-a", curr_id_map={0: 0})
    plain = body(*TWO)
    table = msgspec.structs.replace(plain.topic_config_serialize_wrapper, topic_queue_mapping_info_map={"T1": mapping})
    s.routes.register(header(), RegisterBody(table), None)
    route = s.routes.route("T1")
    assert route is not None
    assert route.topic_queue_mapping_by_broker == {"broker-a": mapping}


# --- forgetting -----------------------------------------------------------------------------


def test_the_last_address_takes_name_cluster_and_queues_with_it() -> None:
    s = Setting()
    s.routes.register(header(A), body(*TWO), None)
    s.routes.register(header(B, 1), body(), None)
    s.routes.unregister("C", "broker-a", A)
    assert s.addresses() == {1: B}
    assert s.routes.topics() == ["T1", "T2"]
    s.routes.unregister("C", "broker-a", B)
    assert s.routes.topics() == []
    assert s.routes.cluster_info().broker_addr_table == {}
    assert s.routes.cluster_info().cluster_addr_table == {}


def test_who_leaves_late_does_not_take_its_successor_along() -> None:
    s = Setting()
    s.routes.register(header(A, 1), body(*TWO), None)
    s.routes.register(header(A, 0), body(*TWO), None)
    version = s.routes.version
    s.routes.unregister("C", "broker-a", A, 1)
    assert (s.addresses(), s.routes.version) == ({0: A}, version)
    s.clock.seconds += LEASE_SECONDS - 1
    assert s.routes.expire() == []
    s.routes.unregister("C", "broker-a", A, 0)
    assert s.routes.topics() == []


def test_without_a_master_an_acting_name_can_only_be_read() -> None:
    s = Setting()
    s.routes.register(header(A, 0, acting=True), body(*TWO), None)
    s.routes.register(header(B, 1, acting=True), body(*TWO), None)
    s.routes.unregister("C", "broker-a", A)
    assert s.perm("T1") == 4


def test_what_is_unknown_is_forgotten_in_silence() -> None:
    s = Setting()
    s.routes.unregister("C", "broker-a", A)
    s.routes.register(header(A), body(*TWO), None)
    version = s.routes.version
    s.routes.unregister("C", "broker-a", B)
    s.routes.unregister("C", "other", A)
    s.routes.close_channel(object())
    assert s.routes.version == version
    assert s.addresses() == {0: A}


def test_a_broker_under_a_new_name_is_not_under_the_old_one() -> None:
    s = Setting()
    s.routes.register(header(A, name="broker-a"), body(*TWO), None)
    s.routes.register(header(A, name="broker-b"), body(*TWO), None)
    assert list(s.routes.cluster_info().broker_addr_table) == ["broker-b"]


@pytest.mark.parametrize(("lease_ms", "seconds"), [(None, LEASE_SECONDS), (10_000, 10)])
def test_a_silent_broker_is_forgotten_after_its_lease(lease_ms: int | None, seconds: float) -> None:
    s = Setting()
    channel = object()
    s.routes.register(header(lease_ms=lease_ms), body(*TWO), channel)
    s.clock.seconds += seconds
    assert s.routes.expire() == []
    s.routes.touch("C", A)
    s.clock.seconds += seconds
    assert s.routes.expire() == []
    s.clock.seconds += 0.001
    assert s.routes.expire() == [channel]
    assert s.routes.topics() == []
    assert s.routes.expire() == []


def test_only_known_brokers_are_kept_alive() -> None:
    s = Setting()
    s.routes.touch("C", A)
    assert s.routes.data_version("C", A) is None


def test_what_came_over_a_connection_ends_with_it() -> None:
    s = Setting()
    one, other = object(), object()
    s.routes.register(header(A), body(*TWO), one)
    s.routes.register(header(B, name="broker-b"), body(*TWO), one)
    s.routes.register(header(C, name="broker-c"), body(*TWO), other)
    s.routes.close_channel(one)
    assert list(s.routes.cluster_info().broker_addr_table) == ["broker-c"]


def test_a_broker_that_came_back_does_not_end_with_its_old_connection() -> None:
    s = Setting()
    old, new = object(), object()
    s.routes.register(header(), body(*TWO), old)
    s.routes.register(header(), body(*TWO), new)
    s.routes.close_channel(old)
    assert s.addresses() == {0: A}


# --- administration -------------------------------------------------------------------------


def test_write_permission_is_wiped_and_added() -> None:
    s = Setting()
    s.routes.register(header(), body(topic("T1", perm=7), topic("T2", perm=4)), None)
    s.routes.register(header(B, name="broker-b"), body(*TWO), None)
    assert s.routes.wipe_write_perm("broker-a") == 2
    assert (s.perm("T1"), s.perm("T2"), s.perm("T1", "broker-b")) == (5, 4, 6)
    assert s.routes.add_write_perm("broker-a") == 2
    assert (s.perm("T1"), s.perm("T2")) == (6, 6)
    assert s.routes.wipe_write_perm("unknown") == 0


def test_a_changed_data_version_restores_a_wiped_permission() -> None:
    s = Setting()
    s.routes.register(header(), body(*TWO), None)
    s.routes.wipe_write_perm("broker-a")
    s.routes.register(header(), body(*TWO), None)
    assert s.perm("T1") == 4
    s.routes.register(header(), body(*TWO, counter=2), None)
    assert s.perm("T1") == 6


def test_topics_are_deleted_everywhere_or_in_a_cluster() -> None:
    s = Setting()
    s.routes.register(header(A), body(*TWO), None)
    s.routes.register(header(B, name="broker-b", cluster="D"), body(*TWO), None)
    s.routes.delete_topic("T1", "unknown")
    s.routes.delete_topic("T1", "D")
    route = s.routes.route("T1")
    assert route is not None
    assert [queues.broker_name for queues in route.queue_datas] == ["broker-a"]
    s.routes.delete_topic("T1", "C")
    s.routes.delete_topic("T2")
    assert s.routes.topics() == []


def test_topics_are_added_to_known_brokers() -> None:
    s = Setting()
    s.routes.register(header(), body(*TWO), None)
    s.routes.add_topic("T3", [QueueData("broker-a", 1, 1, 6), QueueData("unknown"), QueueData("x")])
    route = s.routes.route("T3")
    assert route is not None
    assert route.queue_datas == [QueueData("broker-a", 1, 1, 6)]
    s.routes.add_topic("T4", [QueueData("unknown")])
    assert s.routes.route("T4") is None


def test_topics_are_told_apart_by_their_flags() -> None:
    s = Setting()
    topics = [topic(f"T{flag}", sys_flag=flag) for flag in range(4)]
    s.routes.register(header(), body(*topics), None)
    assert s.routes.topics_with_flags(1) == ["T1", "T3"]
    assert s.routes.topics_with_flags(2) == ["T2", "T3"]
    assert s.routes.topics_with_flags(2, 1) == ["T2"]


# --- acting master and smallest broker id ---------------------------------------------------


def test_the_lowest_slave_stands_in_for_a_lost_master() -> None:
    s = Setting(support_acting_master=True)
    s.routes.register(header(B, 1, acting=True), body(*TWO), None)
    s.routes.register(header(C, 2, acting=True), body(), None)
    route = s.routes.route("T1")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: B, 2: C}
    s.routes.add_write_perm("broker-a")
    route = s.routes.route("T1")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {1: B, 2: C}


def test_who_comes_back_as_master_is_written_to_again_and_the_slave_has_its_own_id() -> None:
    s = Setting(support_acting_master=True)
    for address, broker_id in ((A, 0), (B, 1)):
        s.routes.register(header(address, broker_id, acting=True, lease_ms=10_000), body(*TWO), 1)
    assert s.perm("T1") == 6
    s.clock.seconds += 9
    s.routes.touch("C", B)
    s.clock.seconds += 2
    assert s.routes.expire() == [1]
    route = s.routes.route("T1")
    assert route is not None
    assert (route.broker_datas[0].broker_addrs, s.perm("T1")) == ({0: B}, 4)
    assert s.addresses() == {1: B}
    s.routes.register(header(B, 1, acting=True), body(*TWO, counter=2), None)
    assert s.perm("T1") == 4
    s.routes.register(header(A, 0, acting=True), body(*TWO), None)
    route = s.routes.route("T1")
    assert route is not None
    assert (route.broker_datas[0].broker_addrs, s.perm("T1")) == ({0: A, 1: B}, 6)


def test_the_topic_by_which_old_brokers_ask_for_members_shows_them_as_they_are() -> None:
    s = Setting(support_acting_master=True)
    members = topic("rmq_sys_SYNC_BROKER_MEMBER_broker-a", perm=4)
    s.routes.register(header(B, 1, acting=True), body(*TWO, members), None)
    route = s.routes.route("rmq_sys_SYNC_BROKER_MEMBER_broker-a")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {1: B}


def test_nobody_stands_in_unless_allowed() -> None:
    s = Setting()
    s.routes.register(header(B, 1, acting=True), body(*TWO), None)
    route = s.routes.route("T1")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {1: B}


def test_changes_of_the_smallest_id_are_told() -> None:
    s = Setting(notify_min_broker_id_changed=True)
    s.routes.register(header(B, 1, acting=True), body(), None)
    s.routes.register(header(C, 2, acting=True), body(), None)
    assert s.told == []
    s.routes.register(header(A, 0, acting=True), body(*TWO), None)
    [change] = s.told
    assert change == MinBrokerIdChange("broker-a", 0, A, None, f"ha-of-{A}", (B, C))
    s.routes.unregister("C", "broker-a", C)
    assert len(s.told) == 1
    s.routes.unregister("C", "broker-a", A)
    assert s.told[1] == MinBrokerIdChange("broker-a", 1, B, A, None, (B,))


def test_a_loss_is_told_to_those_only_who_act_for_each_other() -> None:
    s = Setting(notify_min_broker_id_changed=True)
    s.routes.register(header(A, 0), body(*TWO), None)
    s.routes.register(header(B, 1), body(), None)
    s.routes.unregister("C", "broker-a", A)
    assert s.told == []


def test_nothing_is_told_unless_wanted() -> None:
    s = Setting()
    s.routes.register(header(B, 1), body(), None)
    s.routes.register(header(A, 0), body(), None)
    assert s.told == []


# --- as a whole -----------------------------------------------------------------------------

addresses = st.sampled_from([A, B, C])
names = st.sampled_from(["broker-a", "broker-b"])
steps = st.one_of(
    st.tuples(
        st.just("register"),
        addresses,
        st.integers(0, 2),
        names,
        st.integers(0, 3),
        st.integers(0, 1),
        st.sampled_from(["C", "C", "D"]),
    ),
    st.tuples(st.just("unregister"), addresses, names),
    st.tuples(st.just("close"), addresses),
    st.tuples(st.just("wait"), st.integers(0, 90)),
    st.tuples(st.just("delete"), st.sampled_from(["T1", "T2"])),
    st.tuples(st.just("wipe"), names),
)


@given(st.lists(steps, max_size=30))
def test_the_tables_agree_whatever_happens(script: list[tuple[Any, ...]]) -> None:
    s = Setting()
    shown = snapshot(s.routes)
    for step in script:
        version = s.routes.version
        play(s, step)
        before, shown = shown, snapshot(s.routes)
        assert shown == before or s.routes.version > version
        check(s.routes)
    s.clock.seconds += LEASE_SECONDS + 1
    s.routes.expire()
    assert s.routes.cluster_info().broker_addr_table == {}
    assert s.routes.topics() == []


def play(s: Setting, step: tuple[Any, ...]) -> None:
    match step:
        case ("register", address, broker_id, name, counter, state, cluster):
            who = header(address, broker_id, name=name, cluster=cluster)
            s.routes.register(who, body(*TWO, counter=counter, state=state), address)
        case ("unregister", address, name):
            s.routes.unregister("C", name, address)
        case ("close", address):
            s.routes.close_channel(address)
        case ("wait", seconds):
            s.clock.seconds += seconds
            s.routes.expire()
        case ("delete", name):
            s.routes.delete_topic(name)
        case ("wipe", name):
            s.routes.wipe_write_perm(name)


def snapshot(routes: RouteTables) -> Any:
    return routes.cluster_info(), [(topic, routes.route(topic)) for topic in routes.topics()]


def check(routes: RouteTables) -> None:
    info = routes.cluster_info()
    named = {name for cluster in info.cluster_addr_table.values() for name in cluster}
    assert named == set(info.broker_addr_table)
    assert all(broker.broker_addrs for broker in info.broker_addr_table.values())
    for name in routes.topics():
        route = routes.route(name)
        assert route is not None
        assert {q.broker_name for q in route.queue_datas} <= named
