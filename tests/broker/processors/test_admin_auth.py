"""Users and policies by requests: what is answered, and in which words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from firearrow.wire.command import FieldValue
from tests.broker.serving import Caller, Serving, calling
from tests.broker.signing import WITH_USERS

ROOT = {"password": "root's secret", "userStatus": "enable", "userType": "Super"}
ENTRY = {"resource": "Topic:T", "actions": ["Pub", "sub", "Fly"], "decision": "allow"}
ACL = {"policies": [{"entries": [ENTRY]}]}
KEPT = {"resource": "Topic:T", "actions": ["Pub", "Sub"], "decision": "Allow"}

Told = tuple[int, str | None, Any]


async def told(
    caller: Caller, code: int, fields: Mapping[str, FieldValue], body: Any = None
) -> Told:
    """The code, the remark and what the body says."""
    answer = await caller.call(code, fields, b"" if body is None else json.dumps(body).encode())
    return answer.code, answer.remark, json.loads(answer.body) if answer.body else None


def test_users(tmp_path: Path) -> None:
    async def main(_: Serving, caller: Caller) -> None:
        u = {"username": "u"}
        assert await told(caller, 3001, u, {"password": "p"}) == (0, None, None)
        assert await told(caller, 3001, u, {"password": "p"}) == (16, "The user is existed", None)
        made = {"username": "u", "password": "p", "userType": "Normal", "userStatus": "enable"}
        assert await told(caller, 3004, u) == (0, None, made)
        changed = {"userStatus": "disable", "userType": "super", "password": ""}
        assert await told(caller, 3002, u, changed) == (0, None, None)
        now = made | {"userType": "Super", "userStatus": "disable"}
        assert await told(caller, 3005, {}) == (0, None, [{"username": "root", **ROOT}, now])
        assert await told(caller, 3005, {"filter": "oo"}) == (
            *(0, None),
            [{"username": "root", **ROOT}],
        )
        assert await told(caller, 3005, {"filter": "x"}) == (0, None, None)
        assert await told(caller, 3003, u) == (0, None, None)
        assert await told(caller, 3003, u) == (0, None, None)
        assert await told(caller, 3004, u) == (0, None, None)

    calling(tmp_path, main, **WITH_USERS)


@pytest.mark.parametrize(
    ("code", "fields", "body", "expected"),
    [
        (3001, {}, {"password": "p"}, (29, "The username is blank")),
        (3001, {"username": " "}, {"password": "p"}, (16, "username can not be blank")),
        (3001, {"username": "u"}, {"password": " "}, (16, "password can not be blank")),
        (3001, {"username": "u"}, None, (1, "The body of user is null")),
        (3002, {}, {"password": "p"}, (29, "The username is blank")),
        (3002, {"username": "u"}, {"password": "p"}, (16, "The user is not exist")),
        (3003, {}, None, (16, "username can not be blank")),
        (3004, {}, None, (29, "The username is blank")),
        (3006, {"subject": "User:root"}, None, (1, "The body of acl is null")),
        (3006, {"subject": "User:root"}, {"policies": []}, (1, "The body of acl is null")),
        (3007, {"subject": "User:u"}, ACL, (16, "The subject of User:u is not exist.")),
        (
            *(3006, {"subject": "Group:u"}, ACL),
            (1, "An system error occurred, please try again later."),
        ),
        (3008, {"subject": "Group:u"}, None, (16, "The subject is null.")),
        (3008, {"subject": "User:u"}, None, (16, "The subject is not exist.")),
        (3008, {"subject": "User:root"}, None, (16, "The acl is not exist.")),
        (3009, {}, None, (16, "The subject is null.")),
        (3009, {"subject": "User:u"}, None, (16, "The subject is not exist.")),
        (3009, {"subject": "User:root"}, None, (0, None)),
        (3010, {}, None, (0, None)),
    ],
)
def test_refusals_are_in_upstreams_words(
    tmp_path: Path,
    code: int,
    fields: dict[str, FieldValue],
    body: Any,
    expected: tuple[int, str | None],
) -> None:
    async def main(_: Serving, caller: Caller) -> None:
        assert await told(caller, code, fields, body) == (*expected, None)

    calling(tmp_path, main, **WITH_USERS)


def test_policies(tmp_path: Path) -> None:
    async def main(_: Serving, caller: Caller) -> None:
        root: dict[str, FieldValue] = {"subject": "User:root"}
        assert await told(caller, 3006, root, ACL) == (0, None, None)
        kept = {
            "subject": "User:root",
            "policies": [{"policyType": "Custom", "entries": [KEPT]}],
        }
        assert await told(caller, 3009, root) == (0, None, kept)
        other = {**KEPT, "resource": "Group:g*", "sourceIps": ["10.0.0.0/8"]}
        denied = {**KEPT, "decision": "Deny"}
        more = {"policies": [{"policyType": "Custom", "entries": [denied, other]}]}
        assert await told(caller, 3007, root, more) == (0, None, None)
        [policy] = (await told(caller, 3009, root))[2]["policies"]
        assert policy["entries"] == [denied, other]
        assert (await told(caller, 3010, {"resourceFilter": "Group"}))[2] == [
            {"subject": "User:root", "policies": [{"policyType": "Custom", "entries": [other]}]}
        ]
        assert await told(caller, 3010, {"subjectFilter": "nobody"}) == (0, None, None)
        assert await told(caller, 3008, root | {"resource": "Topic:T"}) == (0, None, None)
        [policy] = (await told(caller, 3009, root))[2]["policies"]
        assert policy["entries"] == [other]
        assert await told(caller, 3008, root) == (0, None, None)
        assert await told(caller, 3009, root) == (0, None, None)

    calling(tmp_path, main, **WITH_USERS)


def test_the_subject_of_the_body_comes_first(tmp_path: Path) -> None:
    async def main(_: Serving, caller: Caller) -> None:
        body = {"subject": "User:u", **ACL}
        answer = await told(caller, 3006, {"subject": "User:root"}, body)
        assert answer == (16, "The subject of User:u is not exist.", None)

    calling(tmp_path, main, **WITH_USERS)


def test_who_says_that_it_is_a_user_is_taken_for_that(tmp_path: Path) -> None:
    """Also where nobody has to sign: it can only do less so."""

    async def main(_: Serving, caller: Caller) -> None:
        await told(caller, 3001, {"username": "u"}, {"password": "p"})
        for name, expected in (
            ("u", (1, "The super user can only be create by super user")),
            ("nobody", (1, "User:nobody is not found")),
            ("root", (0, None)),
        ):
            fields = {"username": f"by-{name}", "AccessKey": name}
            body = {"password": "p", "userType": "Super"}
            assert await told(caller, 3001, fields, body) == (*expected, None)

    calling(tmp_path, main, **WITH_USERS)


def test_answers_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        def broken() -> None:
            raise OSError(5, "broken")

        users = served.broker._users
        assert users is not None
        with monkeypatch.context() as patch:
            patch.setattr(users, "sync", broken)
            answer = await told(caller, 3001, {"username": "u"}, {"password": "p"})
            assert answer == (1, "the change is not on the disk: [Errno 5] broken", None)
        assert await told(caller, 3003, {"username": "u"}) == (0, None, None)

    calling(tmp_path, main, **WITH_USERS)
