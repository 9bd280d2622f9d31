"""Help comes from a file that is as the commands are, and waits for nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from firearrow.cli.app import build_app
from firearrow.cli.described import described
from firearrow.cli.helpdata import FILE, command_in
from firearrow.cli.main import main
from tools.write_docs import help_data


def test_the_file_is_as_the_commands_are() -> None:
    assert FILE.read_bytes() == help_data(), "run `make docs`"


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
        ("store verify --json --help", "firearrow store verify"),
    ],
)
def test_it_is_found_by_the_words_of_a_command_line(line: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_in(line.split()).name == name
    assert main(line.split()) == 0
    assert capsys.readouterr().out.startswith(f"usage: {name}")


def test_what_is_read_is_what_was_written() -> None:
    app = build_app()
    assert command_in(["topic", "create"]) == described(app["topic"]["create"], "firearrow topic create")


def test_help_imports_neither_cyclopts_nor_what_commands_need() -> None:
    code = (
        "import sys; from firearrow.cli.main import main; main(['pipeline', '--help']);"
        "names = 'cyclopts', 'numpy', 'msgspec', 'asyncio';"
        "print([name for name in names if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.endswith("[]\n"), told.splitlines()[-1]
