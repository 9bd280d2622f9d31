"""A run of mqadmin signs as the user in a file below ROCKETMQ_HOME."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from firearrow.cli.mqadmin.entry import credentials
from firearrow.wire.signature import Credentials
from tests.broker.serving import Serving
from tests.broker.signing import ROOT, Signer, protected
from tests.mqadminscript import run_ours


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("accessKey: user\nsecretKey: 'secret'\n", Credentials("user", "secret")),
        ("accessKey: user\n", None),
        ("", None),
    ],
)
def test_the_user_of_the_file(
    text: str, user: Credentials | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tools.yml").write_text(text)
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    assert credentials() == user


def test_without_a_file_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    assert credentials() is None
    monkeypatch.delenv("ROCKETMQ_HOME")
    assert credentials() is None


def test_users_without_their_passwords_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy without them would fail, or leave a user with another password than it had."""
    (tmp_path / "conf").mkdir()
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))

    async def main(served: Serving, root: Signer) -> None:
        manager = await root.user("manager")
        await root.allow("manager", ("Cluster:C", ["Get", "Update"]))
        at = f"127.0.0.1:{served.port}"
        for who, expected in ((manager, "super users only"), (ROOT, "copy user of manager")):
            text = f"accessKey: {who.access_key}\nsecretKey: {json.dumps(who.secret_key)}\n"
            (tmp_path / "conf" / "tools.yml").write_text(text)
            words = ["copyUser", "-f", at, "-t", at, "-u", "manager"]
            out, err, _ = await asyncio.to_thread(run_ours, words)
            assert expected in out + err

    protected(tmp_path / "store", main)
