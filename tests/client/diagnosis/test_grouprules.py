"""Rules for the reasons why a group does not consume."""

from collections.abc import Callable
from typing import Any

import pytest

from firearrow.client.diagnosis import grouprules
from firearrow.client.diagnosis.findings import Level
from firearrow.client.diagnosis.groupfacts import GroupClient, GroupFacts, InspectedMessage, QueueProgress
from firearrow.wire.bodies import QueueData, Route
from firearrow.wire.client_bodies import (
    ClientConnection,
    ConsumerRunningInfo,
    ConsumeStatus,
    MemberChange,
    MessageQueue,
    OffsetWrapper,
    PopProcessQueueInfo,
    ProcessQueueInfo,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicOffset,
)

NOW = 10_000_000
LONG_AGO = NOW - 120_000
Q0, Q1 = (MessageQueue("T", "a", number) for number in range(2))
OK = ProcessQueueInfo(last_pull_timestamp=NOW, last_consume_timestamp=NOW)


def client(
    name: str, *queues: MessageQueue, held: ProcessQueueInfo = OK, wants: str = "*", version: int = 513, **info: Any
) -> GroupClient:
    known = ConsumerRunningInfo(
        info.pop("properties", {"messageModel": "CLUSTERING"}),
        [SubscriptionData("T", wants)],
        dict.fromkeys(queues, held),
        **info,
    )
    return GroupClient(name, {"a": [ClientConnection(name, f"{name}:1", "JAVA", version)]}, known)


def facts(*clients: GroupClient, lag: int = 5, queues: int = 2, **more: Any) -> GroupFacts:
    route = Route([QueueData("a", queues, queues, 6)])
    offsets = OffsetWrapper(broker_offset=100, consumer_offset=100 - lag, last_timestamp=1)
    fields: dict[str, Any] = {
        "configs": {"a": SubscriptionGroupConfig("g")},
        "topics": ["T"],
        "routes": {"T": route},
        "places": {queue: QueueProgress(offsets, TopicOffset(0, 100, NOW)) for queue in (Q0, Q1)},
    }
    return GroupFacts("g", NOW, clients=clients, **(fields | more))


def held(**fields: Any) -> ProcessQueueInfo:
    times = {"last_pull_timestamp": NOW, "last_consume_timestamp": NOW, "cached_msg_count": 3}
    return ProcessQueueInfo(**(times | fields))


def two(**more: Any) -> GroupFacts:
    """A sound group: a client for each of two queues."""
    return facts(client("x", Q0), client("y", Q1), **more)


def seen(times: int, stored_ms: int = NOW) -> InspectedMessage:
    return InspectedMessage("T", "id-1", ["o-17"], times, stored_ms)


def ordered(lock_ms: int = LONG_AGO, **fields: Any) -> GroupClient:
    properties = {"PROP_CONSUMEORDERLY": "true"}
    at = held(last_lock_timestamp=lock_ms, **fields)
    return client("x", Q0, Q1, held=at, properties=properties)


STATUS = {"T": ConsumeStatus(consume_rt=250.0, consume_ok_tps=2.0)}
FAILING = {"T": ConsumeStatus(consume_failed_tps=1.0)}
STUCK = held(cached_msg_min_offset=7, last_consume_timestamp=LONG_AGO)

CHANGES = [
    MemberChange(NOW - 700_000, "x", False),  # too long ago
    MemberChange(NOW - 400_000, "x", True),
    *(
        MemberChange(NOW - 3_000 + number * 400, "y", joined)
        for number, joined in enumerate((True, False, True, False, True, False))
    ),
    MemberChange(NOW, "z", False),
]

CASES: list[tuple[Callable[..., Any], GroupFacts, str, Level]] = [
    (grouprules.unknown_group, facts(configs={}, unknown_on=["a"]), "not known to a", Level(2)),
    (grouprules.unknown_group, facts(unknown_on=["b"]), "not known to b", Level(1)),
    (grouprules.offline, facts(), "no client is connected; 10 messages wait", Level(2)),
    (grouprules.offline, facts(pops_waiting=1), "1 pop waits for messages, and no client is registered", Level(0)),
    (grouprules.access, facts(refused=["a: no", "b: no"]), "no permission: a: no; b: no", Level(1)),
    (
        grouprules.disabled,
        two(configs={"a": SubscriptionGroupConfig("g", consume_enable=False)}),
        "consumeEnable=false on a",
        Level(2),
    ),
    (
        grouprules.disabled,
        facts(
            client("x", Q0, properties={"messageModel": "BROADCASTING"}),
            configs={"a": SubscriptionGroupConfig("g", consume_broadcast_enable=False)},
        ),
        "it broadcasts, and consumeBroadcastEnable=false on a",
        Level(2),
    ),
    (grouprules.disabled, two(forbidden=[("a", "T")]), "forbidden to read", Level(2)),
    (grouprules.no_topic, two(routes={"T": None}), "no broker has registered it", Level(2)),
    (
        grouprules.no_topic,
        two(
            topics=["U"],
            routes={"U": Route()},
            places={MessageQueue("U", "a", 0): QueueProgress(OffsetWrapper(5, 0), TopicOffset(0, 5))},
        ),
        "2 clients do not subscribe to it",
        Level(1),
    ),
    (
        grouprules.no_permission,
        two(routes={"T": Route([QueueData("a", 2, 2, 2)])}),
        "perm=2 on a makes the topic unreadable",
        Level(2),
    ),
    (
        grouprules.duplicate_ids,
        facts(GroupClient("x", {"a": [ClientConnection("x", "h:2"), ClientConnection("x", "h:1")]})),
        "is the id of 2 clients on a: h:1, h:2",
        Level(2),
    ),
    (
        grouprules.unlike_subscriptions,
        facts(client("x", Q0, wants="A"), client("y", Q1, wants="B")),
        "x wants T [A], y wants T [B]",
        Level(2),
    ),
    (
        grouprules.mixed_models,
        facts(client("x", Q0), client("y", Q1, properties={"messageModel": "BROADCASTING"})),
        "some members broadcast",
        Level(2),
    ),
    (
        grouprules.no_queue,
        two(queues=1),
        "",  # each has a queue
        Level(0),
    ),
    (
        grouprules.no_queue,
        facts(client("x", Q0), client("y"), queues=1),
        "2 clients share 1 queue, so 1 client has none: y",
        Level(1),
    ),
    (
        grouprules.no_queue,
        facts(client("x", Q0, Q1), client("y")),
        "no queue is assigned to y, though 2 clients share 2 queues",
        Level(1),
    ),
    (grouprules.unowned_queues, facts(client("x", Q0)), "5 messages wait, and no client has the queue", Level(2)),
    (grouprules.unowned_queues, facts(client("x", Q0, Q1), client("y", Q1)), "several clients have it: x, y", Level(1)),
    (grouprules.held_locks, facts(ordered()), "has no lock of it, for 120 s", Level(2)),
    (
        grouprules.stuck_messages,
        facts(client("x", Q0, held=STUCK), heads={Q0: seen(0, LONG_AGO)}),
        "the message at offset 7 (id-1, keys o-17) has been in hand for 120 s",
        Level(2),
    ),
    (
        grouprules.stuck_messages,
        facts(
            client(
                "x",
                Q0,
                held=held(transaction_msg_min_offset=9),
                properties={"PROP_CONSUMEORDERLY": "true"},
                status_table=FAILING,
            )
        ),
        "the message at offset 9 fails each time",
        Level(2),
    ),
    (
        grouprules.poison_messages,
        two(retries=[seen(3), seen(5), seen(2), seen(9, 0)]),
        "message id-1, keys o-17 has failed 5 times",
        Level(1),
    ),
    (
        grouprules.many_retries,
        two(retries=[seen(1, NOW - 5000)] * 9 + [seen(2, NOW - 42_000), seen(1, NOW - 900_000)]),
        "10 or more messages were redelivered in the last 42 s",
        Level(1),
    ),
    (grouprules.many_retries, two(retries=[seen(1)] * 9), "", Level(0)),
    (grouprules.dead_letters, two(dead=4), "4 messages became dead letters", Level(1)),
    (
        grouprules.lost_places,
        two(places={Q0: QueueProgress(OffsetWrapper(9, 2, 0, 1), TopicOffset(5, 9))}),
        "offset 2 is before the first message, 5: 3 messages are deleted",
        Level(1),
    ),
    (
        grouprules.lost_places,
        two(places={Q0: QueueProgress(OffsetWrapper(9, 20, 0, 1), TopicOffset(5, 9))}),
        "offset 20 is beyond the last message, 8",
        Level(2),
    ),
    (
        grouprules.not_pulling,
        facts(client("x", Q0, held=held(last_pull_timestamp=LONG_AGO))),
        "x has not pulled for 120 s, 3 messages in hand, 5 messages wait",
        Level(2),
    ),
    (grouprules.not_pulling, facts(client("x", Q0, properties={"paused": "true"})), "says it is paused", Level(2)),
    (
        grouprules.silent_clients,
        facts(GroupClient("x", {"a": [ClientConnection("x", "h:1")]}, None, "timed out")),
        "gives no report (h:1): timed out",
        Level(1),
    ),
    (
        grouprules.slow_handlers,
        facts(client("x", Q0, status_table=STATUS)),
        "takes 250 ms for a message of T, 2.0/s, and 10 messages wait",
        Level(1),
    ),
    (
        grouprules.unlike_versions,
        facts(client("x", Q0), client("y", Q1, version=399)),
        "JAVA V4_9_3 (y), JAVA V5_5_0 (x)",
        Level(0),
    ),
    (
        grouprules.rebalances,
        two(changes={"a": CHANGES}),
        "a: y joined 3x and left 3x, left 1 s ago; z left 1x, left 0 s ago; x joined 1x, joined 4",
        Level(1),
    ),
    (grouprules.rebalances, two(changes={"a": CHANGES[:5]}), "", Level(0)),
    (grouprules.untold, two(untold=["a: refused"]), "a: refused", Level(3)),
]


@pytest.mark.parametrize(("rule", "given", "says", "level"), CASES)
def test_a_rule_finds_what_it_is_for(rule: Callable[..., Any], given: GroupFacts, says: str, level: Level) -> None:
    found = list(rule(given))
    if not says:
        assert found == []
        return
    assert says in found[0].evidence
    assert found[0].level is level
    assert found[0].cure or level is Level.UNKNOWN


def test_each_rule_has_a_case_and_a_sound_group_has_no_findings() -> None:
    assert {rule.__name__ for rule, *_ in CASES} == {rule.__name__ for rule in grouprules.RULES}
    assert grouprules.findings(two()) == []
    assert grouprules.findings(two(lag=0)) == []


@pytest.mark.parametrize(
    "given",
    [
        # the queue was empty for long, and its first message has just come
        facts(client("x", Q0, Q1, held=STUCK), heads={Q0: seen(0, NOW - 1000)}),
        # upstream's clients of other languages leave the time out
        facts(client("x", Q0, Q1, held=held(last_consume_timestamp=0)), heads={Q0: seen(0)}),
        facts(client("x", Q0, Q1, held=STUCK, properties={"paused": "true"})),
    ],
)
def test_what_is_not_stuck_is_not_called_so(given: GroupFacts) -> None:
    assert list(grouprules.stuck_messages(given)) == []


def test_who_pops_or_says_nothing_may_have_any_queue() -> None:
    popping = client("x", mq_pop_table={MessageQueue("T", "a", -1): PopProcessQueueInfo()})
    silent = GroupClient("x", {"a": [ClientConnection("x", "h:1")]})
    for one in (popping, silent):
        assert list(grouprules.unowned_queues(facts(one))) == []
        assert list(grouprules.no_queue(facts(one))) == []


def test_a_lock_that_is_held_is_no_finding() -> None:
    assert list(grouprules.held_locks(facts(ordered(locked=True)))) == []


def test_where_brokers_may_not_say_who_is_there_nothing_is_concluded() -> None:
    for found in (facts(members_untold=["a"]), facts(unknown_on=["a"], members_untold=["a"])):
        assert list(grouprules.offline(found)) == []
        assert list(grouprules.unknown_group(found)) == []
