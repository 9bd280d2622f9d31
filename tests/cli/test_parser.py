"""Slips on the command line: who made one sees in two lines what is wrong, and what is near."""

import shlex

import pytest

from firearrow.cli.main import build_parser
from firearrow.cli.parser import EXAMPLES
from tools.write_docs import commands


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            "serve --stroe x",
            [
                "usage: firearrow serve [options]",
                "firearrow serve: error: unrecognized arguments: --stroe x; did you mean --store?",
            ],
        ),
        (
            "store cat d --topc=3",
            [
                "usage: firearrow store cat [options] DIR",
                (
                    "firearrow store cat: error: unrecognized arguments: --topc=3; "
                    "did you mean --topic?"
                ),
            ],
        ),
        (
            "broker --set x",
            [
                "usage: firearrow broker [options]",
                "firearrow broker: error: argument --set: 'x' is not KEY=VALUE",
            ],
        ),
        (
            "pipeline restore",
            [
                "usage: firearrow pipeline restore [options] --job DIR",
                "firearrow pipeline restore: error: the following arguments are required: --job",
            ],
        ),
    ],
)
def test_a_slip_is_answered_in_two_lines(
    arguments: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        build_parser().parse_args(shlex.split(arguments))
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
def test_only_what_is_near_is_proposed(
    arguments: str, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(shlex.split(arguments))
    assert capsys.readouterr().err.endswith(f"{end}\n")


def test_every_command_has_examples_that_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    parser = build_parser()
    for name, command in commands():
        for example in EXAMPLES[f"firearrow {name}"]:
            assert example in command.format_help()
    for example in [example for several in EXAMPLES.values() for example in several]:
        parser.parse_args(shlex.split(example)[1:])
    assert "firearrow serve\n" in parser.format_help()
