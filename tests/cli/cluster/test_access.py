"""`firearrow user` and `firearrow acl` on a cluster with access control, and on one without."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from firearrow.testing import BlockingCluster, EmbeddedCluster
from firearrow.testing.settings import Value
from tests.cli.shell import Shell

SECRET = "the secret of nina"
KEYS: dict[str, Value] = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": '{"username":"root","password":"the secret of root"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"the secret of inner"}',
}


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    """Shell of a super user of a cluster with access control."""
    monkeypatch.chdir(tmp_path)
    with EmbeddedCluster(config=KEYS) as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.name_server)
        monkeypatch.setenv("FIREARROW_ACCESS_KEY", "root")
        monkeypatch.setenv("FIREARROW_SECRET_KEY", "the secret of root")
        yield Shell(cluster, capsys)


def with_nina(shell: Shell, *words: str) -> None:
    Path("nina.secret").write_text(f"{SECRET}\n", "utf-8")
    [row] = shell.rows("user", "create", "nina", "--password-file", "nina.secret", "--apply", *words)
    assert (row["change"], row["state"]) == ("user is created", "changed")


def names(shell: Shell) -> list[str]:
    return [row["user"] for row in shell.rows("user", "list")]


def test_a_user_is_previewed_created_and_undone(guarded: Shell) -> None:
    [row] = guarded.rows("user", "create", "nina", "--password", SECRET)
    assert (row["change"], row["state"]) == ("user is created", "would be changed")
    assert names(guarded) == ["inner", "root"]
    with_nina(guarded, "--undo-file", "made.json")
    listed = {row["user"]: row for row in guarded.rows("user", "list")}
    assert (listed["nina"]["isSuper"], listed["nina"]["isEnabled"], listed["nina"]["rules"]) == (False, True, 0)
    assert listed["root"]["isSuper"] is True
    [row] = guarded.rows("user", "create", "nina", "--disabled", "--apply")
    assert row["change"] == "status enable becomes disable"
    assert [row["isEnabled"] for row in guarded.rows("user", "list", "nina")] == [False]
    guarded.rows("user", "undo", "made.json", "--apply")
    assert names(guarded) == ["inner", "root"]


def test_a_deleted_user_comes_back_with_its_rules(guarded: Shell) -> None:
    with_nina(guarded)
    guarded.rows("acl", "allow", "nina", "Topic:orders", "--action", "pub", "--apply")
    guarded.rows("user", "delete", "nina", "--apply", "--undo-file", "gone.json")
    assert names(guarded) == ["inner", "root"]
    assert guarded.rows("acl", "list") == []
    assert SECRET in Path("gone.json").read_text("utf-8")
    assert stat.S_IMODE(Path("gone.json").stat().st_mode) == 0o600
    assert guarded.rows("user", "undo", "gone.json")[0]["state"] == "would be changed"
    guarded.rows("user", "undo", "gone.json", "--apply")
    assert names(guarded) == ["inner", "nina", "root"]
    [rule] = guarded.rows("acl", "list")
    assert (rule["user"], rule["decision"], rule["actions"], rule["resource"]) == (
        "nina", "Allow", "Pub", "Topic:orders",
    )  # fmt: skip
    assert guarded.rows("user", "undo", "gone.json")[0]["state"] == "the same"


def test_no_secret_is_printed(guarded: Shell) -> None:
    with_nina(guarded)
    for words in (["user", "list"], ["user", "create", "nina", "--password", "another secret of hers", "--apply"]):
        text = json.dumps(guarded.rows(*words))
        assert "secret of" not in text


@pytest.mark.parametrize(
    ("rules", "asked", "answer", "reason"),
    [
        ([], ["pub", "Topic:orders"], False, "no rule fits"),
        ([["allow", "Topic:ord*", "pub"]], ["pub", "Topic:orders"], True, "Allow Pub on Topic:ord*"),
        ([["allow", "Topic:ord*", "pub"]], ["sub", "Topic:orders"], False, "no rule fits"),
        (
            [["allow", "Topic:*", "all"], ["deny", "Topic:orders", "pub"]],
            ["pub", "Topic:orders"],
            False,
            "Deny Pub on Topic:orders",
        ),
        (
            [["allow", "Topic:orders", "pub", "--from=10.0.0.0/8"]],
            ["pub", "Topic:orders", "--from", "10.1.2.3"],
            True,
            "Allow Pub on Topic:orders from 10.0.0.0/8",
        ),
        ([["allow", "Topic:orders", "pub", "--from=10.0.0.0/8"]], ["pub", "Topic:orders"], False, "no rule fits"),
    ],
)
def test_the_rule_that_decides_is_named(
    rules: list[list[str]], asked: list[str], answer: bool, reason: str, guarded: Shell
) -> None:
    with_nina(guarded)
    for verb, resource, action, *more in rules:
        guarded.rows("acl", verb, "nina", resource, "--action", action, *more, "--apply")
    [row] = guarded.rows("acl", "test", "nina", *asked)
    assert (row["isAllowed"], reason in row["reason"]) == (answer, True), row


def test_who_is_no_usual_user(guarded: Shell) -> None:
    assert "super user" in guarded.rows("acl", "test", "root", "all", "Topic:x")[0]["reason"]
    [row] = guarded.rows("acl", "test", "gone", "pub", "Topic:x")
    assert (row["isAllowed"], row["reason"]) == (False, "there is no user 'gone'")
    with_nina(guarded)
    guarded.rows("user", "create", "nina", "--disabled", "--apply")
    assert "is disabled" in guarded.rows("acl", "test", "nina", "pub", "Topic:x")[0]["reason"]


def test_rules_are_replaced_removed_and_undone(guarded: Shell) -> None:
    with_nina(guarded)
    allow = ["acl", "allow", "nina", "Topic:orders", "--action", "pub"]
    assert guarded.rows(*allow)[0]["state"] == "would be changed"
    guarded.rows(*allow, "--apply")
    assert guarded.rows(*allow, "--apply")[0]["state"] == "the same"
    [row] = guarded.rows("acl", "deny", "nina", "Topic:orders", "--action", "all", "--apply")
    assert row["change"] == "Deny All on Topic:orders, instead of Allow Pub on Topic:orders"
    [row] = guarded.rows("acl", "remove", "nina", "Topic:orders", "--apply", "--undo-file", "removed.json")
    assert row["change"] == "no longer: Deny All on Topic:orders"
    assert guarded.rows("acl", "list") == []
    guarded.rows("acl", "undo", "removed.json", "--apply")
    assert [rule["decision"] for rule in guarded.rows("acl", "list", "--user", "nina")] == ["Deny"]
    assert guarded.rows("acl", "list", "--user", "root") == []
    code, said = guarded.fails("user", "undo", "removed.json")
    assert (code, "`firearrow acl undo` reads it" in said) == (1, True)


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["user", "create", "nina", "--apply"], 2, "a new one needs a password"),
        (["acl", "allow", "nina", "Topic:x", "--action", "pub"], 2, "has no user 'nina'"),
        (["acl", "allow", "root", "Topic:x"], 2, "--action"),
        (["acl", "allow", "root", "orders", "--action", "pub"], 2, "is no resource"),
        (["acl", "allow", "root", "Topic:x", "--action", "pub", "--from", "here"], 2, "source ip is invalid"),
        (["acl", "test", "root", "pub", "Topic:*"], 2, "is not one resource"),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], code: int, part: str, guarded: Shell) -> None:
    ended, said = guarded.fails(*words)
    assert (ended, part in said) == (code, True), said


def test_a_cluster_without_access_control_says_so(shell: Shell) -> None:
    assert "everybody who reaches a port may do everything" in shell.text("user", "list")
    assert shell.rows("acl", "list") == []
    assert shell.rows("acl", "test", "nina", "pub", "Topic:x")[0]["isAllowed"] is True
    assert shell.fails("user", "create", "nina", "--password", SECRET)[0] == 3


def test_the_cluster_is_guarded(guarded: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FIREARROW_ACCESS_KEY")
    monkeypatch.delenv("FIREARROW_SECRET_KEY")
    assert guarded.rows("user", "list") == []
    assert "username cannot be null" in guarded.text("user", "list")
    assert isinstance(guarded.cluster, BlockingCluster)


def test_a_user_needs_no_context(guarded: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded.rows("user", "create", "nina", "--password", SECRET, "--super-user", "--apply")
    Path("nina.secret").write_text(SECRET, "utf-8")
    Path("nina.secret").chmod(0o600)
    monkeypatch.delenv("FIREARROW_ACCESS_KEY")
    as_nina = ["--user", "nina", "--secret-file", "nina.secret"]
    assert names(guarded) == []
    for words in (["user", "list", *as_nina], [*as_nina, "user", "list"], ["--user", "root", "user", "list"]):
        assert [row["user"] for row in guarded.rows(*words)] == ["inner", "nina", "root"]


def test_mqadmin_has_the_user_of_the_context(guarded: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    guarded.text(
        "context", "add", "guarded", "-n", guarded.cluster.name_server, "--access-key", "root",
        "--secret-env", "FIREARROW_SECRET_KEY",
    )  # fmt: skip
    for name in ("NAMESRV_ADDR", "FIREARROW_ACCESS_KEY"):
        monkeypatch.delenv(name)
    words = ["mqadmin", "listUser", "-c", "DefaultCluster"]
    for line in (words, ["--context", "guarded", *words]):
        assert "root" in guarded.text(*line)
    code, said = guarded.fails(*words, "-n", guarded.cluster.name_server)  # a secret is for one cluster
    assert (code, "Authorization" in said or "user" in said) == (1, True)
    assert guarded.fails("-o", "json", *words)[0] == 2
    assert guarded.fails("mqadmin", "listUser", "-c", "gone")[0] == 1


REFUSED = (
    "topic create orders --queues 3",
    "topic delete orders --apply",
    "group create billing --retries 3",
    "group delete billing --apply",
    "config set fileReservedTime=48 --all-brokers --apply",
    "offset reset billing orders --to earliest --apply",
)


def test_a_refused_change_leaves_no_undo_file(guarded: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Who sees everything and may change nothing gets a refusal, and no file that undoes nothing."""
    guarded.text("topic", "create", "orders", "--queues", "2")
    guarded.text("group", "create", "billing")
    with_nina(guarded, "--undo-file", "nina.json")
    for resource in ("Cluster:*", "Topic:*", "Group:*"):
        words = ("--action", "get", "--action", "list", "--apply", "--undo-file", f"{resource[0]}.json")
        guarded.rows("acl", "allow", "nina", resource, *words)
    guarded.rows("user", "create", "nina", "--enabled", "--apply")  # changes nothing
    files = {*tmp_path.iterdir()}
    monkeypatch.setenv("FIREARROW_ACCESS_KEY", "nina")
    monkeypatch.setenv("FIREARROW_SECRET_KEY", SECRET)
    for line in REFUSED:
        code, said = guarded.fails(*line.split())
        assert (code, "no permission" in said) == (1, True), (line, said)
        assert {*tmp_path.iterdir()} == files, line
    assert {path.name for path in files} == {"nina.secret", "nina.json", "C.json", "T.json", "G.json"}
