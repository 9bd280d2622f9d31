"""Faults that consumers' reports about themselves show."""

from __future__ import annotations

import pytest

from firearrow.cli.mqadmin.groups import BLOCKED_MS, YOUNG_MS, info_text, queue_troubles, same_subscriptions
from firearrow.wire.client_bodies import (
    ConsumerRunningInfo,
    MessageQueue,
    PopProcessQueueInfo,
    ProcessQueueInfo,
    SubscriptionData,
)

NOW = 1_000_000_000
QUEUE = MessageQueue("T", "a", 1)


def info(
    held: ProcessQueueInfo | None = None, *, wants: str = "*", age_ms: int = YOUNG_MS + 1, **more: str
) -> ConsumerRunningInfo:
    properties = {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY", "PROP_CONSUMER_START_TIMESTAMP": str(NOW - age_ms)}
    table = {} if held is None else {QUEUE: held}
    subscription = SubscriptionData("T", wants)
    return ConsumerRunningInfo(properties | more, [subscription], table)


def test_consumers_of_a_group_have_to_want_the_same_unless_they_are_young() -> None:
    assert same_subscriptions([info(), info()], NOW)
    assert not same_subscriptions([info(), info(wants="A")], NOW)
    assert same_subscriptions([info(age_ms=1), info(wants="A")], NOW)


@pytest.mark.parametrize(
    ("held", "ordered", "trouble"),
    [
        (ProcessQueueInfo(cached_msg_count=1, last_consume_timestamp=NOW), "false", ""),
        (
            ProcessQueueInfo(cached_msg_count=1, last_consume_timestamp=NOW - BLOCKED_MS - 1),
            "false",
            "can't consume for a while, maybe blocked, 60001ms",
        ),
        (ProcessQueueInfo(locked=True), "true", ""),
        (ProcessQueueInfo(last_lock_timestamp=NOW - 5), "true", "can't lock for a while, 5ms"),
        (ProcessQueueInfo(locked=True, droped=True, try_unlock_times=3), "true", "unlock 3 times, still failed"),
    ],
)
def test_queues_that_a_consumer_does_not_get_on_with(held: ProcessQueueInfo, ordered: str, trouble: str) -> None:
    line = f"c MessageQueue [topic=T, brokerName=a, queueId=1] {trouble}\n" if trouble else ""
    assert queue_troubles("c", info(held, PROP_CONSUMEORDERLY=ordered), NOW) == line


def test_a_pull_consumer_has_no_troubles() -> None:
    asleep = info(ProcessQueueInfo(cached_msg_count=1), PROP_CONSUME_TYPE="CONSUME_ACTIVELY")
    assert queue_troubles("c", asleep, NOW) == ""


def test_popped_queues_and_stacks_are_told() -> None:
    whole = ConsumerRunningInfo(mq_pop_table={QUEUE: PopProcessQueueInfo(2)}, jstack="main\n")
    text = info_text(whole)
    assert "PopProcessQueueInfo [waitAckCount:2, droped:false, lastPopTimestamp:0]\n" in text
    assert text.endswith("#Consumer jstack#\nmain\n")
