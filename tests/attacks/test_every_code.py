"""What someone does with requests of every code that is not for them to send: those of others that
were recorded, cut ones, and codes that no row is about. Nothing is done of it.

(Requests without credentials, with a wrong signature or of a stranger: ``test_access``.)
"""

from __future__ import annotations

import asyncio
import ssl
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.admission import Admission
from firearrow.net.server import Peer
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Command, Response
from firearrow.wire.frame import AnyCommand, encode_request
from firearrow.wire.requests import REQUESTS, TOPIC_PUB, ServedBy
from firearrow.wire.signature import ACCESS_KEY, Credentials
from tests.broker.everycode import ROWS, as_json, body_of, header_of, seen
from tests.broker.serving import Serving, send_fields, serving
from tests.broker.signing import AUTHORIZED, ROOT, Signer, protected, signing
from tests.net.talker import encrypted, talking

REFUSED = 16
OF_OTHERS = [int(row.code) for row in REQUESTS.values() if row.served_by is not ServedBy.BROKER]
NAMED_IN_BODY = {
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.HEART_BEAT,
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.LITE_SUBSCRIPTION_CTL,
    RequestCode.BATCH_ACK_MESSAGE,
}
"""What they are about is named in a body; one that is another request's names nothing."""
UNKNOWN = [0, 1, 9999, 200_999, -1]


def recorded(signer: Signer) -> list[Command[dict[str, str]]]:
    """A request of each code as a user has sent it."""
    return [signer.signed(row.code, header_of(row), body_of(row)) for row in ROWS]


async def _asked(signer: Signer, command: Command[dict[str, str]]) -> Command[Any]:
    signer.talker.ask(command)
    answer = await signer.talker.answer()
    assert answer.opaque == command.opaque
    return answer


# --- what was recorded ---


def test_what_was_recorded_is_worth_nothing_with_another_key(tmp_path: Path) -> None:
    """Nor when its user is disabled, or deleted."""

    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await root.user("u", userType="Super")) as user:
            commands = recorded(user)
        before = seen(served)
        for change, remark in (
            ({"password": "another"}, "check signature failed."),
            ({"userStatus": "disable"}, "User:u is disabled."),
            (None, "User:u is not found."),
        ):
            if change is None:
                await root.call(3003, {"username": "u"})
            else:
                await root.call(3002, {"username": "u"}, as_json(change))
            state = seen(served)
            async with signing(served, None) as thief:
                for command in commands:
                    answer = await _asked(thief, command)
                    assert (answer.code, answer.remark) == (REFUSED, remark), command.code
            assert seen(served) == state
        assert seen(served)[:5] == before[:5]  # users are others

    protected(tmp_path, main)


def test_what_was_recorded_is_worth_nothing_in_another_name(tmp_path: Path) -> None:
    async def main(served: Serving, root: Signer) -> None:
        await root.user("u")
        before = seen(served)
        async with signing(served, None) as thief:
            for command in recorded(root):
                command.ext[ACCESS_KEY] = "u"
                answer = await _asked(thief, command)
                found = answer.code, answer.remark
                assert found == (REFUSED, "check signature failed."), command.code
        assert seen(served) == before

    protected(tmp_path, main)


def test_what_was_recorded_gives_no_right_to_another_request(tmp_path: Path) -> None:
    """The code is not signed: so it is the code that is sent by which a user's rights count."""

    async def main(served: Serving, root: Signer) -> None:
        await root.sent()
        async with signing(served, await root.user("u")) as user:
            await root.allow("u", ("Topic:T", ["Pub"]))
            send = user.signed(310, send_fields() | {"topic": "T", "consumerGroup": "g"}, b"{}")
        before = seen(served)
        async with signing(served, None) as thief:
            for row in ROWS:
                if row.asks in ((), TOPIC_PUB):
                    continue
                again = copy(send)
                again.code = int(row.code)
                answer = await _asked(thief, again)
                if row.code not in NAMED_IN_BODY:
                    assert answer.code == REFUSED, (row.code, answer)
                    assert "User:u has no permission to access" in (answer.remark or "")
                elif row.code != RequestCode.HEART_BEAT:  # of a client without producers
                    assert answer.code != 0
        assert seen(served) == before

    protected(tmp_path, main)


@pytest.mark.parametrize("value", [True, 1, "x", {"a": 1}, [1], None])
def test_nobody_can_say_that_a_request_is_admitted(tmp_path: Path, value: Any) -> None:
    """By a field of the header that has the name which a command in memory has for that."""

    async def main(served: Serving, _: Signer) -> None:
        before = seen(served)
        async with talking(served.port) as talker:
            for row in ROWS:
                header = {"code": int(row.code), "extFields": header_of(row), "opaque": 7}
                text = as_json(header | {"(admitted)": value, "flag": 0, "version": 513})
                body = body_of(row)
                sizes = (4 + len(text) + len(body)).to_bytes(4) + len(text).to_bytes(4)
                talker.write(sizes + text + body)
                assert (await talker.answer()).code == REFUSED, row.code
        assert seen(served) == before

    protected(tmp_path, main)


# --- what is encrypted ---


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_who_encrypts_is_refused_alike(tmp_path: Path, certificate: Path, mode: str) -> None:
    context = ssl.create_default_context(cafile=certificate)

    async def main(served: Serving) -> None:
        before = seen(served)
        for credentials, remark in (
            (None, "username cannot be null."),
            (Credentials("root", "guessed"), "check signature failed."),
        ):
            async with encrypted(served.port, context) as talker:
                signer = Signer(served, talker, False)
                signer.credentials = credentials
                for command in recorded(signer):
                    answer = await _asked(signer, command)
                    assert (answer.code, answer.remark) == (REFUSED, remark), command.code
        assert seen(served) == before
        async with encrypted(served.port, context) as talker:
            root = Signer(served, talker, False)
            assert (await root.send()).code == 0
            async with encrypted(served.port, context) as other:
                stranger = Signer(served, other, False)
                stranger.credentials = await root.user("stranger")
                assert "has no permission" in str((await stranger.send()).remark)

    async def run() -> None:
        config: dict[str, Any] = {**AUTHORIZED, "tls_server_mode": mode, "tls_server_cert_path": str(certificate)}
        async with asyncio.timeout(30), serving(tmp_path, **config) as served:
            await main(served)

    asyncio.run(run())


# --- what was cut ---


def test_a_request_that_ends_early_is_none(tmp_path: Path) -> None:
    """However much of it has come, and though it is signed."""

    async def main(served: Serving, root: Signer) -> None:
        before = seen(served)
        for command in recorded(root):
            frame = encode_request(command)
            for size in (3, 7, 8, len(frame) // 2, len(frame) - 1):
                async with talking(served.port) as talker:
                    talker.write(frame[:size])
                    talker.write_end()
                    assert await talker.end() == b"", (command.code, size)
        assert seen(served) == before

    protected(tmp_path, main)


def test_a_request_without_its_end_is_refused_with_what_follows(tmp_path: Path) -> None:
    """Its lengths say that it is whole: what its header lacks, it can't have."""

    async def main(served: Serving, root: Signer) -> None:
        before = seen(served)
        for command in recorded(root):
            header = encode_request(command)[8 : -len(command.body) or None]
            for size in (0, 1, len(header) // 2, len(header) - 1):
                cut = header[:size]
                async with talking(served.port) as talker:
                    lengths = (4 + size).to_bytes(4) + size.to_bytes(4)
                    talker.write(lengths + cut)
                    talker.write(encode_request(root.signed(28, {})))
                    assert await talker.end() == b"", (command.code, size)
        assert seen(served) == before

    protected(tmp_path, main)


def test_a_cut_body_is_refused_whoever_has_signed_it(tmp_path: Path) -> None:
    """One that is JSON: then it is none any more."""

    async def main(served: Serving, root: Signer) -> None:
        await root.sent()
        before = seen(served)
        for row in ROWS:
            body = body_of(row)
            if not body.startswith((b"{", b"[")):
                continue
            for size in (1, len(body) // 2, len(body) - 1):
                answer = await root.call(row.code, header_of(row), body[:size])
                assert answer.code != 0, (row.code, body[:size])
                assert answer.remark
        assert seen(served) == before

    protected(tmp_path, main)


# --- codes without a row, or of another server ---


@pytest.mark.parametrize("who", ["nobody", "guesser", "stranger", "root"])
def test_codes_that_are_not_a_brokers_are_not_served(tmp_path: Path, who: str) -> None:
    async def main(served: Serving, root: Signer) -> None:
        credentials = {
            "nobody": None,
            "guesser": Credentials("root", "guessed"),
            "stranger": await root.user("stranger"),
            "root": ROOT,
        }[who]
        before = seen(served)
        async with signing(served, credentials) as signer:
            for code in (*OF_OTHERS, *UNKNOWN):
                answer = await signer.call(code, {"topic": "T", "group": "g"}, b"{}")
                assert answer.code == 3, code
                assert "not supported" in (answer.remark or "")
        assert seen(served) == before

    protected(tmp_path, main)


def test_what_has_no_row_gets_no_handler(tmp_path: Path) -> None:
    """So who adds a request and no row has a broker that does not start."""

    def handle(_: Peer, __: AnyCommand) -> Response:
        return Response()

    async def main(served: Serving, _: Signer) -> None:
        admission = Admission(served.broker.access.conditions)
        for code in UNKNOWN:
            with pytest.raises(ValueError, match="is not a valid RequestCode"):
                admission.before({code: handle})
            with pytest.raises(ValueError, match="is not a valid RequestCode"):
                admission.before_bulk({code: lambda _: None})
        for code in RequestCode:
            assert admission.before({int(code): handle})[int(code)] is not handle

    protected(tmp_path, main)


def test_each_handler_of_a_running_broker_is_behind_the_check(tmp_path: Path) -> None:
    async def main(served: Serving, root: Signer) -> None:
        server = served.broker._server
        assert server.handlers.keys() == {int(row.code) for row in ROWS}
        async with signing(served, None) as nobody:
            for code in server.handlers:
                assert (await nobody.call(code, {})).code == REFUSED, code

    protected(tmp_path, main)


def test_what_comes_together_is_refused_one_by_one(tmp_path: Path) -> None:
    """All codes in one write, so that those which are handled together are."""

    async def main(served: Serving, root: Signer) -> None:
        before = seen(served)
        async with signing(served, Credentials("root", "guessed")) as guesser:
            commands = [each for each in recorded(guesser) for _ in range(3)]
            guesser.talker.ask(*commands)
            answers = [await guesser.talker.answer() for _ in commands]
        assert {answer.code for answer in answers} == {REFUSED}
        assert seen(served) == before
        async with signing(served, None) as nobody:
            for row in ROWS:  # nobody waits for the answer to these, but they are no way in
                command = nobody.signed(row.code, header_of(row), body_of(row))
                command.flag |= 2
                nobody.talker.ask(command)
            assert (await nobody.call(28, {})).code == REFUSED
        assert seen(served) == before

    protected(tmp_path, main)


# --- what is no text ---


def test_a_body_that_is_no_utf_8_is_refused_without_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever byte of it is none."""

    async def main() -> None:
        async with serving(tmp_path) as served, served.caller() as caller:
            for row in ROWS:
                body = body_of(row) or b'{"topic":1}'
                for at in range(len(body)):
                    await caller.call(row.code, header_of(row), body[:at] + b"\xff" + body[at + 1 :])

    asyncio.run(main())
    assert not [record.exc_text for record in caplog.records if record.exc_info]
