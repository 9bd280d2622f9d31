"""Completion of command lines, as shells ask for it: commands, options, and names of the cluster."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firearrow.cli.completion import WARMING
from firearrow.cli.main import main
from firearrow.clock import SystemClock
from firearrow.testing import EmbeddedCluster
from tests.cli.shell import Shell


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_every_shell_gets_its_script(shell_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = script_of(shell_name, capsys)
    assert "COMP_LINE" in script.removesuffix(WARMING)
    assert script.endswith(WARMING)


def script_of(shell_name: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell_name]) == 0
    return capsys.readouterr().out


def test_bash_completes_by_its_script(tmp_path: Path) -> None:
    script = f"""
        PATH={Path(sys.executable).parent}:$PATH; source <(firearrow completion bash)
        COMP_LINE="firearrow offset se" COMP_POINT=19 COMP_TYPE=9 COMP_KEY=9
        _python_argcomplete firearrow; echo "${{COMPREPLY[@]}}"
    """
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "NAMESRV_ADDR": "127.0.0.1:1"}
    command = ["bash", "--norc", "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment)
    assert ended.stdout.split() == ["seek"]


def start_of_a_shell(script: str, directory: Path, **environment: str) -> tuple[str, str]:
    """What a bash that reads a script at its start prints, up to its end."""
    (directory / "rc").write_text(script)
    command = ["bash", "--rcfile", str(directory / "rc"), "-i"]
    given = os.environ | {"XDG_CONFIG_HOME": str(directory), "XDG_CACHE_HOME": str(directory)} | environment
    ended = subprocess.run(
        command, input="", capture_output=True, text=True, check=True, timeout=60, env=given, start_new_session=True
    )
    return ended.stdout, re.sub(r"\(\d+\)", "", ended.stderr)  # the terminal that it has not, with a process id


def test_a_shell_neither_waits_for_names_nor_tells_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [tmp_path / kind for kind in ("topic", "group")]
    for it in asked:
        os.mkfifo(it)
    program = tmp_path / "firearrow"
    program.write_text(f"""#!/bin/sh
        echo noise; echo noise >&2
        set -- $COMP_LINE; echo "$_ARGCOMPLETE $COMP_POINT $COMP_LINE." >{tmp_path}/$2
    """)
    program.chmod(0o700)
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert start_of_a_shell(script_of("bash", capsys), tmp_path, PATH=path) == start_of_a_shell("", tmp_path)
    assert [it.read_text() for it in asked] == [f"1 21 firearrow {it.name} show .\n" for it in asked]


def test_the_first_key_of_a_shell_finds_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedCluster() as cluster:
        environment = {
            "NAMESRV_ADDR": cluster.name_server,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        cluster.create_topic("orders")
        assert main(["group", "create", "billing", "-n", cluster.name_server]) == 0
        capsys.readouterr()
        start_of_a_shell(script_of("bash", capsys), tmp_path, **environment)
        while len(list((tmp_path / "firearrow").glob("names-????????"))) < 2:
            time.sleep(0.01)
    assert completed("firearrow topic show ord", tmp_path, **environment) == ["orders"]
    assert completed("firearrow group show bil", tmp_path, **environment) == ["billing"]


def completed(line: str, directory: Path, **environment: str) -> list[str]:
    """The answer to a shell that asks how a line may go on, and no word on any error."""
    answer = directory / "answer"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line.encode())),
        "XDG_CONFIG_HOME": str(directory),
        "XDG_CACHE_HOME": str(directory),
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


def test_what_is_long_to_learn_is_completed_too(tmp_path: Path, shell: Shell) -> None:
    servers = shell.cluster.name_server
    assert completed("firearrow config set flushDiskT", tmp_path) == ["flushDiskType="]
    assert completed("firearrow broker --set flushDiskT", tmp_path) == ["flushDiskType="]
    assert completed("firearrow mqadmin topicRo", tmp_path) == ["topicRoute"]
    assert completed("firearrow mqadmin topicRoute --na", tmp_path) == ["--namesrvAddr"]
    assert completed(f"firearrow -n {servers} send ord", tmp_path) == ["orders"]
    assert completed("firearrow --context x topi", tmp_path) == ["topic", "topics"]
    assert completed("firearrow topic create t --ord", tmp_path) == ["--ordered"]
    assert completed("firearrow topic create t --queues 3 --que", tmp_path) == []
    assert completed("firearrow message send t --ke", tmp_path) == ["--key"]
    assert completed("firearrow message send t --key a --ke", tmp_path) == ["--key"]
    assert completed("firearrow topic list -o js", tmp_path) == ["json", "jsonl"]
    assert completed("firearrow topic list --no-option x --js", tmp_path) == []
    assert completed("firearrow lag --hel", tmp_path) == ["--help"]
    assert completed("firearrow lag --by 'qu", tmp_path) == ["queue"]  # argcomplete reads quotes


def test_zsh_gets_the_help(tmp_path: Path) -> None:
    [word] = completed("firearrow topic lis", tmp_path, _ARGCOMPLETE_SHELL="zsh")
    assert word == "list :List topics"


def test_names_are_kept_for_the_next_keys_and_renewed_beside_an_answer(shell: Shell, tmp_path: Path) -> None:
    servers = shell.cluster.name_server
    line = f"firearrow topic show -n {servers} orders-"
    now = SystemClock().now_ms() / 1000
    shell.text("topic", "create", "orders-again", "-n", servers)
    assert completed(line, tmp_path) == ["orders-again"]
    [kept] = (tmp_path / "firearrow").glob("names-*")
    shell.text("topic", "create", "orders-later", "-n", servers)
    os.utime(kept, (now + 600, now + 600))  # of a clock that was set back
    assert completed(line, tmp_path) == ["orders-again", "orders-later"]
    shell.text("topic", "create", "orders-last", "-n", servers)
    os.utime(kept, (now - 20 * 3600, now - 20 * 3600))  # of yesterday
    assert completed(line, tmp_path) == ["orders-again", "orders-later"]
    while "orders-last" not in kept.read_text():
        time.sleep(0.01)
    assert completed(line, tmp_path) == ["orders-again", "orders-later", "orders-last"]
    shell.text("topic", "create", "orders-new", "-n", servers)
    os.utime(kept, (now - 25 * 3600, now - 25 * 3600))
    assert "orders-new" in completed(line, tmp_path)


def test_names_of_a_cluster_that_is_gone_are_forgotten(tmp_path: Path) -> None:
    with EmbeddedCluster() as cluster:
        cluster.create_topic("orders")
        line = f"firearrow topic show -n {cluster.name_server} orders"
        assert completed(line, tmp_path) == ["orders"]
    [kept] = (tmp_path / "firearrow").glob("names-*")
    old = SystemClock().now_ms() / 1000 - 300
    os.utime(kept, (old, old))
    assert completed(line, tmp_path) == ["orders"]
    while kept.exists():
        time.sleep(0.01)
    assert completed(line, tmp_path) == []


@pytest.mark.parametrize(
    "line", ["firearrow off", "firearrow topic li", "firearrow mqadmin topicR", "firearrow config set f"]
)
def test_an_answer_that_needs_no_cluster_imports_little(line: str, tmp_path: Path) -> None:
    program = "import sys; from firearrow.cli.main import main; main([]);"
    program += "print(*sorted({'argparse', 'argcomplete', 'asyncio', 'msgspec', 'pathlib'} & set(sys.modules)))"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "answer"), "COMP_LINE": line}
    environment = os.environ | asked | {"COMP_POINT": str(len(line))}
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout == "\n"
    assert (tmp_path / "answer").read_text() != ""
