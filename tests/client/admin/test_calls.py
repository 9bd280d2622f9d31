"""Calls of administrators: their servers, their signatures, and the text of an error."""

from __future__ import annotations

import pytest

from firearrow.client.admin import Admin, servers
from firearrow.client.admin.calls import fields_in, subject_of
from firearrow.client.session.answers import read_number
from firearrow.errors import BrokerFailed, ConfigError, NotPermitted, RemoteProtocolError, TopicNotFound
from firearrow.wire import fastjson
from firearrow.wire.bodies import DataVersion, KVTable, TopicList
from firearrow.wire.client_bodies import SubscriptionGroupConfig, SubscriptionGroupTable
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, request
from firearrow.wire.headers import AnyGroup, GetConsumeStats, PollingInfo, PullMessage, QueueHeader
from firearrow.wire.signature import ACCESS_KEY, SIGNATURE, Credentials, signature
from tests.client.admin.servers import administering, run


def test_fields_are_the_given_ones_by_their_names_on_the_wire() -> None:
    assert fields_in(None) == {}
    assert fields_in(AnyGroup(consumer_group="g")) == {"consumerGroup": "g"}
    found = fields_in(PullMessage("g", "T", 0, 7, 32, 4))
    assert found["maxMsgNums"] == 32
    assert "subscription" not in found


def test_the_subject_of_a_request_comes_from_its_fields() -> None:
    assert subject_of(None) == ""
    assert subject_of(GetConsumeStats("g", "T")) == "group 'g', topic 'T'"
    assert subject_of(PollingInfo("g", "T", -1)) == "group 'g', topic 'T'"
    assert subject_of(QueueHeader("T", 0)) == "topic 'T', queue 0"


def test_a_refusal_names_the_subject_and_the_server() -> None:
    async def scene() -> None:
        refusal = Response(ResponseCode.NO_PERMISSION, "not you")
        async with administering({215: refusal}) as (admin, answers):
            with pytest.raises(NotPermitted) as error:
                await admin.topics.delete_from_broker(answers.address, "T")
            assert str(error.value) == f"topic 'T': code 16 from {answers.address}: not you"

    run(scene)


def test_requests_are_signed() -> None:
    async def scene() -> None:
        credentials = Credentials("user", "secret")
        async with administering({206: TopicList()}, credentials) as (admin, answers):
            await admin.topics.names()
            [asked] = answers.asked
            assert asked.ext[ACCESS_KEY] == "user"
            assert asked.ext[SIGNATURE] == signature(asked.ext, asked.body, "secret")

    run(scene)


def test_the_next_name_server_is_asked_when_one_is_gone() -> None:
    async def scene() -> None:
        async with (
            administering({206: TopicList(["T"])}) as (_, answers),
            Admin.of(["127.0.0.1:1", answers.address]) as admin,
        ):
            assert await admin.topics.names() == ["T"]
            assert await admin.topics.names() == ["T"]

    run(scene)


def test_no_name_server_at_all() -> None:
    async def scene() -> None:
        async with Admin.of(["127.0.0.1:1"]) as admin:
            with pytest.raises(ConnectionError, match=r"no name server answers: 127\.0\.0\.1:1"):
                await admin.topics.names()
        async with Admin.of([]) as admin:
            with pytest.raises(ConfigError, match="no name server is known"):
                await admin.topics.names()

    run(scene)


def test_a_refusal_about_a_topic_counts() -> None:
    """A topic without a route is no failure of a name server."""

    async def scene() -> None:
        refusal = Response(ResponseCode.TOPIC_NOT_EXIST, "")
        async with administering({105: refusal}) as (admin, answers):
            with pytest.raises(TopicNotFound):
                await admin.topics.route("T")
            answers.replies[105] = Response(ResponseCode.SYSTEM_ERROR, "oops")
            with pytest.raises(ConnectionError, match=r"topic 'T': code 1 from .*: oops"):
                await admin.topics.route("T")

    run(scene)


def test_an_answer_that_can_not_be_read() -> None:
    async def scene() -> None:
        async with administering({28: Response(body=b"{")}) as (admin, answers):
            with pytest.raises(RemoteProtocolError, match="the answer can't be read"):
                await admin.brokers.runtime(answers.address)

    run(scene)


def test_a_timeout_names_the_server() -> None:
    async def scene() -> None:
        async with administering({317: None}) as (admin, answers):
            with pytest.raises(TimeoutError, match=r"did not answer in 0\.05 s"):
                await admin.offsets.all_progress(answers.address, ordered=False, seconds=0.05)

    run(scene)


def test_a_number_is_a_number() -> None:
    answer = request(0, {"offset": "x"})
    with pytest.raises(RemoteProtocolError, match="a:1 sent offset='x'"):
        read_number(answer, "offset", "a:1")
    assert read_number(request(0, {"offset": 7}), "offset", "a:1") == 7


def test_a_servers_own_error_is_one() -> None:
    async def scene() -> None:
        refusal = Response(ResponseCode.SYSTEM_ERROR, "broken")
        async with administering({207: refusal}) as (admin, answers):
            with pytest.raises(BrokerFailed, match="group 'g': code 1"):
                await admin.groups.delete(answers.address, "g")

    run(scene)


def test_a_broker_that_has_counted_nothing_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "EARLY_SECONDS", 0.01)
    early = Response(ResponseCode.SYSTEM_ERROR, "java.util.NoSuchElementException")
    broken = Response(ResponseCode.SYSTEM_ERROR, "broken")

    async def scene() -> None:
        async with administering({28: early}) as (admin, answers):
            with pytest.raises(BrokerFailed, match="NoSuchElement"):
                await admin.brokers.runtime(answers.address)
            assert len(answers.asked) > 3
            replies = iter([early, early, early, KVTable({"a": "1"}), broken])
            answers.next_reply = lambda _: next(replies)
            assert await admin.brokers.runtime(answers.address) == {"a": "1"}
            with pytest.raises(BrokerFailed, match="broken"):
                await admin.brokers.runtime(answers.address)

    run(scene)


def page_of(total: str, changes: int = 0) -> Response:
    group = SubscriptionGroupConfig("g")
    table = SubscriptionGroupTable(DataVersion(changes), {"g": group}, {})
    return Response(fields={"totalGroupNum": total}, body=fastjson.dumps(table))


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (page_of("many"), "sent totalGroupNum='many'"),
        (Response(fields={"totalGroupNum": "1"}, body=b"{"), "the answer can't be read"),
    ],
)
def test_a_malformed_page_of_a_table_is_an_error_that_names_the_server(reply: Response, why: str) -> None:
    async def scene() -> None:
        async with administering({201: reply}) as (admin, answers):
            with pytest.raises(RemoteProtocolError, match=f"{answers.address}.*{why}"):
                await admin.groups.configs(answers.address)

    run(scene)


def test_reading_a_table_that_always_changes_ends() -> None:
    async def scene() -> None:
        async with administering({201: page_of("2")}) as (admin, answers):
            answers.next_reply = lambda _: page_of("2", len(answers.asked))
            with pytest.raises(RemoteProtocolError, match="changes faster than it can be read"):
                await admin.groups.configs(answers.address)

    run(scene)
