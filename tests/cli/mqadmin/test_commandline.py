"""Command lines of mqadmin: their options, refusals and usage texts."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path

import pytest

from firearrow.cli.mqadmin.commandline import WrongCommandLine, usage, values_in
from firearrow.cli.mqadmin.table import HELP, OF_COMMANDS, ROWS, Row, row_of
from tests.mqadminscript import run_ours


def row(name: str) -> Row:
    found = row_of(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "words",
    [
        "-t T -b b:1 -r 4",
        "--topic T --brokerAddr b:1 --readQueueNums 4",
        "-topic T -brokerAddr b:1 -readQueueNums 4",
        "--topic=T -b=b:1 -r4",
    ],
)
def test_options_in_all_of_rocketmqs_forms(words: str) -> None:
    assert values_in(row("updateTopic"), words.split()) == {"t": "T", "b": "b:1", "r": "4"}


@pytest.mark.parametrize(
    ("name", "words", "why"),
    [
        ("topicRoute", "", "Missing required option: t"),
        ("deleteTopic", "", "Missing required options: t, c"),
        ("brokerStatus", "", "Missing required option: [-b brokerAddr, -c clusterName]"),
        ("brokerStatus", "-b x -c y", "an option from this group has already been selected: 'b'"),
        ("topicRoute", "-t", "expected one argument"),
        ("topicRoute", "-t T -z", "unrecognized arguments: -z"),
        ("topicRoute", "-t T more", "unrecognized arguments: more"),
    ],
)
def test_a_refusal_names_the_fault(name: str, words: str, why: str) -> None:
    with pytest.raises(WrongCommandLine) as refusal:
        values_in(row(name), words.split())
    assert why in str(refusal.value)


def test_usage_has_rocketmqs_form() -> None:
    assert usage(row("topicRoute")) == (
        "usage: mqadmin topicRoute [-h] [-l] [-n <arg>] -t <arg>\n"
        " -h,--help               print this help\n"
        " -l,--list               as a table\n"
        " -n,--namesrvAddr <arg>   addresses of name servers, joined by ; (NAMESRV_ADDR)\n"
        " -t,--topic <arg>        name of a topic\n"
    ).replace("help               ", "help                ").replace(
        "list               ", "list                "
    ).replace("topic <arg>        ", "topic <arg>         ")


def test_every_option_of_every_command_is_explained() -> None:
    used = {option.long for one in ROWS for option in one.options()}
    assert used == set(HELP)
    for one in ROWS:
        assert f"usage: mqadmin {one.name} " in usage(one)
    known = {(one.name, option.long) for one in ROWS for option in one.options()}
    assert set(OF_COMMANDS) <= known


def test_every_command_has_its_function() -> None:
    for one in ROWS:
        module, _, name = one.place.partition(":")
        if one.is_supported:
            found = getattr(import_module(f"firearrow.cli.mqadmin.{module}"), name)
            assert iscoroutinefunction(found), one.name
    assert len(ROWS) == 96
    assert sum(not one.is_supported for one in ROWS) == 9


def test_names_of_commands_may_be_in_any_case() -> None:
    assert row_of("TOPICROUTE") is row_of("topicRoute")
    assert row_of("nothing") is None


def test_a_command_that_did_nothing_ends_with_1() -> None:
    assert run_ours([])[2] == 0
    assert run_ours(["bogus"]) == ("The sub command bogus not exist.\n", "", 1)
    assert run_ours(["help", "topicRoute"]) == (usage(row("topicRoute")), "", 0)
    assert run_ours(["topicRoute", "-h"]) == (usage(row("topicRoute")), "", 0)
    out, err, code = run_ours(["topicRoute"])
    assert (out, err, code) == (usage(row("topicRoute")), "Missing required option: t\n", 1)


def test_an_unsupported_command_gives_the_reason() -> None:
    out, err, code = run_ours(["dumpCompactionLog", "-f", "x"])
    assert (out, code) == ("", 1)
    assert err == ("mqadmin: dumpCompactionLog is not supported: Firearrow has no compacted topics\n")


def test_without_a_name_server_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    out, err, code = run_ours(["topicRoute", "-t", "T"])
    assert (out, code) == ("", 1)
    assert "no name server answers: 127.0.0.1:1 can't be reached" in err


def test_a_list_of_commands_imports_nothing_heavy() -> None:
    program = (
        "import sys, firearrow.cli.main as m\n"
        "m.main(['mqadmin'])\n"
        "print(*sorted({'asyncio', 'numpy', 'msgspec', 'logging'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.endswith("more information on a specific command.\n\n"), out[-200:]


def test_the_console_script(tmp_path: Path) -> None:
    program = "import sys; sys.argv[1:] = ['help', 'topicList']\n"
    program += "from firearrow.cli.entry import mqadmin; sys.exit(mqadmin())"
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert ended.stdout == usage(row("topicList"))
