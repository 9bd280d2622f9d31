"""Read the documentation for its tests: pages, and the blocks of code on them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

NAME_SERVER = "127.0.0.1:9876"  # where it is in all examples

_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """Fenced block of code, and its place."""

    page: Path
    line: int
    language: str
    code: str

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path, language: str | None = None) -> list[Block]:
    """Return the fenced blocks of a page, of one language or of all."""
    text = page.read_text(encoding="utf-8")
    found = (
        Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2]) for match in _FENCED.finditer(text)
    )
    return [block for block in found if language in (None, block.language)]


def hello(page: Path, language: str, name_server: str) -> str:
    """Return the first program of a page in a language, with another name server."""
    code = blocks(page, language)[0].code
    assert code.count(NAME_SERVER) == 2
    return code.replace(NAME_SERVER, name_server)


def printed_by(command: Sequence[str | Path], **where: Any) -> list[str]:
    """Return the output of a program until it has received something."""
    printed: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **where) as running:
        assert running.stdout is not None
        try:
            for line in running.stdout:
                printed.append(line.rstrip())
                if line.startswith("received"):
                    break
        finally:
            running.kill()
    return printed


def sections(page: Path) -> dict[str, list[Block]]:
    """Return the blocks of Python of a page by the second-level heading above them."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found: dict[str, list[Block]] = {}
    for block in blocks(page, "python"):
        headings = (line for line in reversed(lines[: block.line]) if line.startswith("## "))
        found.setdefault(next(headings, "").removeprefix("## "), []).append(block)
    return found
