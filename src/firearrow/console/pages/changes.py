"""Operations as forms: a preview before each change, an undo after it, and the log of all changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import join
from typing import Final
from urllib.parse import urlencode

from starlette.responses import RedirectResponse, Response

from firearrow.cli.commands import PROGRAM
from firearrow.cli.failures import NothingFound, sentence
from firearrow.cli.output.reports import Cell, Table
from firearrow.cli.parameters import WrongOptions
from firearrow.cli.parser import END_OF_OPTIONS
from firearrow.console.applying import apply
from firearrow.console.changes import LoggedChange
from firearrow.console.forms import first, form_of, grouped
from firearrow.console.operations import (
    LASTING,
    OPERATIONS,
    SECRET,
    Field,
    Operation,
    Ran,
    Values,
    fields_of,
    parser_of,
    run,
    summary_of,
    words_of,
)
from firearrow.console.page import Declared, Page, View
from firearrow.errors import FirearrowError

LOG: Final = ("at", "user", "operation", "values", "state", "reason", "undo", "change")
STEP: Final = "step"
APPLY: Final = "apply"


def _operation(view: View) -> Operation:
    name = view.part("operation")
    operation = OPERATIONS.get(name)
    if operation is None or operation.takes_file:
        raise NothingFound(f"There is no operation {name!r}.")
    return operation


async def form(view: View) -> Page:
    """Show an operation's form with the values of the address, and below it a change's preview or a query's result."""
    operation = _operation(view)
    values = _known(operation, grouped(view.request.query_params.multi_items()))
    needed = [field for field in fields_of(operation) if field.is_needed]
    is_whole = all(first(values, field.name) for field in needed)
    if operation.changes and is_whole and any(values.values()) and not view.only_shows:
        return await _previewed(view, operation, values)
    if operation.changes or not is_whole:
        return _page(view, operation, values)
    return _page(view, operation, values, await run(operation, values, view.cluster.options))


async def submit(view: View) -> Page:
    """Preview a change, or carry it out."""
    operation = _operation(view)
    values = await form_of(view.request)
    step = first({STEP: values.pop(STEP, [])}, STEP)
    if step != APPLY:
        return await _previewed(view, operation, values)
    return await _applied(view, operation, values)


async def undo_preview(view: View) -> Page:
    """Preview the undo of a change."""
    log, operation = _undone(view)
    ran = await run(operation, {}, view.cluster.options, file=view.changes.undo_file(log.id))
    return _page(view, operation, {}, ran, step="preview", undoes=log)


async def undo(view: View) -> Page:
    """Undo a change."""
    undone, operation = _undone(view)
    await form_of(view.request)
    return await _applied(view, operation, {}, undone)


def _undone(view: View) -> tuple[LoggedChange, Operation]:
    try:
        log = view.changes.get(view.part("change"))
    except KeyError:
        raise NothingFound("There is no such change.") from None
    if log.cluster != view.cluster.name or log.undo is None:
        raise NothingFound("This change of this cluster can't be undone: it has no undo file.")
    return log, OPERATIONS[log.operation.replace(" ", "-")].undo


async def _previewed(view: View, operation: Operation, values: Values) -> Page:
    try:
        ran = await run(operation, values, view.cluster.options)
    except (WrongOptions, FirearrowError, OSError) as error:
        return _page(view, operation, values, trouble=sentence(error))
    return _page(view, operation, values, ran, step="preview")


async def _applied(view: View, operation: Operation, values: Values, undoes: LoggedChange | None = None) -> Page:
    done = await apply(view.changes, view.user, view.cluster, operation, values, undoes)
    step = "form" if done.ran is None else "done"
    return _page(view, operation, values, done.ran, step=step, trouble=done.trouble, log=done.log, undoes=undoes)


def _page(
    view: View,
    operation: Operation,
    values: Values,
    ran: Ran | None = None,
    *,
    step: str = "form",
    trouble: str = "",
    log: LoggedChange | None = None,
    undoes: LoggedChange | None = None,
) -> Page:
    shown = fields_of(operation) if undoes is None else ()
    secrets = [field for field in shown if field.name == SECRET and values.get(SECRET)]
    values = {name: texts for name, texts in values.items() if name != SECRET}
    tables = [table.changed(note=_note(table.note, step)) for table in ran.tables] if ran is not None else []
    return Page(
        "operation.html",
        f"Undo: {undoes.operation}" if undoes is not None else summary_of(operation).removesuffix("."),
        {
            "operation": operation,
            "fields": [(field, _texts(field, values)) for field in shown],
            "secrets": secrets,
            "values": values,
            "tables": [view.table(table, f"{number}-") for number, table in enumerate(tables)],
            "step": step,
            "failed": bool(ran and ran.code),
            "trouble": trouble,
            "log": log,
            "undoes": undoes,
            "line": command_line(operation, values),
            "action": view.href("undo", undoes.id) if undoes is not None else view.href("do", operation.name),
        },
        trail=[("Changes", view.href("changes"))] if operation.changes else [],
        status=400 if trouble and log is None and view.is_submitted else 200,
    )


def _note(note: str, step: str) -> str:
    """Give the note of a command without what only a command line can do."""
    if step == "form":
        return note
    return ". ".join(part for part in note.split(". ") if "`" not in part and "--apply" not in part)


def _known(operation: Operation, values: Mapping[str, Sequence[str]]) -> Values:
    names = {field.name for field in fields_of(operation)}
    return {name: texts for name, texts in values.items() if name in names and name != SECRET}


def _texts(field: Field, values: Values) -> Sequence[str]:
    return values.get(field.name) or [""]


def command_line(operation: Operation, values: Values) -> str:
    """Give the command that does the same, as it is typed."""
    words = words_of(parser_of(operation), values)
    if END_OF_OPTIONS in words and not any(text.startswith("-") for texts in values.values() for text in texts):
        words.remove(END_OF_OPTIONS)
    return join([PROGRAM, *operation.words.split(), *words])


async def changes(view: View) -> Page:
    """Show the log of changes of this cluster."""
    rows: list[list[Cell]] = [
        [
            it.at,
            it.user,
            it.operation,
            ", ".join(f"{name}={'|'.join(texts)}" for name, texts in it.values.items() if any(texts)),
            it.state,
            it.reason or None,
            "Undo" if it.undo else LASTING.get(it.operation),
            it.id if it.undo else None,
        ]
        for it in view.changes.newest()
        if it.cluster == view.cluster.name
    ]
    table = view.table(Table("Changes", LOG, rows), without=["change"])
    return Page("changes.html", "Changes", {"table": table, "unreadable": view.changes.unreadable})


async def search(view: View) -> Response:
    """Lead to the topic, group or broker of a name, or to the search of messages."""
    words = view.query.get("q", "").strip()
    seen = view.cluster.sampler.seen
    if words in seen.topics or words in await view.cluster.admin.topics.names():
        return RedirectResponse(view.href("topics", words))
    if any(key.group == words for key in seen.groups):
        return RedirectResponse(view.href("groups", words))
    if any(fact.name == words for fact in seen.facts):
        return RedirectResponse(view.href("brokers", words))
    return RedirectResponse(f"{view.href('find')}?{urlencode({'q': words})}")


PAGES: Final = (
    Declared("/do/{operation}", form),
    Declared("/do/{operation}", submit, ("POST",)),
    Declared("/undo/{change}", undo_preview),
    Declared("/undo/{change}", undo, ("POST",)),
    Declared("/changes", changes),
    Declared("/search", search),
)
