"""Operations: the commands that pages, the API and agents may run, each with the arguments and tables of its command.

An operation is a row of `OPERATIONS`. Its form, its JSON schema and its checks follow from the command's function.
No operation takes the path of a file, because a browser must not choose files of this machine. A change is previewed
unless `run` is given an undo file to write.
"""

from __future__ import annotations

from argparse import Action
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from inspect import isawaitable
from pathlib import Path
from typing import Final, NamedTuple

from firearrow.cli.cluster.options import ClusterOptions, Target
from firearrow.cli.commands import PROGRAM
from firearrow.cli.output.listing import Output
from firearrow.cli.output.reports import Cell, Table
from firearrow.cli.parameters import WrongOptions, own_files
from firearrow.cli.parser import END_OF_OPTIONS, CommandParser, parser_for
from firearrow.client.admin import Admin

Values = Mapping[str, Sequence[str]]
"""Words of a form or of an agent by the name of the field; several for a field that may be repeated."""

ON: Final = "yes"
OFF: Final = "no"
ON_OFF: Final = (ON, OFF)
SECRET: Final = "password"
"""Field that neither an address nor a page may have."""
BODY: Final = "body"
"""Field that may be empty: without it, a command would wait for standard input."""
_OWN: Final = ("cluster.", "output.")
_SET: Final = ("apply", "preview")
_PLACES: Final = (Path, own_files)
"""Types of places of files."""


class Operation(NamedTuple):
    """A command by its words. ``changes`` marks those that change a cluster."""

    words: str
    changes: bool = False

    @property
    def name(self) -> str:
        """Name in addresses and for agents."""
        return self.words.replace(" ", "-")

    @property
    def undo(self) -> Operation:
        """Operation that reads the undo files of this one; KeyError without it."""
        return OPERATIONS[f"{self.words.partition(' ')[0]}-undo"]

    @property
    def lasting(self) -> str:
        """Sentence that says why there is no undo; empty with one."""
        return LASTING.get(self.words, "")

    @property
    def takes_file(self) -> bool:
        """Tell whether it reads an undo file, so that only the page of a change can run it."""
        return self.words.endswith(" undo")


OPERATIONS: Final[Mapping[str, Operation]] = {
    row.name: row
    for row in (
        *map(
            Operation,
            (
                "check", "doctor", "lag", "errors", "sql", "cluster list", "broker list", "broker show",
                "broker stats", "topic list", "topic show", "topic stats", "topic routes", "group list",
                "group show", "group clients", "message cat", "message list", "message get", "message trace",
                "message way", "offset get", "dlq list", "dlq inspect", "config get", "broker disk",
                "broker retention", "topic health", "config explain", "namesrv list", "namesrv brokers",
                "namesrv keys", "client show", "client topics", "client queues", "client stacks",
                "producer list", "message pending", "transaction list", "lite list", "lite quotas", "lite lag",
                "lite show", "lite client", "pop show", "pop invisible", "pop revive", "user list", "acl list",
                "acl test", "replica list", "replica sets", "replica controllers",
            ),
        ),
        *(
            Operation(words, changes=True)
            for words in (
                "topic create", "topic delete", "topic undo", "group create", "group delete", "group undo",
                "message send", "message resend", "offset seek", "offset reset", "offset clone", "offset undo",
                "dlq resend", "config set", "config undo", "cluster undrain", "cluster undo", "client consume",
                "message recall", "transaction resume", "replica elect", "replica undo", "user create",
                "user delete", "user undo", "acl allow", "acl deny", "acl remove", "acl undo",
            )
        ),
    )
}  # fmt: skip


_AGAIN: Final = "An undo can't be undone, but the change that it has undone can be made again."
LASTING: Final[Mapping[str, str]] = {
    "message send": (
        "A message that is sent stays: consumers may read it at once. "
        "A delayed one can be recalled until it is due, by the recall handle of its send."
    ),
    "message resend": "A message that is sent again stays: consumers may read it at once.",
    "dlq resend": "A message that is sent again stays: consumers may read it at once.",
    "message recall": "A recall stays: the broker has dropped the message, and only a new one can take its place.",
    "transaction resume": "A check can't be taken back: the producer's answer commits or discards the message.",
    "client consume": "No broker can take back what a consumer has done with a message.",
    **dict.fromkeys(("topic undo", "group undo", "user undo", "acl undo"), _AGAIN),
    "cluster undo": "Clients send to the broker again when it is undrained once more.",
}
"""Reasons for which changes have no undo, by the words of their commands."""


class Field(NamedTuple):
    """An input of an operation. ``kind`` is that of an HTML input, or ``choice``, or ``switch``.

    ``form`` shows how a value is written, such as ``earliest|latest|TIME``, where the name does not tell it.
    """

    name: str
    label: str
    help: str
    kind: str
    choices: Sequence[str] = ()
    is_needed: bool = False
    is_list: bool = False
    form: str = ""


@cache
def parser_of(operation: Operation) -> CommandParser:
    """Give the parser of an operation's command."""
    parser, rest = parser_for(operation.words.split())
    assert not rest, f"{operation.words} is a command"
    parser.raise_errors()
    return parser


@cache
def fields_of(operation: Operation) -> tuple[Field, ...]:
    """Give the inputs of an operation, in the order of its command."""
    parser = parser_of(operation)
    return tuple(_field(action, parser) for action in parser.arguments if _is_given(action))


def summary_of(operation: Operation) -> str:
    """Give the purpose of an operation, a sentence."""
    return parser_of(operation).description or ""


def _is_given(action: Action) -> bool:
    return not (action.dest.startswith(_OWN) or action.dest in _SET or action.type in _PLACES)


def _field(action: Action, parser: CommandParser) -> Field:
    name = action.dest.rpartition(".")[2]
    kind = "number" if action.type is int else "text"
    choices: Sequence[str] = tuple(action.choices or ())
    if action.nargs == 0:
        kind, choices = ("switch", ()) if len(action.option_strings) == 1 else ("choice", ON_OFF)
    elif choices:
        kind = "choice"
    if name == SECRET:
        kind = "password"
    is_list = action.nargs in ("*", "+") or type(action).__name__ == "_AppendAction"
    label = name.replace("_", " ")
    help_text = (action.help or "").replace("%%", "%")
    form = str(action.metavar or "")
    form = form if not choices and not form.replace("-", "").replace("_", "").isalnum() else ""
    return Field(name, label, help_text, kind, choices, bool(action.required), is_list, form)


class Ran(NamedTuple):
    """Result of an operation: its tables, and the exit code of its command."""

    tables: Sequence[Table]
    code: int

    @property
    def table(self) -> Table:
        """The only table."""
        assert len(self.tables) == 1, "most commands show one table"
        return self.tables[0]


class OpenCluster(ClusterOptions):
    """A cluster whose administrator is open already."""

    opened: Admin
    where: Target
    lake: str | None = None

    def target(self) -> Target:
        """Give the cluster."""
        return self.where

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[Admin]:
        """Give the administrator, which stays open."""
        yield self.opened


async def run(
    operation: Operation, values: Values, cluster: OpenCluster, undo_file: Path | None = None, file: Path | None = None
) -> Ran:
    """Run an operation. Without ``undo_file``, the undo file to write, a change is only previewed.

    ``file`` is the undo file of an operation that undoes another. Raises WrongOptions for wrong values, and the errors
    of the command.
    """
    parser = parser_of(operation)
    applies = undo_file is not None
    words = words_of(parser, values)
    if file is not None:
        words.append(str(file))
    bound = parser.bound(words)
    given = bound.arguments
    captured = Captured(kept=[])
    given["cluster"], given["output"] = cluster, captured
    if "apply" in given:
        given["apply"] = applies
    elif "preview" in given:
        given["preview"] = not applies
    elif operation.changes and not applies:
        return Ran(_with_warning(operation, [_intention(operation, values)]), 0)
    if "lake" in given:
        given["lake"] = cluster.lake
    if "undo_file" in given:
        given["undo_file"] = undo_file
    function = parser.function
    assert function is not None, "an operation is a command"
    code = function(*bound.args, **bound.kwargs)
    code = await code if isawaitable(code) else code
    return Ran(captured.shown() if applies else _with_warning(operation, captured.shown()), code or 0)


def _with_warning(operation: Operation, tables: Sequence[Table]) -> Sequence[Table]:
    """Say above a preview why the change will have no undo."""
    if not operation.lasting:
        return tables
    first, *others = tables
    return [first.changed(note=f"{first.note} {operation.lasting}".strip()), *others]


def words_of(parser: CommandParser, values: Values) -> list[str]:
    """Give the words of a command line; none of its values can be taken for an option."""
    head: list[str] = []
    tail: list[str] = []
    known = {action.dest.rpartition(".")[2]: action for action in parser.arguments if _is_given(action)}
    for name in values:
        if name not in known:
            raise WrongOptions(f"there is no field {name!r}")
    for name, action in known.items():
        texts = [text for text in values.get(name, ()) if text != ""]
        if not action.option_strings:
            tail += texts or ([""] if name == BODY else [])
        elif action.nargs != 0:
            head += [f"{action.option_strings[-1]}={text}" for text in texts]
        elif texts:
            if texts[0] not in ON_OFF:
                raise WrongOptions(f"{name} is {' or '.join(ON_OFF)}, not {texts[0]!r}")
            head += _switched(action, on=texts[0] == ON)
    return [*head, END_OF_OPTIONS, *tail] if tail else head


def _switched(action: Action, *, on: bool) -> list[str]:
    names = action.option_strings
    return [names[0]] if on else list(names[1:])


def _intention(operation: Operation, values: Values) -> Table:
    """Make a preview of the entered values for a command that has no preview."""
    rows: list[list[Cell]] = [[name, ", ".join(filter(None, texts))] for name, texts in values.items() if any(texts)]
    return Table(f"{PROGRAM} {operation.words}", ("field", "value"), rows, "Nothing is changed yet.")


class Captured(Output):
    """Output of a command that keeps its tables instead of printing them."""

    json: bool = True
    kept: list[Table]

    def show(self, table: Table) -> None:
        """Keep a table."""
        self.kept.append(table)

    def show_row(self, columns: Sequence[str], row: Sequence[Cell], line: str, *, first: bool) -> None:
        """Keep a row of an endless output."""
        rows = [row] if first else [*self.kept.pop().rows, row]
        self.kept.append(Table("", columns, rows))

    def shown(self) -> list[Table]:
        """Give the tables; one without rows for a command that found nothing to print."""
        return self.kept or [Table("", (), [])]
