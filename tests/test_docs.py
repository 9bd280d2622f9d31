"""The documentation says what the code does: tables are those of the code, links lead somewhere."""

import re
from pathlib import Path

import pytest

from firearrow.broker.config import BrokerConfig
from firearrow.config.table import keys
from firearrow.namesrv.config import NamesrvConfig
from firearrow.store.config import StoreConfig
from tools.write_docs import commands, options, render

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_parts_are_fresh(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == render(text), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("struct", [StoreConfig, BrokerConfig, NamesrvConfig])
def test_every_key_is_documented(struct: type) -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    table = keys(struct)
    assert [name for name in table if f"| `{name}` |" not in text] == []
    assert [name for name, key in table.items() if not key.description] == []


def test_every_command_and_option_is_documented() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for name, parser in commands():
        assert f"## firearrow {name}\n" in text
        assert all(help_text for _, help_text in options(parser)), f"{name}: an option without help"


def test_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT).as_posix() for page in PAGES if page.parent != ROOT]
    assert [page for page in pages if page not in readme] == []
