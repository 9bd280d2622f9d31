"""Single pops: by the Java class with which RocketMQ's proxy serves its clients, and by frames like
those that it sends for the simple consumers of Go and Java.

A popped message comes again some seconds after its invisible time. So the parts that wait for that
begin before the first test.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from firearrow.message.record import iter_records
from firearrow.wire.pop import parse_handle
from tests.interop.driver import Driver
from tests.interop.javaclient import ARRIVAL_TIMEOUT_S, JavaClient, Outgoing, PopCalls, PopReport, Received
from tests.interop.popper import NOTIFICATION, PEEK, Popped, Popper, messages_of
from tests.interop.servers import Server
from tests.interop.waiting import wait_until

pytestmark = pytest.mark.usefixtures("begun")

SOON_MS, LATER_MS, NEVER_MS = 1000, 4000, 300_000
LATE_MS_MAX = 8000
FOUND, NOTHING = "FOUND", "POLLING_NOT_FOUND"


def receipt(message: Received) -> str:
    """The handle of a popped message."""
    return message.properties["POP_CK"]


def bodies(messages: list[Received]) -> list[bytes]:
    """The bodies, in order."""
    return [message.body for message in messages]


def send(java: JavaClient, topic: str, count: int, queues: int = 1) -> None:
    """Send numbers from 0 on, and wait until all can be popped."""
    producer = java.producer()
    producer.send(topic, [Outgoing(body=b"%d" % i, queue=i % queues) for i in range(count)])
    wait_until(
        lambda: sum(java.max_offset(topic, queue) for queue in range(queues)) == count,
        ARRIVAL_TIMEOUT_S,
        f"{count} in {topic}",
    )


# --- what comes again ---


@dataclass
class Again:
    """Ten messages, of which some come again."""

    calls: PopCalls
    popped: PopReport
    later_handle: str
    dead: Received

    @classmethod
    def begin(cls, java: JavaClient) -> Again:
        """Pop 0 to 9; acknowledge 0 and 1 to 4; 5 comes later, 6 never, 7 is a dead letter."""
        java.create_topic("Again", 1)
        send(java, "Again", 10)
        calls = java.pop_calls("again_group", "Again")
        popped = calls.pop(invisible_ms=SOON_MS)
        handles = [receipt(message) for message in popped.messages]
        assert calls.ack(handles[0]) == "OK"
        assert calls.ack_all(handles[1:5]) == "OK"
        later = calls.change(handles[5], LATER_MS)
        assert calls.change(handles[6], NEVER_MS)
        dead = popped.messages[7]
        assert calls.give_up(dead) == 0
        assert calls.ack(handles[7]) == "OK"
        return cls(calls, popped, later, dead)


@dataclass
class Begun:
    """What has begun before the first test."""

    java: JavaClient
    again: Again


@pytest.fixture(scope="module")
def begun(driver: Driver, server: Server) -> Iterator[Begun]:
    """Everything that takes some seconds."""
    java = JavaClient(driver, server)
    yield Begun(java, Again.begin(java))
    java.close()


def test_a_pop_gives_what_was_sent(java: JavaClient, topic: str, group: str) -> None:
    sent = [
        Outgoing(
            body=b"body %d" % i, tags=("TagA", "标签")[i % 2], keys=f"k{i}", queue=i % 4,
            properties={"地区": f"杭州{i}"}, flag=i,
        )
        for i in range(20)
    ]  # fmt: skip
    reports = java.producer().send(topic, sent)
    calls = java.pop_calls(group, topic)
    assert calls.has_messages()
    messages: list[Received] = []
    while len(messages) < 20:
        popped = calls.pop(count=8, poll_ms=1000)
        assert popped.status == FOUND
        assert len(popped.messages) <= 8
        messages += popped.messages
    assert popped.left == 0
    places = {report.msg_id: (report.queue_id, report.queue_offset) for report in reports}
    assert {m.msg_id: (m.queue_id, m.queue_offset) for m in messages} == places
    for message in messages:
        number = message.flag
        assert (message.body, message.keys) == (sent[number].body, sent[number].keys)
        assert (message.tags, message.topic) == (sent[number].tags, topic)
        assert message.properties["地区"] == f"杭州{number}"
        assert message.reconsume_times == 0
        assert int(message.properties["1ST_POP_TIME"]) == parse_handle(receipt(message)).pop_ms
    assert calls.pop().status == NOTHING
    assert not calls.has_messages()
    assert calls.ack_all([receipt(message) for message in messages]) == "OK"


def test_a_pop_takes_the_tags_that_it_wants(java: JavaClient, topic: str, group: str) -> None:
    tags = ("A", "B", "C", "A")
    messages = [Outgoing(body=tag.encode(), tags=tag, queue=0) for tag in tags]
    java.producer().send(topic, messages)
    wait_until(lambda: java.max_offset(topic, 0) == 4, ARRIVAL_TIMEOUT_S, "messages with tags")
    calls = java.pop_calls(group, topic)
    assert bodies(calls.pop(0, expression="A || C").messages) == [b"A", b"C", b"A"]
    assert calls.pop(0).status == NOTHING  # what nobody wants is passed over


def test_handles_that_do_not_fit_are_refused(java: JavaClient, topic: str, group: str) -> None:
    send(java, topic, 1)
    calls = java.pop_calls(group, topic)
    [message] = calls.pop(0).messages
    words = receipt(message).split(" ")
    beyond = " ".join([*words[:-1], "100"])
    assert calls.ack(beyond) == "NO_EXIST"
    assert calls.change(beyond, 1000) == ""
    assert calls.ack(receipt(message)) == "OK"


def test_a_pop_in_order_waits_for_its_messages(java: JavaClient, topic: str, group: str) -> None:
    send(java, topic, 6)
    calls = java.pop_calls(group, topic)
    first = calls.pop(0, 3, invisible_ms=2000, attempt="one")
    assert bodies(first.messages) == [b"0", b"1", b"2"]
    assert {message.reconsume_times for message in first.messages} == {0}
    assert calls.pop(0, 3, attempt="two").status == NOTHING
    repeated = calls.pop(0, 3, invisible_ms=2000, attempt="one")  # its answer was lost, say
    assert bodies(repeated.messages) == bodies(first.messages)
    assert calls.ack(receipt(repeated.messages[0])) == "OK"
    assert calls.change(receipt(repeated.messages[1]), 1000)
    began_ms = time.time() * 1000
    second = calls.pop(0, 3, poll_ms=10_000, invisible_ms=NEVER_MS, attempt="two")
    assert time.time() * 1000 - began_ms > 500
    assert bodies(second.messages) == [b"1", b"2", b"3"]
    assert [message.reconsume_times for message in second.messages] == [1, 1, 0]
    assert calls.ack_all([receipt(message) for message in second.messages]) == "OK"
    rest = calls.pop(0, 3, attempt="three")
    assert bodies(rest.messages) == [b"4", b"5"]


# --- frames as the proxy sends them ---


def test_who_waits_for_news_is_told(java: JavaClient, topic: str, group: str) -> None:
    producer = java.producer()
    with Popper(topic, group).opened(java.server.broker) as popper:
        now_ms = round(time.time() * 1000)
        news = popper.begin(NOTIFICATION, queueId=-1, pollTime=20_000, bornTime=now_ms)
        producer.send(topic, [Outgoing(body=b"news", queue=1)])
        told = news.answer().ext
        assert (told["hasMsg"], told["pollingFull"]) == ("true", "false")
        assert time.time() * 1000 - now_ms < 10_000
        assert [message.body for message in popper.pop()] == [b"news"]


def test_a_peek_takes_nothing(java: JavaClient, topic: str, group: str) -> None:
    send(java, topic, 3)
    with Popper(topic, group).opened(java.server.broker) as popper:
        for _ in range(2):
            answer = popper.ask(PEEK, queueId=0, maxMsgNums=2)
            assert [view.body for view in iter_records(answer.body)] == [b"0", b"1"]
            assert answer.ext["restNum"] == "3"  # with those that it shows
        assert [message.body for message in popper.pop()] == [b"0", b"1", b"2"]


def test_a_simple_consumer_renews_and_acknowledges(java: JavaClient, topic: str, group: str) -> None:
    """What it renews stays its own under the last handle; what it forgets comes again."""
    producer = java.producer()
    with Popper(topic, group).opened(java.server.broker) as popper:
        waiting = popper.begin_pop(invisible_ms=SOON_MS, poll_ms=20_000, count=1)
        popper.wait_for_waiting(1)
        producer.send(topic, [Outgoing(body=b"renewed", tags="T", keys="k", queue=0)])
        [renewed] = messages_of(waiting.answer())
        assert (renewed.view.tags, renewed.view.properties["KEYS"]) == ("T", "k")
        second = popper.change(renewed.handle, SOON_MS)
        third = popper.change(second, NEVER_MS)
        producer.send(topic, [Outgoing(body=b"forgotten", queue=0)])
        [forgotten] = popper.pop_all(1, invisible_ms=SOON_MS)
        assert popper.ack(renewed) == 0  # the first handle: of no use by now
        [again] = popper.pop_all(1)
        assert (again.body, again.view.reconsume_times) == (b"forgotten", 1)
        due_ms = parse_handle(forgotten.handle).visible_ms
        assert 0 <= again.view.store_timestamp_ms - due_ms < LATE_MS_MAX
        assert parse_handle(again.handle).origin == 1
        assert popper.ack(again) == 0
        assert popper.ack(Popped(renewed.view, third)) == 0
        assert popper.pop() == []


# --- the end of what began first ---


def test_what_is_not_acknowledged_comes_again(begun: Begun) -> None:
    again = begun.again
    assert bodies(again.popped.messages) == [b"%d" % i for i in range(10)]
    messages: list[Received] = []

    def come() -> bool:
        messages.extend(again.calls.pop(poll_ms=1000).messages)
        return len(messages) >= 3

    wait_until(come, ARRIVAL_TIMEOUT_S, "messages that come again")
    found = {message.body: message for message in messages}
    assert sorted(bodies(messages)) == [b"5", b"8", b"9"]
    due_ms = again.popped.pop_ms + again.popped.invisible_ms
    later_ms = parse_handle(again.later_handle).visible_ms
    for body, at_ms in ((b"5", later_ms), (b"8", due_ms), (b"9", due_ms)):
        message = found[body]
        assert message.reconsume_times == 1
        assert 0 <= message.store_timestamp - at_ms < LATE_MS_MAX
        assert again.calls.ack(receipt(message)) == "OK"
    assert again.calls.pop().status == NOTHING


def test_what_the_proxy_gives_up_is_a_dead_letter(begun: Begun) -> None:
    [dead] = begun.java.pull_consumer().read("%DLQ%again_group")
    assert dead.body == b"7"
    assert dead.msg_id == begun.again.dead.msg_id
    assert dead.properties["ORIGIN_MESSAGE_ID"] == begun.again.dead.offset_msg_id
