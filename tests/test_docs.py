"""The documentation agrees with the code: tables are up to date, and links are valid."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from firearrow.broker.config import BrokerConfig
from firearrow.cli.commands import SHORT_FORMS
from firearrow.cli.mqadmin.table import ROWS
from firearrow.cli.parser import options_in_front
from firearrow.config.table import keys
from firearrow.controller.config import ControllerConfig
from firearrow.namesrv.config import NamesrvConfig
from firearrow.proxy.config import ProxyConfig
from firearrow.store.config import StoreConfig
from tests.pages import DOCS, PAGES, ROOT, blocks
from tools.site import pages
from tools.write_docs import SHARED, commands, stale

LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def test_generated_parts_are_fresh() -> None:
    assert [str(path) for path, _ in stale()] == [], "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def headings(page: Path) -> set[str]:
    """The fragments by which a link names the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    names = (re.sub(r"\]\([^)]*\)", "", name.lower()) for name in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {re.sub(r"[^\w -]", "", name).replace(" ", "-") for name in names}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_headings_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8"))
    named = [(page.parent / link if link else page, name) for link, name in links]
    assert [(path.name, name) for path, name in named if name not in headings(path)] == []


@pytest.mark.parametrize("struct", [StoreConfig, BrokerConfig, NamesrvConfig, ControllerConfig, ProxyConfig])
def test_every_key_is_documented(struct: type) -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    table = keys(struct)
    assert [name for name in table if f"| `{name}` |" not in text] == []
    assert [name for name, key in table.items() if not key.description] == []


def test_every_command_and_option_is_documented() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for command in commands():
        assert f"## {command.prog}\n" in text
        missing = [option.dest for option in command.arguments if not option.help]
        assert not missing, f"{command.prog}: options without help"


def test_an_index_leads_to_every_page() -> None:
    """README leads to the index of `docs/`; each index leads to the pages beside it."""
    assert "docs/index.md" in LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    for index in DOCS.rglob("index.md"):
        links = LINK.findall(index.read_text(encoding="utf-8"))
        assert [page.name for page in index.parent.glob("*.md") if page.name not in {*links, "index.md"}] == []


# Which test runs the blocks of which language on a page, or looks at them in another way.
RUN_BY = {
    "README.md": {"python": "interop/test_readme.py, spark/test_examples.py, testing/test_examples.py"},
    "archive.md": {"python": "spark/test_examples.py"},
    "cluster.md": {"console": "cli/test_tour.py"},
    "client.md": {"python": "client/test_examples.py"},
    "concepts.md": {"python": "client/test_examples.py"},
    "grpc.md": dict.fromkeys(("go", "java", "js", "python"), "interop/test_grpc_docs.py"),
    "integrations.md": {"python": "integrations/test_examples.py"},
    "lake.md": {"python": "lake/test_examples.py", "toml": "lake/test_examples.py"},
    "migration.md": {"bash": "test_migration.py"},
    "pipeline.md": {"python": "spark/test_examples.py", "sql": "spark/test_examples.py"},
    "replication.md": {"properties": "broker/replication/test_slavesync.py"},
    "spark-clusters.md": {"yaml": "spark/test_kubernetes.py"},
    "start.md": {"java": "interop/test_readme.py", "xml": "test_docs.py"},
    "testing.md": {
        "bash": "testing/test_examples.py",
        "ini": "testing/test_examples.py",
        "java": "interop/test_embedded.py",
        "python": "testing/test_examples.py",
    },
}


def test_every_block_of_code_is_run_by_a_test() -> None:
    found = {(page.name, block.language) for page in PAGES for block in blocks(page)}
    assert found == {(page, language) for page, by in RUN_BY.items() for language in by}
    tests = {test for by in RUN_BY.values() for tests in by.values() for test in tests.split(", ")}
    assert [test for test in tests if not (ROOT / "tests" / test).exists()] == []


def test_projects_for_maven_have_the_client_that_the_tests_use() -> None:
    parts = [block.code for page in PAGES for block in blocks(page, "xml")]
    driver = (ROOT / "tests/interop/java/pom.xml").read_text(encoding="utf-8")
    (version,) = set(re.findall(r"<rocketmq.version>(.*)</rocketmq.version>", driver))
    assert parts
    for part in parts:
        assert "<groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-client" in part
        assert f"<version>{version}</version>" in part


COMMAND = re.compile(r"^ +(?:\$ )?((?:firearrow|mqadmin|make) .*)$", re.MULTILINE)
LINES = [
    (page, line)
    for page in PAGES
    if page.name != "CHANGELOG.md"
    for line in COMMAND.findall(page.read_text(encoding="utf-8").replace("\\\n", " "))
]


@pytest.mark.parametrize(("page", "line"), LINES, ids=[f"{p.name}-{n}" for n, (p, _) in enumerate(LINES)])
def test_commands_are_there_with_their_options(page: Path, line: str) -> None:
    """Check commands without running them: some start servers or need stores that do not exist."""
    program, *words = shlex.split(line, comments=True)
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert [word for word in words if "=" not in word and word not in targets] == []
    elif "mqadmin" in (program, words[0]):
        assert _unknown_to_mqadmin(words[words[0] == "mqadmin" :]) == []
    elif not words[0][0].isdigit():  # else it is a version that is printed
        assert _unknown(["deadletters" if word == "JOB" else word for word in words]) == []


def _unknown_to_mqadmin(words: list[str]) -> list[str]:
    rows = {row.name: row.options() for row in ROWS}
    name, *given = [word for word in words if word != "help"]
    known = {f"-{it.short}" for it in rows[name]} | {f"--{it.long}" for it in rows[name]}
    return [word for word in given if re.match("--?[a-zA-Z]", word) and word not in known]


def _unknown(words: list[str]) -> list[str]:
    """Return the options of `firearrow` that docs/commands.md, which is generated, does not have."""
    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    sections = {part.partition("\n")[0]: part for part in text.split("\n## firearrow ")[1:]}
    _, words = options_in_front(words)
    words[:1] = SHORT_FORMS.get(words[0], words[:1])
    names = [name for name in sections if words[: name.count(" ") + 1] == name.split()]
    section = sections[max(names, key=len)]  # `broker list` is not `broker`
    section += text[text.index(f"## {SHARED['cluster.']}") : text.index("\n## firearrow ")]
    words = words[: words.index("|")] if "|" in words else words
    return [word for word in words if re.match("--?[a-z]", word) and f"`{word}" not in section]


def test_the_site_has_every_page_and_is_built_without_a_complaint() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [name for name in pages().values() if f" {name}\n" not in nav] == []
    built = subprocess.run([sys.executable, "-m", "tools.site"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
