"""Messages that the official Java push consumer pops, as the broker says what its group does.

What fails, or is in the hands of a process that is killed, comes again some seconds later. So all
begins before the first test, and each test looks at the end of its own part.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.driver import Driver, running_driver
from tests.interop.javaclient import ARRIVAL_TIMEOUT_S, JavaClient, Outgoing, PushConsumer, Received
from tests.interop.popper import Popper
from tests.interop.servers import Server
from tests.interop.waiting import wait_until

pytestmark = pytest.mark.usefixtures("begun")

QUEUES = 4
INVISIBLE_MS = 5000  # the official client takes no less
AGAIN_MS = 1000
LATE_MS_MAX = 8000  # a checkpoint is looked at 2 s after its time at the earliest
ALL_QUEUES = [-1]
ALWAYS = 1000
Shares = list[tuple[list[int], list[int]]]
"""The queues that each consumer of a group pulls, and those that it pops."""
HELD = {"held": "until the end"}


def bodies(messages: list[Received]) -> Counter[bytes]:
    """Count the bodies."""
    return Counter(message.body for message in messages)


def numbered(start: int, end: int, properties: dict[str, str] | None = None) -> list[Outgoing]:
    """Make messages that a reader can tell apart, dealt to the queues in turn."""
    more = properties or {}
    return [Outgoing(body=b"%d" % i, keys=f"k{i}", queue=i % QUEUES, properties=more) for i in range(start, end)]


def once(start: int, end: int) -> Counter[bytes]:
    """Each of these numbers once."""
    return Counter(b"%d" % i for i in range(start, end))


def popped_ms(message: Received) -> int:
    """When a message was popped for the first time."""
    return int(message.properties["1ST_POP_TIME"])


def waited_ms(message: Received) -> int:
    """How long after its first pop a message was put again."""
    return message.store_timestamp - popped_ms(message)


# --- a process that is killed ---


@dataclass
class Killed:
    """Two consumers of a group, of which one was killed with messages in its hands."""

    topic: str
    survivor: PushConsumer
    of_the_dead: list[Received]

    @classmethod
    def begin(cls, java: JavaClient, directory: Path) -> Killed:
        """Send messages while both live, kill one, and send some more."""
        topic, group = "Orphans", "orphans_group"
        java.create_topic(topic, QUEUES)
        java.set_request_mode(topic, group, "POP")
        survivor = java.shared_consumer(group, topic)
        producer = java.producer()
        popper = Popper(topic, group)
        with running_driver(directory) as another, popper.opened(java.server.broker):
            doomed = JavaClient(another, java.server).shared_consumer(group, topic, holds=True)
            popper.wait_for_waiting(2)
            assert survivor.popped_queues(topic) == doomed.popped_queues(topic) == ALL_QUEUES
            producer.send(topic, numbered(0, 100))
            popper.wait_until_popped(100, QUEUES)
            producer.send(topic, numbered(100, 200, properties=HELD))
            popper.wait_until_popped(200, QUEUES)
            of_the_dead = doomed.received()
            another.kill()
        producer.send(topic, numbered(200, 240))
        return cls(topic, survivor, of_the_dead)


# --- all that begins ---


@dataclass
class Begun:
    """What has begun before the first test."""

    java: JavaClient
    killed: Killed
    failing: PushConsumer
    hopeless: PushConsumer


@pytest.fixture(scope="module")
def begun(driver: Driver, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """Everything that takes some seconds."""
    java = JavaClient(driver, server)
    failing = begin_to_fail(java, "Failing", failures=1)
    hopeless = begin_to_fail(java, "Hopeless", failures=ALWAYS, times_max=2)
    killed = Killed.begin(java, tmp_path_factory.mktemp("doomed"))
    yield Begun(java, killed, failing, hopeless)
    java.close()


def begin_to_fail(java: JavaClient, topic: str, failures: int, times_max: int = -1) -> PushConsumer:
    """Send ten messages to a consumer that fails them so many times."""
    java.create_topic(topic, QUEUES)
    java.set_request_mode(topic, f"{topic}_group", "POP")
    again_s = AGAIN_MS // 1000
    consumer = java.shared_consumer(f"{topic}_group", topic, again_s=again_s, failures=failures, times_max=times_max)
    java.producer().send(topic, numbered(0, 10))
    return consumer


def wait_until_popped_again(java: JavaClient, topic: str, count: int) -> None:
    """Wait until so many messages of a topic have come again, and are popped."""
    group = f"{topic}_group"
    with Popper(f"%RETRY%{group}_{topic}", group).opened(java.server.broker) as popper:
        popper.wait_until_popped(count)


# --- who consumes how ---


def test_a_group_is_switched_while_messages_flow(java: JavaClient, topic: str, group: str) -> None:
    """From pulls to pops and back: none is lost. What is in hand then may come twice."""
    producer = java.producer()
    consumers = [java.shared_consumer(group, topic) for _ in range(2)]
    sent = 0

    def shares() -> Shares:
        return sorted((each.queues(topic), each.popped_queues(topic)) for each in consumers)

    def send_until(wanted: Shares) -> None:
        """Send until the broker's word has reached the consumers, and some more."""
        nonlocal sent
        deadline_s = time.monotonic() + ARRIVAL_TIMEOUT_S
        while True:
            is_over = shares() == wanted
            producer.send(topic, numbered(sent, sent + 20))
            sent += 20
            if is_over:
                return
            assert time.monotonic() < deadline_s, shares()

    pulls: Shares = [([0, 1], []), ([2, 3], [])]
    pops: Shares = [([], ALL_QUEUES)] * 2
    send_until(pulls)
    for mode, wanted in (("POP", pops), ("PULL", pulls), ("POP", pops)):
        java.set_request_mode(topic, group, mode)
        for consumer in consumers:
            consumer.rebalance()
        send_until(wanted)

    def received() -> Counter[bytes]:
        return sum((bodies(consumer.received()) for consumer in consumers), Counter())

    wait_until(lambda: len(received()) == sent, ARRIVAL_TIMEOUT_S, f"{sent} messages")
    assert received().keys() == once(0, sent).keys()


def test_consumers_share_queues_as_mqadmin_says(java: JavaClient, topic: str, group: str) -> None:
    """With one neighbour each; of two consumers, both so have all."""
    words = ("-b", java.server.broker, "-t", topic, "-g", group, "-m", "POP", "-q", "1")
    printed = java.mqadmin("setConsumeMode", *words)
    assert f"topic[{topic}] group[{group}] consume mode[POP] popShareQueueNum[1]" in printed
    consumers = [java.shared_consumer(group, topic) for _ in range(2)]

    def wait_for_shares(*wanted: list[int]) -> None:
        def shares() -> bool:
            found = [consumer.popped_queues(topic) for consumer in consumers]
            return sorted(found) == list(wanted)

        wait_until(shares, ARRIVAL_TIMEOUT_S, f"shares {wanted}")

    wait_for_shares(ALL_QUEUES, ALL_QUEUES)
    producer = java.producer()
    producer.send(topic, numbered(0, 40))
    consumers.append(java.shared_consumer(group, topic))
    wait_for_shares([0, 1, 2], [0, 1, 3], [2, 3])
    producer.send(topic, numbered(40, 80))

    def received() -> list[Received]:
        return [message for consumer in consumers for message in consumer.received()]

    wait_until(lambda: len(received()) >= 80, ARRIVAL_TIMEOUT_S, "80 messages")
    assert bodies(received()) == once(0, 80)


# --- the end of what began first ---


def test_a_killed_process_leaves_what_it_had_popped_to_another(begun: Begun) -> None:
    scene = begun.killed
    done = [message for message in scene.of_the_dead if "held" not in message.properties]
    held = [message for message in scene.of_the_dead if "held" in message.properties]
    assert done
    assert held
    received = scene.survivor.wait_for(240 - len(done))
    assert bodies(received) + bodies(done) == once(0, 240)  # none lost, none twice
    again = [message for message in received if message.reconsume_times]
    assert bodies(again) >= bodies(held)
    assert not bodies(again) & once(0, 100)
    for message in again:
        assert message.reconsume_times == 1
        assert INVISIBLE_MS <= waited_ms(message) < INVISIBLE_MS + LATE_MS_MAX
    first_popped_ms = {message.body: popped_ms(message) for message in held}
    assert first_popped_ms.items() <= {m.body: popped_ms(m) for m in again}.items()
    assert len(scene.survivor.stop()) == len(received)


def test_what_fails_comes_again(begun: Begun) -> None:
    received = begun.failing.wait_for(20)
    first, again = received[:10], received[10:]
    assert bodies(first) == bodies(again) == once(0, 10)
    assert {message.reconsume_times for message in first} == {0}
    by_id = {message.msg_id: message for message in first}
    for message in again:
        before = by_id[message.msg_id]
        assert message.reconsume_times == 1
        assert (message.topic, message.keys) == ("Failing", before.keys)
        assert message.born_timestamp == before.born_timestamp
        assert AGAIN_MS <= waited_ms(message) < AGAIN_MS + LATE_MS_MAX
    assert len(begun.failing.stop()) == 20
    wait_until_popped_again(begun.java, "Failing", 10)


def test_the_client_itself_gives_up_what_always_fails(begun: Begun) -> None:
    """Not to the dead letters: of clients that pop, only the proxy puts a message there."""
    received = begun.hopeless.wait_for(30)
    counts = Counter((message.body, message.reconsume_times) for message in received)
    assert counts == Counter((b"%d" % i, times) for i in range(10) for times in range(3))
    wait_until_popped_again(begun.java, "Hopeless", 20)
    assert "%DLQ%Hopeless_group" not in begun.java.topics()
