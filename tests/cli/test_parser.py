"""The parser of a command: its help, its refusals, and how it reads words."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from firearrow.cli.cluster import topics
from firearrow.cli.cluster.options import ClusterOptions
from firearrow.cli.commands import COMMANDS
from firearrow.cli.examples import EXAMPLES
from firearrow.cli.main import main
from firearrow.cli.output.listing import Output
from firearrow.cli.parser import parser_for
from firearrow.clock import SystemClock
from tools.write_docs import commands


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("--help", "firearrow"),
        ("-h", "firearrow"),
        ("topic --help", "firearrow topic"),
        ("--help topic create", "firearrow topic create"),
        ("topic create -h orders", "firearrow topic create"),
        ("topic nothing --help", "firearrow topic"),
        ("nothing topic --help", "firearrow"),
        ("lag billing --help", "firearrow lag"),
        ("mqadmin --help", "firearrow mqadmin"),
        ("help", "firearrow"),
        ("help topic create", "firearrow topic create"),
        ("help send", "firearrow message send"),
        ("help mqadmin", "firearrow mqadmin"),
        ("help mqadmin topicRoute", "mqadmin topicRoute"),
        ("-n a:1 topics --help", "firearrow topic list"),
        ("store verify --json --help", "firearrow store verify"),
    ],
)
def test_help_is_found_by_the_words_of_a_command_line(line: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 0
    assert capsys.readouterr().out.startswith(f"usage: {name} ")


def test_help_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "64")
    assert main(["offset", "clone", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "usage: firearrow offset clone [options] GROUP TO"
    assert lines[2] == "Reset a group to the offsets of another group."
    assert "  GROUP                   group to copy the offsets from" in lines
    assert "  -n, --name-server HOST:PORT;..." in lines
    assert lines[-1] == f"  {EXAMPLES['firearrow offset clone'][0]}"
    assert max(map(len, lines[:-1])) <= 64


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        ("--help", "asyncio numpy msgspec"),
        ("pipeline --help", "asyncio numpy pyspark pyarrow"),
        ("pipeline watch --help", "asyncio numpy pyspark pyarrow"),
        ("store verify --help", "asyncio numpy pyspark pyarrow"),
        ("topic list --help", "numpy tomllib firearrow.broker"),
    ],
)
def test_help_imports_little(words: str, heavy: str) -> None:
    code = (
        f"import sys; from firearrow.cli.main import main; main({words.split()!r});"
        f"print([name for name in {heavy.split()!r} if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.endswith("[]\n"), told.splitlines()[-1]


def test_only_the_module_of_the_command_is_imported() -> None:
    code = (
        "import sys; from firearrow.cli.main import main; main(['errors', '17']);"
        f"print(*(m for m in {sorted({row.place.partition(':')[0] for row in COMMANDS})!r}"
        "if f'firearrow.cli.{m}' in sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] in [row.place.partition(":")[0] for row in COMMANDS if row.name == "errors"]


def test_a_command_that_is_imported_late_is_summed_up_as_in_its_module() -> None:
    for command in topics.app.commands.values():
        line = str(command.load().__doc__).partition("\n")[0]
        assert command.summary == f"{line[0].lower()}{line[1:]}".removesuffix(".")


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("message send t hello", {"topic": "t", "body": "hello"}),
        ("message send -n a:1 t hello", {"topic": "t", "body": "hello"}),
        ("message send t -n a:1 hello", {"topic": "t", "body": "hello"}),
        ("message send t", {"topic": "t", "body": None}),
        ("message send t -- -hello", {"topic": "t", "body": "-hello"}),
        ("message send -n a:1 -- t --hello", {"topic": "t", "body": "--hello"}),
        ("message send t -5", {"topic": "t", "body": "-5"}),
        ("message send t '--no option'", {"topic": "t", "body": "--no option"}),
        ("message cat t --limit -1", {"limit": -1}),
        ("message cat t --limit=-1", {"limit": -1}),
        ("message cat t --limit 1 --limit 2", {"limit": 2}),
        ("dlq resend g --containing=--x", {"containing": "--x"}),
        ("dlq resend g --key a --key b", {"key": ("a", "b"), "tag": ()}),
        ("topic create t --ordered", {"ordered": True}),
        ("topic create t --no-ordered", {"ordered": False}),
        ("topic create t --ordered --no-ordered", {"ordered": False}),
        ("topic create t", {"ordered": None}),
        ("group create g --enabled", {"disabled": False}),
        ("cluster restart a b", {"brokers": ("a", "b")}),
        ("cluster restart", {"brokers": ()}),
        ("lag --by queue", {"by": "queue", "group": None}),
        ("send t hello", {"topic": "t", "body": "hello"}),
        ("send t -", {"topic": "t", "body": None}),
        ("send t -- -", {"topic": "t", "body": "-"}),
        ("groups bill*", {"pattern": "bill*"}),
        ("-n a:1 topics o*", {"pattern": "o*", "cluster": ClusterOptions(name_server="a:1")}),
        ("-na:1 topics", {"cluster": ClusterOptions(name_server="a:1")}),
        ("--context=p --tls topics", {"cluster": ClusterOptions(context="p", tls=True)}),
        ("-n a:1 topics -n b:1", {"cluster": ClusterOptions(name_server="b:1")}),
        ("--user me acl list --user nina", {"user": "nina", "cluster": ClusterOptions(user="me")}),
        ("topics --timeout 1m", {"cluster": ClusterOptions(timeout=60.0)}),
        ("-o jsonl topics", {"output": Output(output="jsonl")}),
    ],
)
def test_words_become_arguments(line: str, given: dict[str, object]) -> None:
    parser, words = parser_for(shlex.split(line))
    arguments = parser.bound(words).arguments
    assert {name: arguments[name] for name in given} == given


@pytest.mark.parametrize(
    ("line", "field", "seconds"),
    [
        ("cat t --since -1h", "since", -3600),
        ("cat t --since 1h", "since", -3600),
        ("cat t --until=-2d", "until", -172_800),
        ("offset reset g t --to -30s", "to", -30),
        ("offset reset g t --to 5m", "to", -300),
        ("send t x --deliver-at 5m", "deliver_at", 300),
        ("send t x --deliver-at -1h", "deliver_at", -3600),
        ("sql q --since 1d", "since", -86_400),
    ],
)
def test_a_duration_is_a_time_from_now_on(line: str, field: str, seconds: int) -> None:
    parser, words = parser_for(line.split())
    before = SystemClock().now_ms()
    arguments = parser.bound(words).arguments
    found = arguments.get(field) or getattr(arguments.get("options"), field)
    assert 0 <= found - (before + 1000 * seconds) <= SystemClock().now_ms() - before


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            "serve --stroe x",
            [
                "usage: firearrow serve [options]",
                "firearrow serve: error: unrecognized arguments: --stroe; did you mean --store?",
            ],
        ),
        (
            "store cat d --topc=3",
            [
                "usage: firearrow store cat [options] DIR",
                "firearrow store cat: error: unrecognized arguments: --topc=3; did you mean --topic?",
            ],
        ),
        (
            "topic list --name-s x",
            [
                "usage: firearrow topic list [options] [PATTERN]",
                "firearrow topic list: error: unrecognized arguments: --name-s; did you mean --name-server?",
            ],
        ),
        (
            "lag --by quue",
            [
                "usage: firearrow lag [options] [GROUP]",
                "firearrow lag: error: argument --by: invalid choice: 'quue'; did you mean queue?",
            ],
        ),
        (
            "broker --set x",
            ["usage: firearrow broker [options]", "firearrow broker: error: argument --set: 'x' is not KEY=VALUE"],
        ),
        (
            "dlq resend g --containing --all",
            [
                "usage: firearrow dlq resend [options] GROUP",
                "firearrow dlq resend: error: argument --containing: expected one argument",
            ],
        ),
        (
            "pipeline restore",
            [
                "usage: firearrow pipeline restore [options] --job DIR",
                "firearrow pipeline restore: error: the following arguments are required: --job",
            ],
        ),
        (
            "pipeline restore --jbo d",
            [
                "usage: firearrow pipeline restore [options] --job DIR",
                "firearrow pipeline restore: error: unrecognized arguments: --jbo; did you mean --job?",
            ],
        ),
        (
            "pipeline replay --job x",
            [
                "usage: firearrow pipeline replay [options] --job DIR",
                "firearrow pipeline replay: error: one of the arguments --path --name-server --archive is required",
            ],
        ),
        (
            "pipeline backlog --path d --sample 3 --consume-rate 2",
            [
                "usage: firearrow pipeline backlog [options] --path DIR",
                "firearrow pipeline backlog: error: argument --consume-rate: not allowed with argument --sample",
            ],
        ),
        (
            "store salvage",
            [
                "usage: firearrow store salvage [options] PATH ...",
                "firearrow store salvage: error: the following arguments are required: PATH",
            ],
        ),
        (
            "store cat d --format arrow --json",
            [
                "usage: firearrow store cat [options] DIR",
                "firearrow store cat: error: argument --json: not allowed with argument --format arrow",
            ],
        ),
    ],
)
def test_a_slip_is_answered_in_two_lines(arguments: str, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(shlex.split(arguments))
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == ("", lines)


def test_to_monitoring_a_slip_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["check", "--dsk", "70:90"])
    assert end.value.code == 3
    assert capsys.readouterr().err.endswith("; did you mean --disk?\n")


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        ("brokr", "; did you mean broker?"),
        ("broker lst", "; did you mean list?"),
        ("store verfy d", "; did you mean verify?"),
        ("sing", "'groups')"),
        ("serve --zzz", "arguments: --zzz"),
        ("topic", "required: COMMAND"),
    ],
)
def test_only_what_is_near_is_proposed(arguments: str, end: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(shlex.split(arguments))
    assert capsys.readouterr().err.endswith(f"{end}\n")


def test_every_command_has_examples_that_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands():
        assert main([*command.prog.split()[1:], "--help"]) == 0
        shown = capsys.readouterr().out
        for example in EXAMPLES[command.prog]:
            assert example in shown
    for example in [example for several in EXAMPLES.values() for example in several]:
        parser, words = parser_for(shlex.split(example)[1:])
        if parser.prog != "firearrow mqadmin":  # which reads its words itself
            assert parser.bound(words) is not None
