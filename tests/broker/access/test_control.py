"""Every request code is refused to users without its permission, and then nothing has changed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from firearrow.clock import SystemClock
from firearrow.net.server import Peer, Server
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue, Response
from firearrow.wire.frame import AnyCommand
from firearrow.wire.requests import REQUESTS, Ask, PermissionScope
from firearrow.wire.signature import SIGNATURE, Credentials, is_signed
from tests.broker.everycode import ROWS, as_json, body_of, header_of, seen
from tests.broker.serving import Serving, send_fields, serving
from tests.broker.signing import AUTHENTICATED, AUTHORIZED, Signer, protected, signing

REFUSED = 16


# --- the sender must prove its user ---


async def _all_refused(served: Serving, signer: Signer, remark: str) -> None:
    before = seen(served)
    for row in ROWS:
        answer = await signer.call(row.code, header_of(row), body_of(row))
        assert (answer.code, answer.remark) == (REFUSED, remark), row.code
    assert seen(served) == before


def test_without_credentials_everything_is_refused(tmp_path: Path) -> None:
    async def main(served: Serving, _: Signer) -> None:
        async with signing(served, None) as nobody:
            await _all_refused(served, nobody, "username cannot be null.")

    protected(tmp_path, main, AUTHENTICATED)


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_with_a_wrong_signature_everything_is_refused(tmp_path: Path, binary: bool) -> None:
    async def main(served: Serving, _: Signer) -> None:
        before = seen(served)
        async with signing(served, Credentials("root", "guessed"), binary=binary) as guesser:
            for row in ROWS:
                if not binary or row.code < 1 << 15:  # the others have no place there
                    answer = await guesser.call(row.code, header_of(row), body_of(row))
                    found = answer.code, answer.remark
                    assert found == (REFUSED, "check signature failed."), row.code
        async with signing(served, Credentials("nobody", "guessed")) as guesser:
            await _all_refused(served, guesser, "User:nobody is not found.")
        assert seen(served) == before

    protected(tmp_path, main, AUTHENTICATED)


def test_what_was_altered_on_the_way_is_refused(tmp_path: Path) -> None:
    """A request that is shortened, or has another field."""

    async def main(served: Serving, root: Signer) -> None:
        before = seen(served)
        for row in ROWS:
            cut = root.signed(row.code, header_of(row), body_of(row) + b" ")
            cut.body = cut.body[:-1]
            other = root.signed(row.code, header_of(row), body_of(row))
            other.ext["more"] = "1"
            unsigned = root.signed(row.code, header_of(row), body_of(row))
            del unsigned.ext[SIGNATURE]
            for command in (cut, other, unsigned):
                root.talker.ask(command)
                answer = await root.talker.answer()
                found = answer.code, answer.remark
                assert found == (REFUSED, "check signature failed."), row.code
        assert seen(served) == before

    protected(tmp_path, main, AUTHENTICATED)


def test_what_was_recorded_can_be_sent_again(tmp_path: Path) -> None:
    """As in RocketMQ, signatures have no time and no number in them: only TLS helps against a replay."""

    async def main(served: Serving, root: Signer) -> None:
        command = root.signed(310, send_fields(), b"body")
        for _ in range(2):
            root.talker.ask(command)
            assert (await root.talker.answer()).code == 0
        assert len(await root.stored()) == 2

    protected(tmp_path, main)


def test_batches_of_one_turn_are_checked_each(tmp_path: Path) -> None:
    """The first is good; requests that are handled together with it are not, and are refused."""

    async def main(served: Serving, root: Signer) -> None:
        await root.sent()  # it makes the topic
        async with signing(served, Credentials("root", "guessed")) as guesser:
            commands = [
                signer.signed(320, send_fields(m=True, i=""), _batch_of(b"x")) for signer in (root, guesser, root)
            ]
            root.talker.ask(*commands)
            answers = [await root.talker.answer() for _ in commands]
        assert [answer.code for answer in answers] == [0, REFUSED, 0]

    protected(tmp_path, main)


def _batch_of(body: bytes) -> bytes:
    size = 4 + 4 + 4 + 4 + 4 + len(body) + 2
    return size.to_bytes(4) + bytes(12) + len(body).to_bytes(4) + body + (0).to_bytes(2)


# --- and needs permissions ---


def test_a_stranger_may_do_nothing(tmp_path: Path) -> None:
    async def main(served: Serving, root: Signer) -> None:
        await root.sent()
        await root.call(17, header_of(REQUESTS[RequestCode.UPDATE_AND_CREATE_TOPIC]))
        stranger = await root.user("stranger")
        before = seen(served)
        async with signing(served, stranger) as signer:
            for row in ROWS:
                answer = await signer.call(row.code, header_of(row), body_of(row))
                if row.asks:
                    assert answer.code == REFUSED, (row.code, answer)
                    assert answer.remark is not None
                    assert "User:stranger has no permission to access" in answer.remark
        assert seen(served) == before

    protected(tmp_path, main)


RESOURCES = {PermissionScope.CLUSTER: "Cluster:C", PermissionScope.TOPIC: "Topic:T", PermissionScope.GROUP: "Group:g"}


ALSO = {
    code: [("Topic:C_REPLY_TOPIC", ["Pub"])]
    for code in (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
}
"""Resources of requests besides the ones that they name."""


def grants(asks: tuple[Ask, ...]) -> list[list[tuple[str, list[str]]]]:
    """Return the ways to give a user the permissions, one action each."""
    ways = max(len(list(ask.actions)) for ask in asks)
    words = [[(it.name or "").capitalize() for it in ask.actions] for ask in asks]
    return [
        [(RESOURCES[ask.resource], [each[way % len(each)]]) for ask, each in zip(asks, words, strict=True)]
        for way in range(ways)
    ]


def test_each_code_takes_what_its_row_says_and_no_less(tmp_path: Path) -> None:
    """A user is admitted in each of the ways that a row allows, and refused as soon as one of the
    resources is missing."""

    async def main(served: Serving, root: Signer) -> None:
        await root.sent()
        async with signing(served, await root.user("u")) as signer:
            for row in ROWS:
                if row.code in DISTURBING or not row.asks:
                    continue
                for named in grants(row.asks):
                    way = named + ALSO.get(row.code, [])
                    for given in (way, *(way[:at] + way[at + 1 :] for at in range(len(way)))):
                        await root.call(3008, {"subject": "User:u"})
                        await root.allow("u", ("Topic:other", ["All"]), *given)
                        answer = await signer.call(row.code, header_of(row), body_of(row))
                        is_refused = "has no permission to access" in (answer.remark or "")
                        assert is_refused == (given != way), (row.code, given, answer)

    protected(tmp_path, main)


# Their effects hinder the following requests.
DISTURBING = frozenset(
    {
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
    }
)


def test_a_denied_action_is_refused_whatever_else_is_allowed(tmp_path: Path) -> None:
    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await root.user("u")) as signer:
            await root.allow("u", ("Topic:T*", ["Pub"]), ("Topic:*", ["Pub"]))
            assert (await signer.send(topic="T")).code == 0
            await root.allow("u", ("Topic:T", ["Pub"]), decision="Deny")
            answer = await signer.send(topic="T")
            assert answer.code == REFUSED
            assert answer.remark == ("User:u has no permission to access Topic:T from 127.0.0.1, the decision is deny.")
            assert (await signer.send(topic="T1")).code == 0

    protected(tmp_path, main)


def test_a_change_counts_at_once(tmp_path: Path) -> None:
    """A decision is remembered until then, and not longer."""

    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await root.user("u")) as signer:
            await root.allow("u", ("Topic:T", ["Pub"]))
            assert (await signer.send()).code == 0
            await root.call(3008, {"subject": "User:u"})
            assert (await signer.send()).code == REFUSED
            await root.allow("u", ("Topic:T", ["Pub"]))
            assert (await signer.send()).code == 0
            await root.call(3002, {"username": "u"}, as_json({"userStatus": "disable"}))
            assert (await signer.send()).remark == "User:u is disabled."
            await root.call(3002, {"username": "u"}, as_json({"userStatus": "enable"}))
            assert (await signer.send()).code == 0
            await root.call(3002, {"username": "u"}, as_json({"password": "new"}))
            assert (await signer.send()).remark == "check signature failed."
            await root.call(3003, {"username": "u"})
            assert (await signer.send()).remark == "User:u is not found."

    protected(tmp_path, main)


def test_a_retry_topic_is_its_groups(tmp_path: Path) -> None:
    """A consumer of one group may not read the retry topic of another group.

    Java: DefaultAuthorizationContextBuilder asks for the permission on the group in the request, not on the group of
    the retry topic.
    """

    async def main(served: Serving, root: Signer) -> None:
        for group in ("g", "other"):
            await root.sent(topic=f"%RETRY%{group}")
        async with signing(served, await root.user("u")) as signer:
            await root.allow("u", ("Group:g", ["Sub"]), ("Topic:*", ["Sub", "Pub"]))
            assert (await signer.pull(topic="%RETRY%g")).code == 0
            assert (await signer.send(topic="%RETRY%g")).code == 0  # as a consumer may
            for foreign in (await signer.pull(topic="%RETRY%other"), await signer.send(topic="%RETRY%other")):
                assert foreign.code == REFUSED
                assert foreign.remark is not None
                assert "Group:other" in foreign.remark

    protected(tmp_path, main)


def test_a_message_by_its_place_is_of_its_own_topic(tmp_path: Path) -> None:
    """Regardless of the topic in the request. Java: AdminBrokerProcessor does not compare them."""

    async def main(served: Serving, root: Signer) -> None:
        own, foreign = [await root.sent(topic=topic) for topic in ("T", "Secret")]
        offset = [int(sent["msgId"][-16:], 16) for sent in (own, foreign)]
        async with signing(served, await root.user("u")) as signer:
            await root.allow("u", ("Topic:T", ["Get", "Sub", "Pub"]), ("Group:g", ["Sub"]))
            asked: list[tuple[int, dict[str, FieldValue]]] = [
                (33, {"topic": "T"}),
                (36, {"group": "g", "delayLevel": 1, "originTopic": "T"}),
            ]
            for code, claimed in asked:
                answers = [await signer.call(code, claimed | {"offset": at}) for at in offset]
                assert [answer.code for answer in answers] == [0, REFUSED]
                unclear = await signer.call(code, claimed | {"offset": "0x0"})
                assert unclear.code == REFUSED
            half = await root.sent(topic="Secret", i="TRAN_MSG\x01true\x02PGROUP\x01p\x02", f=4)
            place = int(half["msgId"][-16:], 16)
            end: dict[str, FieldValue] = {
                "producerGroup": "p",
                "tranStateTableOffset": half["queueOffset"],
                "commitLogOffset": place,
                "commitOrRollback": 8,
            }
            for naming in (end, end | {"topic": "T"}):
                assert (await signer.call(37, naming)).code == REFUSED
            await root.allow("u", ("Topic:Secret", ["Pub"]))
            # The answer to a transaction check names the topic of halves.
            checked: dict[str, FieldValue] = {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}
            assert (await signer.call(37, end | checked)).code == 0

    protected(tmp_path, main)


def test_codes_of_whitelists_need_no_signature_and_no_permission(tmp_path: Path) -> None:
    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, None) as nobody, signing(served, await root.user("u")) as signer:
            assert (await nobody.send()).code == 0  # in both lists
            assert (await nobody.call(28, {})).remark == "username cannot be null."
            assert (await signer.call(28, {})).code == 0  # only in that of authorization
            # In that of authentication alone: the user must be known for the permissions.
            assert (await nobody.call(26, {})).remark == "username cannot be null."
            assert (await root.call(26, {})).code == 0

    lists = {"authentication_whitelist": "310, 26", "authorization_whitelist": "310 ,28"}
    protected(tmp_path, main, {**AUTHORIZED, **lists})


def test_with_authentication_alone_every_user_may_do_everything(tmp_path: Path) -> None:
    """Except to make or change a super user."""

    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await root.user("u")) as signer:
            assert (await signer.send()).code == 0
            assert (await signer.pull()).code == 0
            made = await signer.call(3001, {"username": "v"}, as_json({"password": "p", "userType": "Super"}))
            assert made.remark == "The super user can only be create by super user"
            changed = await signer.call(3002, {"username": "root"}, as_json({"password": "p"}))
            assert (changed.code, changed.remark) == (REFUSED, "The super user can only be update by super user")

    protected(tmp_path, main, AUTHENTICATED)


def test_a_stateful_strategy_looks_at_one_signature_of_a_connection(tmp_path: Path) -> None:
    """For a minute; but every change of a user ends that, and another connection needs a separate signature."""
    strategy = "org.apache.rocketmq.auth.authentication.strategy.StatefulAuthenticationStrategy"

    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await root.user("u")) as signer:
            assert (await signer.send()).code == 0
            signer.credentials = Credentials("u", "guessed")
            assert (await signer.send()).code == 0
            async with signing(served, signer.credentials) as other:
                assert (await other.send()).remark == "check signature failed."
            await root.user("v")
            assert (await signer.send()).remark == "check signature failed."

    protected(tmp_path, main, {**AUTHENTICATED, "authentication_strategy": strategy})


def test_the_configuration_is_told_without_secrets(tmp_path: Path) -> None:
    async def main(_: Serving, root: Signer) -> None:
        text = (await root.call(26, {})).body.decode()
        assert "authenticationEnabled=true" in text
        assert "secret" not in text
        assert "initAuthenticationUser" not in text

    protected(tmp_path, main)


def test_the_audit_log_says_who_was_refused_what_and_who_changed_what(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="firearrow.auth.audit")

    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await root.user("u")) as signer:
            for _ in range(3):
                await signer.send()
        await root.call(17, header_of(REQUESTS[RequestCode.UPDATE_AND_CREATE_TOPIC]))

    protected(tmp_path, main)
    lines = [vars(record) for record in caplog.records]
    told = [
        (line["msg"], line["user"], line["request"], line.get("resource") or line["reason"])
        for line in lines
        if line["name"] == "firearrow.auth.audit"
    ]
    refusal = "User:u has no permission to access Topic:T from 127.0.0.1, no matched policies."
    assert told == [
        ("change is allowed", "root", "AUTH_CREATE_USER", "Cluster:C"),
        ("request is refused", "u", "SEND_MESSAGE_V2", refusal),
        ("change is allowed", "root", "UPDATE_AND_CREATE_TOPIC", "Topic:T"),
    ]
    assert not any("secret" in str(line) for line in lines)


def test_users_survive_a_stop(tmp_path: Path) -> None:
    async def first(served: Serving, root: Signer) -> None:
        await root.user("u")
        await root.allow("u", ("Topic:T", ["Pub"]))

    async def second(served: Serving, root: Signer) -> None:
        async with signing(served, Credentials("u", "secret of u")) as signer:
            assert (await signer.send()).code == 0
            assert (await signer.pull()).code == REFUSED

    protected(tmp_path, first)
    other = {**AUTHORIZED, "init_authentication_user": '{"username":"root","password":"other"}'}
    protected(tmp_path, second, other)  # one that is there keeps its password


def test_producers_and_who_leaves_as_one_need_nothing(tmp_path: Path) -> None:
    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await root.user("u")) as signer:
            beat = {"clientID": "c", "producerDataSet": [{"groupName": "p"}]}
            assert (await signer.call(34, {}, as_json(beat))).code == 0
            leaving: dict[str, FieldValue] = {"clientID": "c", "producerGroup": "p"}
            assert (await signer.call(35, leaving)).code == 0
            refused = await signer.call(35, leaving | {"consumerGroup": "g"})
            assert refused.code == REFUSED

    protected(tmp_path, main)


def test_what_names_nothing_takes_the_permission_for_the_cluster(tmp_path: Path) -> None:
    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await root.user("u")) as signer:
            await root.allow("u", ("Topic:*", ["All"]), ("Group:*", ["All"]))
            refused = await signer.call(33, {"offset": 1 << 40})
            assert refused.remark == (
                "User:u has no permission to access Cluster:C from 127.0.0.1, no matched policies."
            )
            await root.allow("u", ("Cluster:C", ["Get"]))
            assert (await signer.call(33, {"offset": 1 << 40})).code == 1  # there is no message

    protected(tmp_path, main)


def test_a_heartbeat_names_every_topic_and_group(tmp_path: Path) -> None:
    def beat(*topics: str) -> bytes:
        body = json.loads(body_of(REQUESTS[RequestCode.HEART_BEAT]))
        found = [{"topic": topic, "subString": "*"} for topic in topics]
        body["consumerDataSet"][0]["subscriptionDataSet"] = found
        return as_json(body)

    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await root.user("u")) as signer:
            await root.allow("u", ("Topic:T", ["Sub"]), ("Group:g", ["Sub"]))
            assert (await signer.call(34, {}, beat("T", "%RETRY%g"))).code == 0
            assert (await signer.call(34, {}, beat("T", "Secret"))).code == REFUSED
            assert (await signer.call(34, {}, beat("T", "%RETRY%other"))).code == REFUSED

    protected(tmp_path, main)


def test_who_asks_a_consumer_does_not_hand_it_a_signature(tmp_path: Path) -> None:
    """The signed text has no code in it: a signature fits another request."""

    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await root.user("u")) as consumer:
            await root.allow("u", ("Topic:T", ["Sub"]), ("Group:g", ["Sub"]))
            await consumer.call(34, {}, body_of(REQUESTS[RequestCode.HEART_BEAT]))
            root.tell(307, {"consumerGroup": "g", "clientId": "c", "jstackEnable": False})
            asked = await consumer.talker.answer()
            while asked.code != 307:
                asked = await consumer.talker.answer()
            assert asked.ext["clientId"] == "c"
            assert not asked.ext.keys() & {"AccessKey", "Signature"}

    protected(tmp_path, main)


def test_an_entry_may_be_for_some_addresses_only(tmp_path: Path) -> None:
    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await root.user("u")) as signer:
            for sources, code in ((["127.0.0.0/8"], 0), (["10.0.0.1", "192.168.0.0/16"], REFUSED)):
                entry = {"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}
                acl = {"policies": [{"entries": [{**entry, "sourceIps": sources}]}]}
                assert (await root.call(3006, {"subject": "User:u"}, as_json(acl))).code == 0
                assert (await signer.send()).code == code

    protected(tmp_path, main)


def test_what_the_broker_asks_others_is_signed(tmp_path: Path) -> None:
    asked: list[tuple[int, str, bool]] = []

    def note(_: Peer, command: AnyCommand) -> Response:
        ext = command.ext
        good = is_signed(ext, command.body, "inner secret", command.version)
        asked.append((command.code, ext.get("AccessKey", ""), good))
        return Response()

    async def main() -> None:
        name_server = Server({103: note, 104: note}, SystemClock(), plain_ext=True)
        port = await name_server.start("127.0.0.1", 0)
        inner = '{"accessKey":"inner","secretKey":"inner secret"}'
        config = {**AUTHORIZED, "inner_client_authentication_credentials": inner}
        async with serving(tmp_path, **config, namesrv_addr=f"127.0.0.1:{port}") as served:
            assert served.broker.not_registered_with == []
            assert served.broker.users is not None
            assert served.broker.users.users["inner"].is_super
        await name_server.stop()

    asyncio.run(main())
    assert (103, "inner", True) in asked
    assert asked[-1] == (104, "inner", True)
    assert all(good for _, _, good in asked)
