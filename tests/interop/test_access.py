"""Access control as the official clients and tools meet it, and as the original's own.

The users of a store go from the original to Firearrow and back, and both refuse the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from firearrow.client.admin import Admin
from firearrow.errors import BrokerError
from firearrow.net.access import Access
from firearrow.net.client import Client
from firearrow.wire.admin_bodies import AuthAcl, AuthEntry, AuthPolicy, AuthUserInfo
from firearrow.wire.signature import Credentials
from tests.interop.driver import Driver, JavaError
from tests.interop.javaclient import JavaClient, Outgoing
from tests.interop.servers import AUTHORIZED, ROOT, Kind, Server, serve, target_kind
from tests.interop.test_requests import REPLIES
from tests.interop.test_transactions import OFTEN

APP: Final = Credentials("app", "the app's secret")


@pytest.fixture(scope="module")
def guarded(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server under test, with access control."""
    directory = tmp_path_factory.mktemp("guarded")
    where = directory / "store", directory / "logs"
    with serve(target_kind(), *where, settings={**AUTHORIZED, **OFTEN}) as server:
        yield server


@pytest.fixture(scope="module")
def root(driver: Driver, guarded: Server) -> Iterator[JavaClient]:
    """The client of the one who may do everything, who makes users and topics by mqadmin."""
    client = JavaClient(driver, guarded, ROOT)
    at, broker = ["-n", guarded.namesrv], ["-b", guarded.broker]
    client.mqadmin_all([["createUser", *at, *broker, "-u", APP.access_key, "-p", APP.secret_key]])
    subject = ["-s", f"User:{APP.access_key}", "-d", "Allow"]
    acls = [("Topic:Own*", "Pub,Sub"), ("Group:own*", "Sub"), (f"Topic:{REPLIES}", "Pub")]
    said = [client.mqadmin("createAcl", *broker, *subject, "-r", resource, "-a", actions) for resource, actions in acls]
    assert all("success" in text for text in said), said
    for topic in ("OwnSends", "OwnTransactions", "OwnRequests", "Foreign"):
        client.create_topic(topic, queues=2)
    yield client
    client.close()


@pytest.fixture
def app(driver: Driver, guarded: Server, root: JavaClient) -> Iterator[JavaClient]:
    """The client of a user who may do a little."""
    client = JavaClient(driver, guarded, APP)
    yield client
    client.close()


def test_a_user_sends_and_consumes_what_it_may(app: JavaClient) -> None:
    sent = [Outgoing(body=b"%d" % n) for n in range(8)]
    producer = app.producer()
    producer.send("OwnSends", sent[:4])
    producer.send_batch("OwnSends", sent[4:])
    consumer = app.push_consumer("own_consumers", "OwnSends")
    received = consumer.wait_for(8)
    assert sorted(message.body for message in received) == [message.body for message in sent]
    consumer.stop()
    pops = app.pop_calls("own_pops", "OwnSends")
    popped = pops.pop()
    assert popped.messages
    assert pops.ack(popped.messages[0].properties["POP_CK"]) == "OK"
    transactions = app.transaction_producer()
    transactions.send("OwnTransactions", b"half", "COMMIT_MESSAGE")
    transactions.send("OwnTransactions", b"asked", "UNKNOW", "COMMIT_MESSAGE")
    committed = app.push_consumer("own_committed", "OwnTransactions").wait_for(2)
    assert sorted(message.body for message in committed) == [b"asked", b"half"]
    app.replier("own_repliers", "OwnRequests")
    asker = app.producer("own_asking")
    assert asker.request("OwnRequests", Outgoing(body=b"why")) == b"re: why"


def test_and_nothing_else(app: JavaClient, driver: Driver, guarded: Server) -> None:
    def refusal(client: JavaClient, topic: str) -> JavaError:
        with pytest.raises(JavaError) as caught:
            client.producer().send(topic, [Outgoing(body=b"x", queue=0)])
        assert caught.value.code == 16
        return caught.value

    assert "User:app has no permission to access Topic:Foreign" in str(refusal(app, "Foreign"))
    for credentials, why in (
        (None, "username cannot be null"),
        (Credentials("app", "guessed"), "check signature failed"),
        (Credentials("nobody", "guessed"), "User:nobody is not found"),
    ):
        stranger = JavaClient(driver, guarded, credentials)
        assert why in str(refusal(stranger, "OwnSends"))
        stranger.close()
    denied = app.mqadmin("listUser", "-b", guarded.broker)
    assert "#UserName" not in denied
    assert ROOT.secret_key not in denied


# --- the same as the original ---


class Probe(NamedTuple):
    """A request, and whether it is to be refused to the app."""

    code: int
    fields: Mapping[str, str]
    is_refused: bool
    body: Any = None


def _queue(topic: str) -> dict[str, str]:
    return {"topic": topic, "queueId": "0"}


def _pull(topic: str, group: str) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "queueOffset": "0",
        "maxMsgNums": "1",
        "sysFlag": "0",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subVersion": "0",
        **_queue(topic),
    }


def _send(topic: str) -> dict[str, str]:
    return {
        "a": "p",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1",
        "h": "0",
        "i": "",
        "j": "0",
        "k": "false",
        "m": "false",
    }


def _beat(topic: str, group: str) -> dict[str, Any]:
    data = {"topic": topic, "subString": "*", "expressionType": "TAG", "subVersion": 1}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "unitMode": False,
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [data],
    }
    return {"clientID": "probe", "consumerDataSet": [consumer], "producerDataSet": []}


def _lock(topic: str, group: str) -> dict[str, Any]:
    queue = {"topic": topic, "brokerName": "broker-a", "queueId": 0}
    return {"consumerGroup": group, "clientId": "probe", "mqSet": [queue]}


PROBES: Final = (
    Probe(310, _send("Own"), False),
    Probe(310, _send("OwnDenied"), True),
    Probe(310, _send("Read"), True),
    Probe(310, _send("Other"), True),
    Probe(310, _send("FromElsewhere"), True),
    Probe(310, _send("%RETRY%own"), False),
    Probe(310, _send("%RETRY%other"), True),
    Probe(11, _pull("Own", "own"), False),
    Probe(11, _pull("Own", "other"), True),
    Probe(11, _pull("Other", "own"), True),
    Probe(11, _pull("Read", "own"), True),
    Probe(11, _pull("%RETRY%own", "own"), False),
    Probe(34, {}, False, _beat("Own", "own")),
    Probe(34, {}, True, _beat("Other", "own")),
    Probe(34, {}, True, _beat("Own", "other")),
    Probe(34, {}, False, _beat("%RETRY%own", "own")),
    Probe(41, {}, False, _lock("Own", "own")),
    Probe(41, {}, True, _lock("Other", "own")),
    Probe(41, {}, True, _lock("Own", "other")),
    Probe(30, _queue("Read"), False),
    Probe(30, _queue("Other"), True),
    Probe(32, _queue("Read"), False),
    Probe(32, _queue("Own"), True),
    Probe(14, {**_queue("Own"), "consumerGroup": "own"}, False),
    Probe(14, {**_queue("Own"), "consumerGroup": "other"}, True),
    Probe(15, {**_queue("Own"), "consumerGroup": "own", "commitOffset": "0"}, False),
    Probe(15, {**_queue("Other"), "consumerGroup": "own", "commitOffset": "0"}, True),
    Probe(38, {"consumerGroup": "own"}, False),
    Probe(38, {"consumerGroup": "other"}, True),
    Probe(35, {"clientID": "probe", "producerGroup": "p"}, False),
    Probe(35, {"clientID": "probe", "consumerGroup": "other"}, True),
    Probe(202, {"topic": "Read"}, False),
    Probe(202, {"topic": "Other"}, True),
    Probe(203, {"consumerGroup": "own"}, True),
    Probe(208, {"consumerGroup": "seen", "topic": "Read"}, False),
    Probe(208, {"consumerGroup": "seen", "topic": "Other"}, True),
    Probe(215, {"topic": "Other"}, True),
    Probe(207, {"groupName": "other"}, True),
    Probe(204, {"producerGroup": "p"}, True),
    Probe(3005, {}, True),
    Probe(3001, {"username": "more"}, True, {"password": "p"}),
)
"""What both decide alike; where Firearrow is stricter, tests/broker/access/test_control.py says so."""

ACL: Final = AuthAcl(
    "User:app",
    [
        AuthPolicy(
            "Custom",
            [
                AuthEntry("Topic:Own*", ["Pub", "Sub"], None, "Allow"),
                AuthEntry("Topic:OwnDenied", ["All"], None, "Deny"),
                AuthEntry("Topic:FromElsewhere", ["All"], ["10.0.0.0/8"], "Allow"),
                AuthEntry("Group:own", ["Sub"], ["127.0.0.0/8", "::1"], "Allow"),
            ],
        ),
        AuthPolicy(
            "Default",
            [AuthEntry("Topic:Read", ["Get"], None, "Allow"), AuthEntry("Group:seen", ["Get"], None, "Allow")],
        ),
    ],
)


async def _refusals(server: Server) -> list[str | None]:
    """What the app is told where access control refuses it, None where it is not."""
    client = Client(access=Access(APP))
    found: list[str | None] = []
    for probe in PROBES:
        body = b"" if probe.body is None else json.dumps(probe.body).encode()
        try:
            await client.call(server.broker, probe.code, probe.fields, body)
        except BrokerError as error:
            is_it = error.code == 16 and "has no permission to access" in error.remark
            found.append(error.remark if is_it else None)
        else:
            found.append(None)
    await client.close()
    return found


class _Seen(NamedTuple):
    users: list[AuthUserInfo]
    acls: list[AuthAcl]
    refusals: list[str | None]


async def _look(server: Server) -> _Seen:
    async with Admin.of([server.namesrv], ROOT) as admin:
        auth = admin.auth
        users, acls = await auth.users(server.broker), await auth.acls(server.broker)
    return _Seen(users, acls, await _refusals(server))


async def _fill(server: Server) -> None:
    async with Admin.of([server.namesrv], ROOT) as admin:
        auth, at = admin.auth, server.broker
        await auth.create_user(at, AuthUserInfo("app", APP.secret_key))
        await auth.create_user(at, AuthUserInfo("off", 'with "quotes" and ü', None, "disable"))
        await auth.create_acl(at, ACL)


async def _change(server: Server) -> None:
    async with Admin.of([server.namesrv], ROOT) as admin:
        auth, at = admin.auth, server.broker
        await auth.update_user(at, AuthUserInfo("off", None, "Super"))
        await auth.delete_acl(at, "User:app", "Topic:FromElsewhere")
        off = [AuthEntry("*", ["All"], None, "Deny"), AuthEntry("Cluster:*", ["Get"], None, "Allow")]
        await auth.create_acl(at, AuthAcl("User:off", [AuthPolicy("Default", off)]))


def test_users_go_from_one_to_the_other_and_back(tmp_path: Path) -> None:
    """And each refuses what the other does, in the same words."""
    port = 0

    def opened(kind: Kind, turn: int) -> Any:
        where = tmp_path / "store", tmp_path / f"{turn}-{kind}"
        return serve(kind, *where, broker_port=port, settings=AUTHORIZED)

    with opened("real", 1) as server:
        port = server.broker_port
        asyncio.run(_fill(server))
        filled = asyncio.run(_look(server))
    expected = [probe.is_refused for probe in PROBES]
    assert [remark is not None for remark in filled.refusals] == expected
    with opened("firearrow", 2) as server:
        ours = asyncio.run(_look(server))
        compared = list(zip(PROBES, filled.refusals, ours.refusals, strict=True))
        assert [each for each in compared if each[1] != each[2]] == []
        assert ours == filled
        asyncio.run(_change(server))
        changed = asyncio.run(_look(server))
    assert changed.users != filled.users
    assert changed.acls != filled.acls
    with opened("real", 3) as server:
        assert asyncio.run(_look(server)) == changed
