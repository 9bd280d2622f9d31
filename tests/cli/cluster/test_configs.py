"""`firearrow config` on a cluster: what is shown, previewed and changed."""

from __future__ import annotations

import pytest

from firearrow.cli.cluster.configs import _meant
from tests.cli.shell import Shell


def test_keys_are_shown(shell: Shell) -> None:
    address = shell.cluster.brokers[0].address
    assert shell.rows("config", "get", "fileReservedTime") == [
        {"server": address, "key": "fileReservedTime", "value": "72"}
    ]
    servers = shell.rows("config", "get", "listen*", "--name-servers")
    assert [row["server"] for row in servers] == [shell.cluster.name_server]
    assert shell.fails("config", "get", "gone*") == (3, "firearrow: no key of the configuration matches 'gone*'\n")


def test_a_change_is_previewed_and_then_made(shell: Shell) -> None:
    change = ["config", "set", "fileReservedTime=48", "--broker", "broker-a"]
    [preview] = shell.rows(*change)
    assert (preview["before"], preview["after"], preview["state"]) == ("72", "48", "would be changed")
    assert shell.rows("config", "get", "fileReservedTime")[0]["value"] == "72"
    assert shell.rows(*change, "--apply")[0]["state"] == "changed"
    assert shell.rows("config", "get", "fileReservedTime")[0]["value"] == "48"
    assert shell.rows(*change, "--apply")[0]["state"] == "the same"


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["a=b"], 2, "one of --broker, --all-brokers and --name-servers is required"),
        (["--all-brokers"], 2, "the following arguments are required: KEY=VALUE"),
        (["ab", "--all-brokers"], 2, "'ab' is not KEY=VALUE"),
        (["fileReservdTime=1", "--all-brokers", "--apply"], 3, "has no key 'fileReservdTime'"),
        (["fileReservedTime=x", "--all-brokers", "--apply"], 1, "fileReservedTime"),
    ],
)
def test_what_can_not_be_set_is_refused(words: list[str], code: int, reason: str, shell: Shell) -> None:
    ended, said = shell.fails("config", "set", *words)
    assert (ended, reason in said) == (code, True), said


def test_keys_are_explained(shell: Shell) -> None:
    [key] = shell.rows("config", "explain", "fileReservedTime")
    assert (key["value"], key["default"], key["state"], key["changes"]) == ("72", "72", "default", "at once")
    assert key["meaning"]
    assert shell.rows("config", "explain", "fileReservedTime", "--different") == []
    shell.rows("config", "set", "fileReservedTime=48", "--broker", "broker-a", "--apply")
    assert [row["value"] for row in shell.rows("config", "explain", "fileR*", "--different")] == ["48"]
    [key] = shell.rows("config", "explain", "brokerName")
    assert (key["default"], key["state"]) == (None, "unknown")
    names = shell.rows("config", "explain", "scanNot*", "--name-servers")
    assert [row["server"] for row in names] == [shell.cluster.name_server]


@pytest.mark.parametrize("key", ["initAuthenticationUser", "innerClientAuthenticationCredentials"])
def test_a_secret_is_not_explained(key: str) -> None:
    assert "pw" not in str(_meant(key, '{"username":"root","password":"pw"}', None))
