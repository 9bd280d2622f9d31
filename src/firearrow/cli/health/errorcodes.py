"""`firearrow errors`: meaning, cause and cure of response codes."""

from __future__ import annotations

import shutil
import textwrap
from typing import Annotated, Final

from firearrow.cli.failures import NothingFound
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table
from firearrow.cli.parameters import valued
from firearrow.config.kinds import proposal
from firearrow.wire.codes import ResponseCode
from firearrow.wire.meanings import MEANINGS, raised_as

COLUMNS: Final = ("code", "name", "raisedAs", "cause", "cure")
CONTROLLER_CODES: Final = range(2015, 2017)
TEXT_COLUMNS_MAX: Final = 100


def errors(
    code: Annotated[str | None, valued("CODE", "number or name of the code (default: all)")] = None,
    /,
    *,
    output: Output = PLAIN,
) -> None:
    """Explain a response code: its cause and its cure."""
    codes = list(ResponseCode) if code is None else [code_named(code)]
    if output.form:
        output.show(Table("", COLUMNS, [_row(one) for one in codes]))
    else:
        print("\n\n".join(map(_text, codes)))


def code_named(text: str) -> ResponseCode:
    """Response code by its number, or by its name in any case; NothingFound proposes a near name."""
    name = text.strip().upper().replace("-", "_")
    if name in ResponseCode.__members__:
        return ResponseCode[name]
    if not name.isascii() or not name.isdigit():
        hint = proposal(name, ResponseCode.__members__)
        raise NothingFound(f"there is no response code {text!r}{hint}")
    number = int(name)
    if number in CONTROLLER_CODES:
        raise NothingFound(f"{number} is of RocketMQ's controller on JRaft: the remark explains it")
    if number not in ResponseCode.__members__.values():
        raise NothingFound(f"there is no response code {number}")
    return ResponseCode(number)


def _row(code: ResponseCode) -> list[Cell]:
    return [int(code), code.name, raised_as(code), *MEANINGS[code]]


def _text(code: ResponseCode) -> str:
    width = min(TEXT_COLUMNS_MAX, shutil.get_terminal_size().columns)
    meaning = MEANINGS[code]
    return "\n".join(
        [
            f"{code} {code.name} (raised as {raised_as(code)})",
            textwrap.fill(meaning.cause, width, initial_indent="  ", subsequent_indent="  "),
            textwrap.fill(f"-> {meaning.cure}", width, initial_indent="  ", subsequent_indent="     "),
        ]
    )
