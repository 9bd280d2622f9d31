"""Slips on the command line: who made one sees in two lines what is wrong, and what is near."""

import shlex

import pytest

from firearrow.cli.app import build_app
from firearrow.cli.examples import EXAMPLES
from firearrow.cli.main import main
from tools.write_docs import commands


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
                ("firearrow store cat: error: unrecognized arguments: --topc=3; did you mean --topic?"),
            ],
        ),
        (
            "broker --set x",
            ["usage: firearrow broker [options]", "firearrow broker: error: argument --set: 'x' is not KEY=VALUE"],
        ),
        (
            "pipeline restore",
            [
                "usage: firearrow pipeline restore [options] --job DIR",
                "firearrow pipeline restore: error: the following arguments are required: --job",
            ],
        ),
        (
            "pipeline replay --job x",
            [
                "usage: firearrow pipeline replay [options] --job DIR",
                ("firearrow pipeline replay: error: one of the arguments --path --name-server --archive is required"),
            ],
        ),
        (
            "pipeline backlog --path d --sample 3 --consume-rate 2",
            [
                "usage: firearrow pipeline backlog [options] --path DIR",
                ("firearrow pipeline backlog: error: argument --consume-rate: not allowed with argument --sample"),
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
                ("firearrow store cat: error: argument --json: not allowed with argument --format arrow"),
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


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        ("brokr", "; did you mean broker?"),
        ("store verfy d", "; did you mean verify?"),
        ("sing", "'pipeline')"),
        ("serve --zzz", "arguments: --zzz"),
    ],
)
def test_only_what_is_near_is_proposed(arguments: str, end: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(shlex.split(arguments))
    assert capsys.readouterr().err.endswith(f"{end}\n")


def test_every_command_has_examples_that_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands():
        assert main([*command.name.split()[1:], "--help"]) == 0
        shown = capsys.readouterr().out
        for example in EXAMPLES[command.name]:
            assert example in shown
    for example in [example for several in EXAMPLES.values() for example in several]:
        words = shlex.split(example)[1:]
        build_app().parse_args(words, exit_on_error=False, print_error=False)
