"""Completion of command lines, as shells ask for it: commands, options, and names of the cluster."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from firearrow.cli.main import main
from tests.cli.shell import Shell


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_every_shell_gets_its_script(shell_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell_name]) == 0
    script = capsys.readouterr().out
    assert "_ARGCOMPLETE" in script
    assert "firearrow" in script


def test_bash_completes_by_its_script(tmp_path: Path) -> None:
    script = f"""
        PATH={Path(sys.executable).parent}:$PATH; source <(firearrow completion bash)
        COMP_LINE="firearrow offset se" COMP_POINT=19 COMP_TYPE=9 COMP_KEY=9
        _python_argcomplete firearrow; echo "${{COMPREPLY[@]}}"
    """
    ended = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert ended.stdout.split() == ["seek"]


def completed(line: str, directory: Path, **environment: str) -> list[str]:
    """The answer to a shell that asks how a line may go on, and no word on any error."""
    answer = directory / "answer"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line.encode())),
        "XDG_CONFIG_HOME": str(directory),
    }
    command = [sys.executable, "-m", "firearrow"]
    ended = subprocess.run(command, capture_output=True, check=True, env=os.environ | asked | environment)
    assert ended.stdout == b""
    return [word.strip() for word in answer.read_text().split("\v") if word]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("firearrow off", ["offset"]),
        ("firearrow offset se", ["seek"]),
        ("firearrow offset reset --un", ["--undo-file"]),
        ("firearrow broker --broker", ["--broker-port"]),
        ("firearrow broker sh", ["show"]),
        ("firearrow lag --by q", ["queue"]),
        ("firearrow completion z", ["zsh"]),
        ("firearrow store ver", ["verify"]),
    ],
)
def test_commands_options_and_choices_are_completed(line: str, words: list[str], tmp_path: Path) -> None:
    assert completed(line, tmp_path) == words


def test_names_of_the_cluster_are_completed(shell: Shell, tmp_path: Path) -> None:
    servers = shell.cluster.name_server
    shell.text("topic", "create", "orders-again", "-n", servers)
    shell.text("group", "create", "billing-again", "-n", servers)
    assert completed(f"firearrow topic show -n {servers} order", tmp_path) == ["orders", "orders-again"]
    assert completed("firearrow topic show orders-", tmp_path, NAMESRV_ADDR=servers) == ["orders-again"]
    assert completed("firearrow message send orders-", tmp_path, NAMESRV_ADDR=servers) == ["orders-again"]
    assert completed(f"firearrow group show -n {servers} billing-", tmp_path) == ["billing-again"]
    assert completed("firearrow offset reset billing orders-", tmp_path, NAMESRV_ADDR=servers) == ["orders-again"]
    assert completed("firearrow lag --topic orders-", tmp_path, NAMESRV_ADDR=servers) == ["orders-again"]


def test_names_of_contexts_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("production", "play"):
        assert main(["context", "add", name, "-n", "127.0.0.1:1"]) == 0
    capsys.readouterr()
    assert completed("firearrow topic list --context pr", tmp_path) == ["production"]
    assert completed("firearrow context use p", tmp_path) == ["play", "production"]
    assert completed("firearrow topic show --context play o", tmp_path) == []


def test_a_cluster_that_does_not_answer_has_no_names(tmp_path: Path) -> None:
    assert completed("firearrow topic show o", tmp_path, NAMESRV_ADDR="127.0.0.1:1") == []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert completed(f"firearrow topic show -n 127.0.0.1:{silent.getsockname()[1]} o", tmp_path) == []
    (tmp_path / "firearrow").mkdir()
    (tmp_path / "firearrow" / "contexts.toml").write_text("no contexts")
    assert completed("firearrow context use p", tmp_path) == []
