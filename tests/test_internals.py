"""Pages about decisions: each has all its parts, and names modules and tests that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.pages import DOCS, ROOT

INTERNALS = DOCS / "internals"
INDEX = INTERNALS / "index.md"
DECISIONS = sorted(page for page in INTERNALS.glob("*.md") if page != INDEX)
PARTS = ["Context", "Decision", "Rejected", "Cost", "Test"]

PACKAGE = ROOT / "src" / "firearrow"
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")
MODULE = re.compile(r"`((?:[a-z]\w*\.)+[a-z]\w*)`")
_PART = re.compile(r"^\*\*(\w+)\.\*\*", re.MULTILINE)


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_each_decision_has_all_its_parts_in_order(page: Path) -> None:
    decisions = [part for part in page.read_text(encoding="utf-8").split("\n## ")[1:] if "\n**" in part]
    assert decisions
    wrong = {part.partition("\n")[0]: _PART.findall(part) for part in decisions if _PART.findall(part) != PARTS}
    assert wrong == {}


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_the_tests_that_hold_a_decision_are_there(page: Path) -> None:
    named = TEST.findall(page.read_text(encoding="utf-8"))
    assert named
    assert [at for at in named if not (ROOT / at[0]).exists() or (at[1] and at[1] not in functions(at[0]))] == []


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("page", [ROOT / "ARCHITECTURE.md", *DECISIONS], ids=lambda page: page.stem)
def test_the_modules_that_are_named_are_there(page: Path) -> None:
    """A page may leave out leading packages of a module's name."""
    modules = {".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.py")}
    packages = {path.name for path in PACKAGE.rglob("*") if path.is_dir()}
    named = {name.removeprefix("firearrow.") for name in MODULE.findall(page.read_text(encoding="utf-8"))}
    ours = {name for name in named if name.split(".")[0] in packages}
    ends = {tail for name in modules for tail in tails(name.removesuffix(".__init__"))}
    assert sorted(ours - ends) == []


def tails(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[first:]) for first in range(len(parts))]


def test_the_index_leads_to_every_page_and_architecture_to_the_index() -> None:
    index = INDEX.read_text(encoding="utf-8")
    assert [page.name for page in DECISIONS if f"]({page.name})" not in index] == []
    assert "(docs/internals/index.md)" in (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
