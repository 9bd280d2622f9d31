"""The registry of clients: members, subscriptions, and notifications of changes.

The sequences of heartbeats and notifications are those of a real broker in the same cases.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.broker.groups.clients import (
    ALL_MESSAGES,
    CHANGES_MAX,
    EXPRESSION_LENGTH_MAX,
    GROUPS_MAX,
    ClientRegistry,
    GroupMember,
    MemberLog,
    TagFilter,
    parse_tags,
    subscription_of,
)
from firearrow.broker.groups.feature import NOTICES_AT_ONCE_MAX
from firearrow.errors import BrokerError
from firearrow.message.names import tag_code
from firearrow.wire.client_bodies import ConsumerData, MemberChange, SubscriptionData
from tests.broker.fakes import FakeBroker, FakeChannel, HandClock

NOTIFIED = [(40, {"consumerGroup": "g"})]


def sub(topic: str = "T", version: int = 1, expression: str = "*") -> SubscriptionData:
    return SubscriptionData(topic, expression, version)


def data(*subs: SubscriptionData, model: str = "CLUSTERING", group: str = "g") -> ConsumerData:
    return ConsumerData(group, "CONSUME_PASSIVELY", model, "CONSUME_FROM_LAST_OFFSET", list(subs or [sub()]))


def member(channel: FakeChannel, client_id: str = "one") -> GroupMember:
    return GroupMember(channel, client_id, "JAVA", 513)


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def clients(broker: FakeBroker) -> ClientRegistry:
    return broker.clients


@pytest.mark.parametrize("expression", ["*", "", None])
def test_nothing_and_star_mean_all_messages(expression: str | None) -> None:
    assert parse_tags(expression) is ALL_MESSAGES
    assert ALL_MESSAGES.codes is None


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("A", ["A"]),
        ("A||B", ["A", "B"]),
        (" A || B ", ["A", "B"]),
        ("A||", ["A"]),
        ("A|| ||B", ["A", "B"]),
        ("A|B", ["A|B"]),
        (" ", []),
        ("标签", ["标签"]),
    ],
)
def test_tags_are_split_and_trimmed(expression: str, tags: list[str]) -> None:
    assert parse_tags(expression) == TagFilter(frozenset(map(tag_code, tags)))


def test_an_expression_of_bars_is_refused() -> None:
    with pytest.raises(BrokerError, match="names no tag") as refusal:
        parse_tags("||")
    assert refusal.value.code == 23


def test_an_expression_of_excessive_length_is_refused() -> None:
    with pytest.raises(BrokerError, match="the limit is 65536") as refusal:
        parse_tags("A" * (EXPRESSION_LENGTH_MAX + 1))
    assert refusal.value.code == 23


@given(st.sets(st.text("ABC中-_9", min_size=1), min_size=1))
def test_a_filter_matches_its_tags_by_hash(tags: set[str]) -> None:
    found = parse_tags(" || ".join(tags))
    assert found.codes == frozenset(map(tag_code, tags))


def test_codes_that_a_client_sends_count() -> None:
    sent = SubscriptionData("T", "A", 1, code_set=[7, 8])
    assert subscription_of(sent).filter == TagFilter(frozenset({7, 8}))
    assert subscription_of(sub(expression="A")).filter == TagFilter(frozenset({65}))
    assert subscription_of(sub(expression="*")).filter is ALL_MESSAGES
    assert subscription_of(sub(expression="||")).filter == TagFilter(frozenset())
    sql = SubscriptionData("T", "a > 1", 1, "SQL92")
    assert subscription_of(sql).filter is None
    by_class = SubscriptionData("T", "a.Program", 1, code_set=[65], class_filter_mode=True)
    assert subscription_of(by_class).filter is ALL_MESSAGES


def test_members_are_told_when_one_joins_and_leaves(clients: ClientRegistry) -> None:
    one, two = FakeChannel(), FakeChannel("10.0.0.2:1")
    clients.register_consumer(data(), member(one))
    assert one.take() == NOTIFIED
    clients.register_consumer(data(), member(one))
    assert one.take() == []
    clients.register_consumer(data(), member(two, "two"))
    assert (one.take(), two.take()) == (NOTIFIED, NOTIFIED)
    group = clients.consumer_group("g")
    assert group is not None
    assert group.client_ids() == ["one", "two"]
    clients.unregister_consumer("g", one)
    assert (one.take(), two.take()) == ([], NOTIFIED)
    clients.forget(two)
    assert two.take() == []
    assert clients.consumer_group("g") is None


def test_members_are_told_when_topics_change(clients: ClientRegistry) -> None:
    one = FakeChannel()
    clients.register_consumer(data(), member(one))
    one.take()
    clients.register_consumer(data(sub(version=2, expression="A")), member(one))
    assert one.take() == []
    clients.register_consumer(data(sub(version=2), sub("U", 2)), member(one))
    assert one.take() == NOTIFIED
    clients.register_consumer(data(sub("U", 2)), member(one))
    assert one.take() == NOTIFIED
    assert clients.subscription("g", "T") is None
    assert clients.consumers_of("U") == {"g"}
    assert clients.consumers_of("T") == set()


def test_an_older_expression_does_not_replace_a_newer(clients: ClientRegistry) -> None:
    one = FakeChannel()
    for version, expression in ((2, "B"), (1, "C"), (2, "D")):
        clients.register_consumer(data(sub(version=version, expression=expression)), member(one))
    found = clients.subscription("g", "T")
    assert found is not None
    assert (found.version, found.filter) == (2, parse_tags("B"))
    clients.register_consumer(data(sub(version=3, expression="E")), member(one))
    found = clients.subscription("g", "T")
    assert found is not None
    assert found.filter == parse_tags("E")


def test_groups_that_broadcast_are_not_told(clients: ClientRegistry) -> None:
    one, two = FakeChannel(), FakeChannel()
    clients.register_consumer(data(model="BROADCASTING"), member(one))
    clients.register_consumer(data(model="BROADCASTING"), member(two, "two"))
    group = clients.consumer_group("g")
    assert group is not None
    assert group.is_broadcasting
    clients.forget(two)
    assert one.take() == []
    assert two.take() == []


def test_notifications_can_be_switched_off(broker: FakeBroker) -> None:
    one = FakeChannel()
    broker.clients.register_consumer(data(), member(one), notify=False)
    assert one.take() == []
    broker.settings.change({"notifyConsumerIdsChangedEnable": "false"})
    broker.clients.register_consumer(data(sub("U")), member(one))
    assert one.take() == []
    broker.settings.change({"notifyConsumerIdsChangedEnable": "true"})
    broker.clients.register_consumer(data(sub("T")), member(one))
    assert one.take() == NOTIFIED


def test_another_client_id_on_the_same_connection_takes_its_place(clients: ClientRegistry) -> None:
    one = FakeChannel()
    clients.register_consumer(data(), member(one))
    one.take()
    clients.register_consumer(data(), member(one, "new"))
    group = clients.consumer_group("g")
    assert group is not None
    assert group.client_ids() == ["new"]
    assert one.take() == []


def test_a_heartbeat_without_subscriptions_keeps_them(clients: ClientRegistry) -> None:
    one = FakeChannel()
    clients.register_consumer(data(), member(one))
    one.take()
    clients.register_consumer(ConsumerData("g"), member(one), keep=True)
    assert one.take() == []
    assert clients.subscription("g", "T") is not None


def test_a_fingerprint_asks_for_everything_when_it_changes(clients: ClientRegistry) -> None:
    swap = clients.swap_fingerprint
    assert not swap("g", 77, without_sub=False)
    assert not swap("g", 77, without_sub=True)
    assert swap("g", 78, without_sub=True)
    assert not swap("g", 78, without_sub=True)
    assert swap("g", 79, without_sub=False)
    assert swap("unknown", 77, without_sub=True)


def test_clients_of_a_proxy_in_the_process_are_not_told_and_end_with_it(broker: FakeBroker) -> None:
    within, other = FakeChannel(), FakeChannel()
    within.is_loopback = True
    broker.clients.register_consumer(data(), member(within))
    broker.clients.register_consumer(data(), member(other, "two"))
    assert other.take() == NOTIFIED
    assert within.take() == []
    broker.clock.seconds += 121
    broker.clients.expire()
    assert (within.closed, other.closed is None) == (None, False)


def test_a_silent_client_is_closed_and_the_others_are_told(broker: FakeBroker) -> None:
    silent, alive, producer = FakeChannel(), FakeChannel(), FakeChannel()
    broker.clients.register_producer("p", member(producer))
    broker.clients.register_consumer(data(), member(silent))
    broker.clock.seconds += 100
    broker.clients.register_consumer(data(), member(alive, "two"))
    broker.clock.seconds += 20
    broker.clients.expire()
    assert silent.closed is None
    alive.take()
    broker.clock.seconds += 1
    broker.clients.expire()
    assert silent.closed is not None
    assert producer.closed is not None
    assert alive.closed is None
    assert alive.take() == NOTIFIED
    assert broker.clients.producers("p") == []


def test_a_connection_leaves_only_the_groups_that_it_is_in(clients: ClientRegistry) -> None:
    one, two = FakeChannel(), FakeChannel()
    for group in ("g", "h"):
        clients.register_consumer(data(group=group), member(one))
        clients.register_producer(group, member(one))
    clients.register_consumer(data(), member(two, "two"))
    clients.unregister_consumer("h", one)
    clients.unregister_producer("h", one)
    two.take()
    clients.forget(one)
    assert two.take() == NOTIFIED
    assert clients.consumers_of("T") == {"g"}
    assert clients.producers("g") == []
    clients.forget(one)
    assert two.take() == []
    clients.register_producer("g", member(one))
    clients.forget(one)
    assert clients.producers("g") == []


def test_a_whole_group_can_leave_at_once(broker: FakeBroker, clients: ClientRegistry) -> None:
    """2,000 clients close together: each other member gets one notice, and a client that leaves costs only its own
    groups.
    """
    waiting = broker.waiting = []
    channels = [FakeChannel() for _ in range(2000)]
    for index, channel in enumerate(channels):
        client = member(channel, f"c{index}")
        clients.register_consumer(data(), client)
        clients.register_consumer(data(group=f"own{index}"), client)
    turns = 0
    while waiting:  # the notices take turns, the last one has none
        (notify,) = waiting
        waiting.clear()
        notify()
        turns += 1
    assert turns == math.ceil((2001 + 4000) / NOTICES_AT_ONCE_MAX) + 1
    assert all(len(channel.take()) == 2 for channel in channels)
    stays, *gone = channels
    stays.take()
    for channel in gone:
        channel.take()
        clients.forget(channel)
    (notify,) = waiting
    notify()
    assert stays.take() == NOTIFIED
    assert all(channel.pushed == [] for channel in gone)
    assert clients.consumers_of("T") == {"g", "own0"}


def test_a_group_that_nobody_is_left_in_is_not_told(broker: FakeBroker, clients: ClientRegistry) -> None:
    waiting = broker.waiting = []
    one = FakeChannel()
    clients.register_consumer(data(), member(one))
    clients.forget(one)
    waiting.pop()()
    assert one.take() == []
    clients.register_consumer(data(), member(one))
    waiting.pop()()
    assert one.take() == NOTIFIED


def test_producers_come_and_go(clients: ClientRegistry) -> None:
    one, two = FakeChannel(), FakeChannel()
    clients.register_producer("p", member(one))
    clients.register_producer("p", member(two, "two"))
    clients.unregister_producer("p", one)
    clients.unregister_producer("nothing", one)
    assert [found.client_id for found in clients.producers("p")] == ["two"]
    clients.forget(two)
    assert clients.producers("p") == []


def test_a_language_may_come_as_its_number() -> None:
    assert GroupMember(FakeChannel(), "one", 9, 317).connection().language == "GO"
    assert GroupMember(FakeChannel(), "one", "CPP", 317).connection().language == "CPP"
    assert GroupMember(FakeChannel(), "one", 99, 317).connection().language is None


# --- History of joins and leaves, within limits ---


def test_changes_are_kept_in_their_order_and_the_first_are_forgotten() -> None:
    clock = HandClock()
    log = MemberLog(clock)
    for number in range(CHANGES_MAX + 2):
        log.note("g", f"c{number}", joined=number % 2 == 0)
    changes = log.of("g")
    assert len(changes) == CHANGES_MAX
    assert changes[0] == MemberChange(clock.now_ms(), "c2", True)
    assert changes[-1] == MemberChange(clock.now_ms(), f"c{CHANGES_MAX + 1}", False)
    assert log.of("other") == []


def test_the_groups_that_changed_last_are_kept() -> None:
    log = MemberLog(HandClock())
    for number in range(GROUPS_MAX):
        log.note(f"g{number}", "c", joined=True)
    log.note("g0", "c", joined=False)
    log.note("new", "c", joined=True)
    assert len(log.of("g0")) == 2
    assert log.of("g1") == []
    assert len(log.of("g2")) == len(log.of("new")) == 1
