"""Write the parts of `docs/` that come from the code; `tests/test_docs.py` checks that they do.

A generated part stands between two comments that name it:

    <!-- generated: store keys -->
    ...
    <!-- end -->
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from firearrow.broker.config import BrokerConfig
from firearrow.cli.main import build_parser
from firearrow.cli.parser import EXAMPLES
from firearrow.config.demands import DEMANDS
from firearrow.config.table import Key, ServerConfig, keys
from firearrow.namesrv.config import NamesrvConfig
from firearrow.spark.options import as_markdown
from firearrow.store.config import StoreConfig
from firearrow.store.offline import INVARIANTS

DOCS = Path(__file__).parent.parent / "docs"
_PART = re.compile(r"(<!-- generated: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(page: str) -> str:
    """Give the page with every generated part as the code has it now."""
    return _PART.sub(lambda match: f"{match[1]}\n{PARTS[match[2]]()}\n{match[3]}", page)


def key_table(struct: type[ServerConfig]) -> str:
    """Give the Markdown table of a struct's keys."""
    rows = ["| key | default | allowed | changes | meaning |", "|---|---|---|---|---|"]
    rows += [
        f"| `{key.name}` | {_default(key)} | {_cell(key.allowed)} | "
        f"{'at once' if key.is_live else 'at the start'} | {key.description} |"
        for key in keys(struct).values()
    ]
    return "\n".join(rows) + "\n"


def demand_table() -> str:
    """Give the Markdown table of what a configuration may ask for in vain."""
    asked: dict[str, list[str]] = {}
    for name, demand in DEMANDS.items():
        asked.setdefault(demand.what, []).append(f"`{name}`")
    rows = ["| asked for | by |", "|---|---|"]
    rows += [f"| {what} | {', '.join(names)} |" for what, names in asked.items()]
    return "\n".join(rows) + "\n"


def option_tables() -> str:
    """Give a heading and a Markdown table for every command."""
    return "\n".join(_option_table(name, parser) for name, parser in commands())


def commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Give every command of the command line with its parser; of a group, its subcommands."""
    yield from _subcommands(build_parser(), "")


def _subcommands(
    parser: argparse.ArgumentParser, before: str
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for group in groups:
        for name, subparser in group.choices.items():
            yield from _subcommands(subparser, f"{before}{name} ")
    if before and not groups:
        yield before.strip(), parser


def options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Give every option of a command as it is written, with its help."""
    for action in parser._actions:
        if action.dest != "help":
            value = action.metavar or ("|".join(action.choices) if action.choices else "")
            given = [] if action.nargs == 0 else [str(value or action.dest.upper())]
            name = action.option_strings[:1]  # none: an argument in its place
            yield " ".join([*name, *given]), action.help or ""


def _option_table(name: str, parser: argparse.ArgumentParser) -> str:
    rows = [
        f"## firearrow {name}\n",
        f"{parser.description}\n",
        "| option | meaning |",
        "|---|---|",
    ]
    rows += [
        f"| `{option.replace('|', chr(92) + '|')}` | {text} |" for option, text in options(parser)
    ]
    examples = "".join(f"    {example}\n" for example in EXAMPLES[parser.prog])
    return "\n".join(rows) + f"\n\nFor example:\n\n{examples}"


def invariant_table() -> str:
    """Give the Markdown table of what verification looks at."""
    rows = [
        "| id | what holds | otherwise | for whom | what repair does |",
        "|---|---|---|---|---|",
    ]
    rows += [
        f"| `{row.id}` | {row.holds} | {row.severity.value} | {row.affects} | {row.repair.value} |"
        for row in INVARIANTS.values()
    ]
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _default(key: Key) -> str:
    if key.name in DEPENDS:
        return DEPENDS[key.name]
    text = str(key.default).lower() if isinstance(key.default, bool) else str(key.default)
    return f"`{text}`" if text else "empty"


# Defaults that the machine decides.
DEPENDS = {
    "storePathRootDir": "`store` in the home directory",
    "brokerName": "name of the host",
    "kvConfigPath": "`namesrv/kvConfig.json` in the home directory",
    "configStorePath": "`namesrv/namesrv.properties` in the home directory",
}

PARTS: dict[str, Callable[[], str]] = {
    "store keys": lambda: key_table(StoreConfig),
    "broker keys": lambda: key_table(BrokerConfig),
    "name server keys": lambda: key_table(NamesrvConfig),
    "demands": demand_table,
    "commands": option_tables,
    "invariants": invariant_table,
    "spark options": as_markdown,
}


def main() -> int:
    """Rewrite the pages that have generated parts."""
    for path in sorted(DOCS.rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        fresh = render(page)
        if fresh != page:
            path.write_text(fresh, encoding="utf-8")
            print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
