"""Users and policies by requests: the answers and their words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from firearrow.wire.command import FieldValue
from firearrow.wire.signature import Credentials
from tests.broker.serving import Caller, Serving, calling
from tests.broker.signing import AUTHENTICATED, AUTHORIZED, WITH_USERS, Signer, protected, signing

ROOT = {"password": "root's secret", "userStatus": "enable", "userType": "Super"}
ENTRY = {"resource": "Topic:T", "actions": ["Pub", "sub", "Fly"], "decision": "allow"}
ACL = {"policies": [{"entries": [ENTRY]}]}
KEPT = {"resource": "Topic:T", "actions": ["Pub", "Sub"], "decision": "Allow"}

Told = tuple[int, str | None, Any]


async def told(caller: Caller, code: int, fields: Mapping[str, FieldValue], body: Any = None) -> Told:
    """Return the code, the remark and the body."""
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
        assert await told(caller, 3005, {"filter": "oo"}) == (*(0, None), [{"username": "root", **ROOT}])
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
        (*(3006, {"subject": "Group:u"}, ACL), (1, "An system error occurred, please try again later.")),
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
    tmp_path: Path, code: int, fields: dict[str, FieldValue], body: Any, expected: tuple[int, str | None]
) -> None:
    async def main(_: Serving, caller: Caller) -> None:
        assert await told(caller, code, fields, body) == (*expected, None)

    calling(tmp_path, main, **WITH_USERS)


def test_policies(tmp_path: Path) -> None:
    async def main(_: Serving, caller: Caller) -> None:
        root: dict[str, FieldValue] = {"subject": "User:root"}
        assert await told(caller, 3006, root, ACL) == (0, None, None)
        kept = {"subject": "User:root", "policies": [{"policyType": "Custom", "entries": [KEPT]}]}
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
    """Also where no client must sign: the user can only lose rights by it."""

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

        users = served.broker.users
        assert users is not None
        with monkeypatch.context() as patch:
            patch.setattr(users, "sync", broken)
            answer = await told(caller, 3001, {"username": "u"}, {"password": "p"})
            assert answer == (1, "the change is not durable: [Errno 5] broken", None)
        assert await told(caller, 3003, {"username": "u"}) == (0, None, None)

    calling(tmp_path, main, **WITH_USERS)


# --- permissions, where users must sign ---

MANAGER = ("Cluster:C", ["Get", "Update"]), ("Topic:own*", ["Pub", "Sub"]), ("Group:own", ["Sub"])


def policies(*entries: tuple[str, str], policy_type: str = "Custom") -> Any:
    """Policies of resources, each with an action; with `-` before it, it is denied."""
    found = [
        {
            "resource": resource,
            "actions": [action.lstrip("-")],
            "decision": "Deny" if action.startswith("-") else "Allow",
        }
        for resource, action in entries
    ]
    return {"policies": [{"policyType": policy_type, "entries": found}]}


async def _manager(root: Signer) -> Credentials:
    """Return a user that may manage users, and use some topics; and one that may use one of those."""
    manager = await root.user("manager")
    await root.allow("manager", *MANAGER)
    await root.user("app")
    await root.allow("app", ("Topic:own1", ["Pub"]))
    return manager


def test_passwords_are_told_to_super_users_alone(tmp_path: Path) -> None:
    async def main(served: Serving, root: Signer) -> None:
        app = {"username": "app", "userStatus": "enable", "userType": "Normal"}
        async with signing(served, await _manager(root)) as manager:
            for by, more in ((manager, {}), (root, {"password": "secret of app"})):
                assert (await told(by, 3004, {"username": "app"}))[2] == app | more
                assert (await told(by, 3005, {"filter": "app"}))[2] == [app | more]
            assert "secret" not in json.dumps(await told(manager, 3005, {}))
            assert "password" not in json.dumps(await told(manager, 3004, {"username": "manager"}))

    protected(tmp_path, main)


def test_nor_to_who_need_not_say_who_it_is(tmp_path: Path) -> None:
    async def main(served: Serving, _: Signer) -> None:
        async with signing(served, None) as nobody:
            users = await told(nobody, 3005, {"AccessKey": "root"})
            assert [user["username"] for user in users[2]] == ["root"]
            assert "password" not in users[2][0]
            made = await told(nobody, 3001, {"username": "u"}, {**ROOT, "password": "p"})
            assert made == (1, "The super user can only be create by super user", None)

    lists = {"authentication_whitelist": "3001,3005", "authorization_whitelist": "3001,3005"}
    protected(tmp_path, main, {**AUTHORIZED, **lists})


@pytest.mark.parametrize(
    ("subject", "acl", "gain"),
    [
        ("manager", policies(("*", "All")), "Pub on Cluster:*"),
        ("manager", policies(("Topic:secret", "Sub")), "Sub on Topic:secret"),
        ("manager", policies(("Topic:*", "Sub"), policy_type="Default"), "Sub on Topic:*"),
        ("app", policies(("Topic:secret", "Sub")), "Sub on Topic:secret"),
        ("app", policies(("Topic:o*", "Pub")), "Pub on Topic:o*"),
        ("app", policies(("Topic:own1", "-Pub"), ("Topic:x", "Get")), "Get on Topic:x"),
    ],
)
def test_nobody_gives_more_than_they_have(
    tmp_path: Path, subject: str, acl: Any, gain: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="firearrow.auth.audit")

    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await _manager(root)) as manager:
            of: dict[str, FieldValue] = {"subject": f"User:{subject}"}
            before = await told(root, 3009, of)
            refusal = f"User:manager can't give User:{subject} permissions that it lacks: {gain}."
            for code in (3006, 3007):
                assert await told(manager, code, of, acl) == (16, refusal, None)
            assert await told(root, 3009, of) == before
            logged = [vars(record) for record in caplog.records]
            refused = [it["reason"] for it in logged if it["msg"] == "request is refused"]
            assert refused == [refusal, refusal]

    protected(tmp_path, main)


def test_what_they_have_they_give(tmp_path: Path) -> None:
    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await _manager(root)) as manager:
            of: dict[str, FieldValue] = {"subject": "User:app"}
            for given in (
                policies(("Topic:own2", "Sub"), ("Group:own", "Sub")),
                policies(("Topic:own*", "Pub")),
                policies(("Topic:*", "-Sub")),
                policies(("Cluster:C", "Update"), policy_type="Default"),
            ):
                assert await told(manager, 3006, of, given) == (0, None, None)
            assert await told(manager, 3008, of) == (0, None, None)

    protected(tmp_path, main)


def test_who_takes_a_denial_away_has_what_it_denies(tmp_path: Path) -> None:
    async def main(served: Serving, root: Signer) -> None:
        await root.user("reader")
        acl = policies(("Topic:*", "Pub"), ("Topic:secret", "-Pub"), ("Topic:own1", "-Pub"))
        of: dict[str, FieldValue] = {"subject": "User:reader"}
        assert (await told(root, 3006, of, acl))[0] == 0
        async with signing(served, await _manager(root)) as manager:
            refused = await told(manager, 3008, of | {"resource": "Topic:secret"})
            lacks = "User:manager can't give User:reader permissions that it lacks: Pub on Topic:secret."
            assert refused == (16, lacks, None)
            assert (await told(manager, 3008, of | {"resource": "Topic:own1"}))[0] == 0

    protected(tmp_path, main)


def test_who_may_do_more_is_not_taken_over(tmp_path: Path) -> None:
    """By a password that the manager knows, or by enabling it."""

    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await _manager(root)) as manager:
            await root.user("reader")
            await root.allow("reader", ("Topic:secret", ["Sub"]))
            refusal = "User:manager can't give User:reader permissions that it lacks: Sub on Topic:secret."
            for change in ({"password": "known"}, {"userStatus": "enable"}):
                refused = await told(manager, 3002, {"username": "reader"}, change)
                assert refused == (16, refusal, None)
            disabled = {"userStatus": "disable"}
            assert (await told(manager, 3002, {"username": "reader"}, disabled))[0] == 0
            assert (await told(manager, 3002, {"username": "app"}, {"password": "known"}))[0] == 0
            assert (await told(manager, 3001, {"username": "new"}, {"password": "p"}))[0] == 0
            users = served.broker.users
            assert users is not None
            kept = users.acl_of("reader")
            assert (await told(manager, 3003, {"username": "reader"}))[0] == 0
            users._acls["User:reader"] = kept  # type: ignore[assignment]  # as a kill of RocketMQ's
            made = await told(manager, 3001, {"username": "reader"}, {"password": "p"})
            assert made == (16, refusal, None)
            # Every user that may change users at all may change its own password.
            assert (await told(manager, 3002, {"username": "manager"}, {"password": "p"}))[0] == 0

    protected(tmp_path, main)


def test_policies_of_a_super_user_are_changed_by_super_users(tmp_path: Path) -> None:
    async def main(served: Serving, root: Signer) -> None:
        of: dict[str, FieldValue] = {"subject": "User:root"}
        assert (await told(root, 3006, of, policies(("Topic:own1", "Pub"))))[0] == 0
        async with signing(served, await _manager(root)) as manager:
            refusal = (16, "The super user can only be update by super user", None)
            assert await told(manager, 3006, of, policies(("Topic:own1", "Pub"))) == refusal
            assert await told(manager, 3008, of) == refusal

    protected(tmp_path, main)


def test_with_authentication_alone_only_super_users_change_users_and_policies(tmp_path: Path) -> None:
    async def main(served: Serving, root: Signer) -> None:
        await root.user("v")
        await root.allow("v", ("Topic:T", ["Pub"]))
        app = {"username": "v"}
        of = {"subject": "User:v"}
        changes: list[tuple[int, dict[str, FieldValue], Any]] = [
            (3002, {**app}, {"password": "p"}),
            (3002, {**app}, {"userStatus": "disable"}),
            (3006, {**of}, policies(("Topic:T", "Pub"))),
            (3007, {**of}, policies(("Topic:T", "Pub"))),
            (3008, {**of}, None),
            (3003, {**app}, None),
            (3001, {**app}, {"password": "p"}),
        ]
        async with signing(served, await root.user("u")) as user:
            for change in changes:
                refused = await told(user, *change)
                assert refused[0] == 16, change
                assert "by super users only" in (refused[1] or ""), change
            assert "password" not in json.dumps(await told(user, 3005, {}))
        for change in changes:
            assert (await told(root, *change))[0] == 0, change

    protected(tmp_path, main, AUTHENTICATED)


def test_an_entry_of_the_default_policy_is_deleted_by_its_resource(tmp_path: Path) -> None:
    """mqadmin sends no type of policy."""

    async def main(_: Serving, caller: Caller) -> None:
        root: dict[str, FieldValue] = {"subject": "User:root"}
        for policy_type in ("Custom", "Default"):
            acl = policies(("Topic:T", "Pub"), ("Topic:U", "Pub"), policy_type=policy_type)
            assert (await told(caller, 3006, root, acl))[0] == 0
        assert (await told(caller, 3008, root | {"resource": "Topic:T"}))[0] == 0
        found = (await told(caller, 3009, root))[2]["policies"]
        assert [(it["policyType"], len(it["entries"])) for it in found] == [("Custom", 1), ("Default", 1)]
        default = root | {"resource": "Topic:U", "policyType": "Default"}
        assert (await told(caller, 3008, default))[0] == 0
        found = (await told(caller, 3009, root))[2]["policies"]
        assert [it["policyType"] for it in found] == ["Custom"]

    calling(tmp_path, main, **WITH_USERS)


def test_a_resource_that_is_none_does_not_delete_all(tmp_path: Path) -> None:
    async def main(_: Serving, caller: Caller) -> None:
        root: dict[str, FieldValue] = {"subject": "User:root"}
        await told(caller, 3006, root, ACL)
        before = await told(caller, 3009, root)
        refused = await told(caller, 3008, root | {"resource": "Topik:T"})
        assert refused == (29, "The resource 'Topik:T' is illegal.", None)
        assert await told(caller, 3009, root) == before

    calling(tmp_path, main, **WITH_USERS)
