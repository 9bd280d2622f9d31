"""Write the generated parts of `docs/`; `tests/test_docs.py` checks that they are up to date.

A generated part stands between two comments that name it:

    <!-- generated: store keys -->
    ...
    <!-- end -->
"""

import re
import sys
from argparse import Action
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from firearrow.broker.config import BrokerConfig
from firearrow.cli.commands import PROGRAM, TOP, CommandGroup
from firearrow.cli.examples import EXAMPLES
from firearrow.cli.mqadmin.table import ROWS, Row
from firearrow.cli.parser import CommandParser, front_parser, named
from firearrow.cli.quickcompletion import FILES, KEYS, MANY, NO_VALUE, TABLE, Argument
from firearrow.config.demands import DEMANDS
from firearrow.config.table import ConfigKey, ServerConfig, keys
from firearrow.controller.config import ControllerConfig
from firearrow.namesrv.config import NamesrvConfig
from firearrow.proxy.config import ProxyConfig
from firearrow.spark.options import as_markdown
from firearrow.store.config import StoreConfig
from firearrow.store.offline import INVARIANTS
from firearrow.wire.codes import ResponseCode
from firearrow.wire.meanings import MEANINGS, raised_as
from tools.reference import client_reference, error_table, testing_reference

DOCS = Path(__file__).parent.parent / "docs"
_PART = re.compile(r"(<!-- generated: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(page: str) -> str:
    """Return the page with every generated part up to date."""
    return _PART.sub(lambda match: f"{match[1]}\n{PARTS[match[2]]()}\n{match[3]}", page)


def key_table(struct: type[ServerConfig]) -> str:
    """Return the Markdown table of a struct's keys."""
    rows = ["| key | default | allowed | changes | meaning |", "|---|---|---|---|---|"]
    rows += [
        f"| `{key.name}` | {_default(key)} | {_cell(key.allowed)} | "
        f"{'at once' if key.is_live else 'at the start'} | {key.description} |"
        for key in keys(struct).values()
    ]
    return "\n".join(rows) + "\n"


def demand_table() -> str:
    """Return the Markdown table of unsupported features that a configuration may demand."""
    asked: dict[str, list[str]] = {}
    for name, demand in DEMANDS.items():
        asked.setdefault(demand.what, []).append(f"`{name}`")
    rows = ["| asked for | by |", "|---|---|"]
    rows += [f"| {what} | {', '.join(names)} |" for what, names in asked.items()]
    return "\n".join(rows) + "\n"


def option_tables() -> str:
    """Return a heading and a Markdown table for the shared options, and for every command."""
    shared = (_shared_table(prefix, heading) for prefix, heading in SHARED.items())
    return "\n".join([*shared, *map(_option_table, commands())])


def _shared_table(prefix: str, heading: str) -> str:
    options = [option for option in front_parser().arguments if option.dest.startswith(prefix)]
    return "\n".join([f"## {heading}\n", *_option_rows(options)]) + "\n"


def commands(group: CommandGroup = TOP, name: str = PROGRAM) -> Iterator[CommandParser]:
    """Yield the parser of every command of the command line except `mqadmin`'s; for a group, its subcommands."""
    for word, command in group.commands.items():
        loaded = command.load()
        parser = CommandParser(f"{name} {word}", command.summary, loaded)
        if parser.function is not None:
            yield parser
        if isinstance(loaded, CommandGroup):
            yield from commands(loaded, parser.prog)


def _option_table(command: CommandParser) -> str:
    own = [option for option in command.arguments if not option.dest.startswith(tuple(SHARED))]
    parts = [f"## {command.prog}\n", f"{command.description}\n"]
    parts += [*_option_rows(own), ""] if own else []
    links = [
        f"[{heading.lower()}](#{heading.lower().replace(' ', '-')})"
        for prefix, heading in SHARED.items()
        if any(option.dest.startswith(prefix) for option in command.arguments)
    ]
    parts += [f"It has the {' and the '.join(links)}{', too' if own else ''}.\n"] if links else []
    examples = "".join(f"    {example}\n" for example in EXAMPLES[command.prog])
    return "\n".join(parts) + f"\nFor example:\n\n{examples}"


SHARED = {"cluster.": "Options of a cluster", "output.": "Options of the output"}
"""Headings of the options that many commands have, by the beginning of their names."""


def completion_table() -> str:
    """Return the table of commands and arguments that completes command lines."""
    shared = map(_shared_rows, SHARED)
    own = [_completed(PROGRAM, "", "co", ())]
    own += [_completed_command(parser) for parser in _parsers(TOP, PROGRAM)]
    for row in ROWS:
        options = [
            Argument(
                f"-{it.short},--{it.long}" if it.short else f"--{it.long}", "?" if it.takes_value else NO_VALUE, ""
            )
            for it in row.options()
        ]
        own.append(_completed(f"{PROGRAM} mqadmin {row.name}", row.summary, "", options))
    servers = (StoreConfig, BrokerConfig, NamesrvConfig, ControllerConfig, ProxyConfig)
    names = sorted({name for struct in servers for name in keys(struct)})
    return "".join([*shared, _completed(f"{KEYS}.", "", "", [Argument(name, "?", "") for name in names]), *own])


def _parsers(group: CommandGroup, name: str) -> Iterator[CommandParser]:
    for word, command in group.commands.items():
        loaded = command.load()
        yield CommandParser(f"{name} {word}", command.summary, loaded)
        if isinstance(loaded, CommandGroup):
            yield from _parsers(loaded, f"{name} {word}")


def _completed_command(parser: CommandParser) -> str:
    own = [option for option in parser.arguments if not option.dest.startswith(tuple(SHARED))]
    flags = "".join(
        prefix[0] for prefix in SHARED if any(option.dest.startswith(prefix) for option in parser.arguments)
    )
    summary = (parser.description or "").removesuffix(".")
    return _completed(parser.prog, summary, flags, [_argument(option, parser) for option in own])


def _shared_rows(prefix: str) -> str:
    parser = front_parser()
    options = [option for option in parser.arguments if option.dest.startswith(prefix)]
    return _completed(prefix, "", "", [_argument(option, parser) for option in options])


def _argument(option: Action, parser: CommandParser) -> Argument:
    kind = parser.completed.get(option)
    if option.nargs == 0:
        value = NO_VALUE
    elif kind:
        value = f"@{kind}{'=' if str(option.metavar).startswith('KEY=') else ''}"
    elif option.choices:
        value = "|".join(map(str, option.choices))
    else:
        value = FILES if option.type is Path else "?"
    is_many = option.nargs in ("*", "+") or type(option).__name__ == "_AppendAction"
    text = (option.help or "").replace("%%", "%")
    return Argument(",".join(option.option_strings), value + (MANY if is_many else ""), text)


def _completed(words: str, summary: str, flags: str, arguments: Iterable[Argument]) -> str:
    rows = ["\t".join([words, summary, flags]), *(f"\t{it.names}\t{it.value}\t{it.help}" for it in arguments)]
    return "".join(f"{row}\n" for row in rows)


def _option_rows(options: list[Action]) -> list[str]:
    rows = [f"| {_names(option)} | {_cell((option.help or '').replace('%%', '%'))} |" for option in options]
    return ["| option | meaning |", "|---|---|", *rows]


def _names(option: Action) -> str:
    names = named(option).replace(", ", "`, `")
    return f"`{_cell(names)}`"


def invariant_table() -> str:
    """Return the Markdown table of the invariants that verification checks."""
    rows = ["| id | what holds | otherwise | for whom | what repair does |", "|---|---|---|---|---|"]
    rows += [
        f"| `{row.id}` | {row.holds} | {row.severity.value} | {row.affects} | {row.repair.value} |"
        for row in INVARIANTS.values()
    ]
    return "\n".join(rows) + "\n"


def code_table() -> str:
    """Return the Markdown table of response codes."""
    rows = ["| code | name | raised as | cause | cure |", "|---|---|---|---|---|"]
    rows += [
        f"| {code} | `{code.name}` | {_raised(code)} | {meaning.cause} | {meaning.cure} |"
        for code, meaning in MEANINGS.items()
    ]
    return "\n".join(rows) + "\n"


def _raised(code: ResponseCode) -> str:
    return "" if code is ResponseCode.SUCCESS else f"`{raised_as(code)}`"


def mqadmin_table() -> str:
    """Return the Markdown tables of `mqadmin`'s supported and unsupported commands."""
    rows = ["| command | options | effect |", "|---|---|---|"]
    rows += [
        f"| `{row.name}` | {' '.join(_mqadmin_options(row))} | {row.summary} |" for row in ROWS if row.is_supported
    ]
    missing: dict[str, list[str]] = {}
    for row in ROWS:
        if not row.is_supported:
            missing.setdefault(row.summary, []).append(f"`{row.name}`")
    rows += ["", "Not supported:", "", "| commands | why |", "|---|---|"]
    rows += [f"| {', '.join(names)} | {why} |" for why, names in missing.items()]
    return "\n".join(rows) + "\n"


def _mqadmin_options(row: Row) -> Iterator[str]:
    for option in row.options():
        if option.name not in ("h", "n"):
            yield f"`-{option.short}`" if option.short else f"`--{option.long}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _default(key: ConfigKey) -> str:
    if key.name in DEPENDS:
        return DEPENDS[key.name]
    text = str(key.default).lower() if isinstance(key.default, bool) else str(key.default)
    return f"`{text}`" if text else "empty"


# Defaults that the machine decides.
DEPENDS = {
    "storePathRootDir": "`store` in the home directory",
    "brokerName": "name of the host",
    "proxyName": "name of the host",
    "kvConfigPath": "`namesrv/kvConfig.json` in the home directory",
    "configStorePath": "`namesrv/namesrv.properties` in the home directory",
}

PARTS: dict[str, Callable[[], str]] = {
    "store keys": lambda: key_table(StoreConfig),
    "broker keys": lambda: key_table(BrokerConfig),
    "name server keys": lambda: key_table(NamesrvConfig),
    "controller keys": lambda: key_table(ControllerConfig),
    "proxy keys": lambda: key_table(ProxyConfig),
    "demands": demand_table,
    "commands": option_tables,
    "response codes": code_table,
    "mqadmin commands": mqadmin_table,
    "invariants": invariant_table,
    "spark options": as_markdown,
    "client reference": client_reference,
    "testing reference": testing_reference,
    "errors": error_table,
}


def stale() -> Iterator[tuple[Path, str]]:
    """Yield each file that the code has outdated, with its text of now."""
    for path in sorted(DOCS.rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        if (fresh := render(page)) != page:
            yield path, fresh
    table = Path(TABLE)
    if (fresh := completion_table()) != table.read_text(encoding="utf-8"):
        yield table, fresh


def main() -> int:
    """Write the generated parts, or with ``--check`` name the files whose parts are stale."""
    found = list(stale())
    is_check = sys.argv[1:] == ["--check"]
    for path, fresh in found:
        if is_check:
            print(f"{path} is stale: run `make docs`")
        else:
            path.write_text(fresh, encoding="utf-8")
            print(f"wrote {path}")
    return int(is_check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
