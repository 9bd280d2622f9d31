"""The page of examples does what it says: each command is run, and its output compared."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from firearrow.cli.main import main
from tests.cli.shell import shop, steady
from tests.test_tidy import ROOT

pytestmark = pytest.mark.usefixtures("patience")

PAGE = ROOT / "docs" / "cluster.md"
BLOCK = re.compile(r"(```console\n)(.*?)(```)", re.DOTALL)
PROMPT = "$ firearrow "


def with_outputs(page: str, then: Callable[[], None] = lambda: None) -> str:
    """The page with what its commands print now; ``then`` is done behind each of them."""
    return BLOCK.sub(lambda block: f"{block[1]}{_run(block[2], then)}{block[3]}", page)


def _run(block: str, then: Callable[[], None]) -> str:
    said = ""
    for line in block.splitlines():
        if line.startswith(PROMPT):
            said += f"{line}\n{steady(_printed(shlex.split(line.removeprefix(PROMPT))))}"
            then()
    return said


def _printed(words: list[str]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(words)
    return printed.getvalue() + (f"(exit code {code})\n" if code else "")


def test_the_page_shows_what_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    with shop(monkeypatch):
        assert with_outputs(page) == page
