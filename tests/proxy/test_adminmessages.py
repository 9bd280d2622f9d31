"""Admin service about messages, at an embedded broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from firearrow.proxy import adminmessages
from firearrow.proxy import messages as m
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from tests.proxy.rpcs import Rpcs, send_request, settings_of_consumer


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with EmbeddedCluster(grpc=True, enableLmq=True, enableMultiDispatch=True) as found:
        found.create_topic("orders", queues=2)
        with Rpcs(found.brokers[0].grpc) as rpcs:
            for number in range(6):
                send = send_request("orders", f"{number}".encode(), tag="ab"[number % 2], keys=("k", f"k{number}"))
                assert rpcs.SendMessage(send).status.code == m.Code.OK
        yield found


@pytest.fixture
def tool(cluster: BlockingCluster) -> Iterator[Rpcs]:
    with Rpcs(cluster.brokers[0].grpc) as found:
        del found.metadata["x-mq-client-id"]
        yield found


def name(text: str) -> m.Resource:
    return m.Resource(name=text)


def queried(tool: Rpcs, **fields: Any) -> m.ListMessageResponse:
    answer: m.ListMessageResponse = tool.admin("QueryMessage", m.ListMessageRequest(topic=name("orders"), **fields))
    return answer


def eventually(tool: Rpcs, count: int, **fields: Any) -> m.ListMessageResponse:
    """Repeat a look-up until queues and index have all messages."""
    deadline = time.monotonic() + 20
    while len((answer := queried(tool, **fields)).messages) < count:
        assert time.monotonic() < deadline, answer
    return answer


def bodies(answer: m.ListMessageResponse) -> list[bytes]:
    return [message.body for message in answer.messages]


def test_a_message_is_found_by_either_id(cluster: BlockingCluster, tool: Rpcs) -> None:
    [stored] = [view for view in cluster.messages("orders") if view.body == b"3"]
    for message_id in (stored.unique_key, stored.offset_message_id):
        [message] = eventually(tool, 1, message_id=message_id).messages
        assert (message.body, message.system_properties.tag) == (b"3", "b")
    assert queried(tool, message_id="unknown").status.code == m.Code.MESSAGE_NOT_FOUND
    assert queried(tool, message_id=" ").status.code == m.Code.ILLEGAL_MESSAGE_ID


def test_messages_with_a_key_come_in_pages(tool: Rpcs) -> None:
    assert set(bodies(eventually(tool, 6, message_key="k"))) == {b"0", b"1", b"2", b"3", b"4", b"5"}
    pages = [queried(tool, message_key="k", page_num=number, page_size=4) for number in (1, 2)]
    assert [len(page.messages) for page in pages] == [4, 2]
    assert len({*bodies(pages[0]), *bodies(pages[1])}) == 6
    scrolled = queried(tool, message_key="k", max_message_nums=4)
    rest = queried(tool, message_key="k", max_message_nums=4, scroll_id=scrolled.scroll_id)
    assert (len(rest.messages), rest.scroll_id) == (2, "")
    assert bodies(queried(tool, message_key="k2")) == [b"2"]


def test_messages_of_a_subscription_come_by_a_cursor(tool: Rpcs) -> None:
    eventually(tool, 3, subscription="a")
    found: list[bytes] = []
    cursor = None
    for _ in range(3):
        answer = queried(tool, subscription="a", max_message_nums=1, scroll_id=cursor)
        found += bodies(answer)
        cursor = answer.scroll_id
    assert sorted(found) == [b"0", b"2", b"4"]
    assert bodies(queried(tool, subscription="a", scroll_id=cursor)) == [] if cursor else True
    assert len(queried(tool).messages) == 6, "no key at all is each message"
    assert len(queried(tool, page_num=2, page_size=4).messages) == 2


def test_a_time_range_and_a_queue_restrict_a_query(tool: Rpcs) -> None:
    eventually(tool, 6)
    assert sum(len(queried(tool, queue_id=number).messages) for number in (0, 1)) == 6
    later = m.Timestamp(seconds=int(time.time()) + 60)
    assert queried(tool, begin_timestamp=later).status.code == m.Code.MESSAGE_NOT_FOUND
    assert len(queried(tool, end_timestamp=later, begin_timestamp=m.Timestamp(seconds=1)).messages) == 6
    backwards = queried(tool, begin_timestamp=later, end_timestamp=m.Timestamp(seconds=1))
    assert backwards.status.code == m.Code.BAD_REQUEST
    assert queried(tool, broker_name="nowhere").status.code == m.Code.MESSAGE_NOT_FOUND


def test_a_page_far_behind_the_first_is_refused(tool: Rpcs, monkeypatch: pytest.MonkeyPatch) -> None:
    eventually(tool, 6)
    monkeypatch.setattr(adminmessages, "PULLS_MAX", 1)
    answer = queried(tool, page_num=1000, page_size=100)
    assert answer.status.code == m.Code.BAD_REQUEST
    assert answer.status.message == "the page is too far behind the first: use the scroll id"
    found: list[bytes] = []
    cursor: str | None = None
    while cursor != "":
        page = queried(tool, scroll_id=cursor)
        found += bodies(page)
        cursor = page.scroll_id
    assert len(found) == 6


@pytest.mark.parametrize("cursor", ["x", "broker-a:x:1", "broker-a:0:-1", "broker-a:9:0", ":0:0", "9" * 40])
def test_a_cursor_of_nobody_is_refused(tool: Rpcs, cursor: str) -> None:
    assert queried(tool, scroll_id=cursor).status.code == m.Code.BAD_REQUEST
    if not cursor.isdecimal() or len(cursor) > 19:
        assert queried(tool, message_key="k", scroll_id=cursor).status.code == m.Code.BAD_REQUEST


def test_messages_of_a_lite_topic(cluster: BlockingCluster, tool: Rpcs) -> None:
    attributes: dict[str, Any] = {"message.type": "LITE"}
    cluster.create_topic("parent", **attributes)
    for lite_topic in ("room-1", "room-2"):
        send = send_request("parent", lite_topic.encode(), kind=m.MessageType.LITE, lite_topic=lite_topic)
        assert tool_send(cluster, send).status.code == m.Code.OK
    request = m.ListMessageRequest(topic=name("parent"), lite_topic="room-2")
    deadline = time.monotonic() + 20
    while not (answer := tool.admin("QueryMessage", request)).messages:
        assert time.monotonic() < deadline, answer
    assert bodies(answer) == [b"room-2"]


def tool_send(cluster: BlockingCluster, send: m.SendMessageRequest) -> m.SendMessageResponse:
    with Rpcs(cluster.brokers[0].grpc) as rpcs:
        answer: m.SendMessageResponse = rpcs.SendMessage(send)
        return answer


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (m.Code.OK, m.Code.OK),
        (m.Code.FAILED_TO_CONSUME_MESSAGE, m.Code.FAILED_TO_CONSUME_MESSAGE),
        (m.Code.MESSAGE_CORRUPTED, m.Code.MESSAGE_CORRUPTED),
    ],
)
def test_a_consumer_verifies_a_message(cluster: BlockingCluster, tool: Rpcs, outcome: m.Code, code: m.Code) -> None:
    [stored] = [view for view in cluster.messages("orders") if view.body == b"1"]
    eventually(tool, 1, message_id=stored.unique_key)
    with Rpcs(cluster.brokers[0].grpc) as rpcs:
        stream, _ = rpcs.begin(settings_of_consumer("g-verify", "orders", kind=m.ClientType.PUSH_CONSUMER))
        request = m.VerifyMessageRequest(
            client_id=rpcs.client_id, group=name("g-verify"), topic=name("orders"), message_id=stored.unique_key
        )
        pending = tool.begun_admin("VerifyMessage", request)
        command = stream.next().verify_message_command
        assert command.message.body == b"1"
        result = m.VerifyMessageResult(nonce=command.nonce)
        stream.send(m.TelemetryCommand(status=m.Status(code=outcome), verify_message_result=result))
        assert pending.result().status.code == code
        request.message_id = "unknown"
        assert tool.admin("VerifyMessage", request).status.code == m.Code.MESSAGE_NOT_FOUND
        request.client_id = "nobody"
        assert tool.admin("VerifyMessage", request).status.code == m.Code.NOT_FOUND


def test_a_tool_sends_a_message(cluster: BlockingCluster, tool: Rpcs) -> None:
    cluster.create_topic("tests")
    request = m.AdminSendMessageRequest(
        topic=name("tests"), tag="t", key="k", body=b"hello", user_properties={"x": "y"}, ext_info={"other": "1"}
    )
    answer = tool.admin("AdminSendMessage", request)
    assert answer.status.code == m.Code.OK
    [view] = cluster.messages("tests")
    assert (view.body, view.properties["TAGS"], view.keys, view.properties["x"]) == (b"hello", "t", ["k"], "y")
    assert view.unique_key == answer.message_id
    request.ClearField("body")
    assert tool.admin("AdminSendMessage", request).status.code == m.Code.MESSAGE_BODY_EMPTY
