"""Consumers of one group share its queues again when one joins or leaves.

The broker tells the members at once (NOTIFY_CONSUMER_IDS_CHANGED); without that word they would
find out only at their next round, after 20 seconds.
"""

from __future__ import annotations

from itertools import count

from tests.interop.javaclient import JavaClient, Outgoing, Producer, PushConsumer
from tests.interop.waiting import wait_until

QUEUES = 8
NOTICE_S = 15  # below the 20 s of a round


class Traffic:
    """Messages with running numbers, sent while the group changes."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._numbers = count()
        self.sent: set[bytes] = set()

    def send(self, messages: int = 80) -> None:
        """Send a number of messages, dealt to the queues in turn."""
        batch = [
            Outgoing(body=b"%d" % number, queue=number % QUEUES)
            for number, _ in zip(self._numbers, range(messages), strict=False)
        ]
        self._producer.send(self._topic, batch)
        self.sent.update(message.body for message in batch)


def wait_for_shares(topic: str, consumers: list[PushConsumer], sizes: list[int]) -> None:
    """Wait until the consumers have so many queues each, all of the topic's, none of them twice."""

    def shared() -> bool:
        shares = [consumer.queues(topic) for consumer in consumers]
        together = sorted(queue for share in shares for queue in share)
        return together == list(range(QUEUES)) and sorted(map(len, shares)) == sizes

    wait_until(shared, NOTICE_S, f"shares of {sizes} queues")


def test_a_group_shares_its_queues_again(java: JavaClient, name: str, group: str) -> None:
    java.create_topic(name, QUEUES)
    traffic = Traffic(java.producer(), name)
    first = java.push_consumer(group, name)
    wait_for_shares(name, [first], [8])
    traffic.send()
    second = java.push_consumer(group, name)
    traffic.send()
    wait_for_shares(name, [first, second], [4, 4])
    traffic.send()
    third = java.push_consumer(group, name)
    traffic.send()
    wait_for_shares(name, [first, second, third], [2, 3, 3])
    traffic.send()
    received = second.stop()
    wait_for_shares(name, [first, third], [4, 4])
    traffic.send()
    received += third.stop()
    wait_for_shares(name, [first], [8])
    traffic.send()
    first.wait_for(len(traffic.sent) - len({message.body for message in received}))
    received += first.stop()
    java.wait_until_consumed(group, name, len(traffic.sent))
    assert {message.body for message in received} == traffic.sent
