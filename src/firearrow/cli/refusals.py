"""A command line that is wrong: two lines, the usage and what is wrong.

$ firearrow serve --stroe data
usage: firearrow serve [options]
firearrow serve: error: unrecognized arguments: --stroe; did you mean --store?
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NoReturn

from firearrow.cli.nearest import proposal

if TYPE_CHECKING:
    from cyclopts.argument import Argument
    from cyclopts.exceptions import CoercionError, CycloptsError

    from firearrow.cli.described import Described

USAGE: Final = 2
USAGE_OF: Final = {"firearrow check": 3}  # to monitoring, 2 means that the cluster is ill


class WrongCommandLine(Exception):
    """Options that each may be given, but not so; the message is a sentence."""


def exclude(options: object, *names: str) -> bool:
    """Raise WrongCommandLine if more than one of these options is given; tell whether one is."""
    given = [_flag(name) for name in names if getattr(options, name)]
    if len(given) > 1:
        raise WrongCommandLine(f"argument {given[1]}: not allowed with argument {given[0]}")
    return bool(given)


def require_one(options: object, *names: str) -> None:
    """Raise WrongCommandLine unless one of these options is given, and no other."""
    if not exclude(options, *names):
        words = " ".join(map(_flag, names))
        raise WrongCommandLine(f"one of the arguments {words} is required")


def require_order(since: int | None, until: int | None, *, included: bool = True) -> None:
    """Raise WrongCommandLine where --until is before --since, or excludes it."""
    if since is None or until is None or since < until or (included and since == until):
        return
    raise WrongCommandLine("argument --until: it is not after --since, so nothing is between them")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def refuse(command: Described, reason: str) -> NoReturn:
    """End with 2 (`check`: 3) and two lines on standard error: the usage, and what is wrong."""
    sys.stderr.write(f"usage: {command.usage}\n{command.name}: error: {reason}\n")
    raise SystemExit(USAGE_OF.get(command.name, USAGE))


def without_command(command: Described) -> str:
    """Say that a group was asked for without saying what of it."""
    return f"the following arguments are required: COMMAND (one of {_listed(command)})"


def reason_of(error: CycloptsError, command: Described) -> str:
    """Say what is wrong, as argparse does."""
    from cyclopts.exceptions import (
        CoercionError,
        MissingArgumentError,
        UnknownCommandError,
        UnknownOptionError,
        UnusedCliTokensError,
    )

    match error:
        case UnknownCommandError():
            word = (error.unused_tokens or [""])[0]
            like = proposal(word, [name for name, _ in command.commands])
            known = "" if like else f" (choose from {_listed(command)})"
            return f"argument COMMAND: invalid choice: {word!r}{known}{like}"
        case UnknownOptionError():
            name = error.token.keyword or error.token.value
            given = error.root_input_tokens or []
            word = next((word for word in given if word.partition("=")[0] == name), name)
            return f"unrecognized arguments: {word}{proposal(name, command.option_names())}"
        case UnusedCliTokensError():
            words = error.unused_tokens or [""]
            like = proposal(words[0], [name for name, _ in command.commands])
            return f"unrecognized arguments: {' '.join(words)}{like}"
        case MissingArgumentError() if error.argument is not None:
            name = error.keyword or _named(error.argument)
            if error.keyword or error.argument.tokens:
                return f"argument {name}: expected one argument"
            return f"the following arguments are required: {name}"
        case CoercionError() if error.argument is not None:
            return f"argument {_named(error.argument)}: {_of_value(error)}"
    return str(error)


def _named(argument: Argument) -> str:
    """An option by its name, an argument in its place as the usage has it."""
    in_place = argument.index is not None
    return (argument.parameter.metavar if in_place else None) or argument.name


def _of_value(error: CoercionError) -> str:
    if error.msg is not None:
        return str(error.msg)
    assert error.argument is not None, "`reason_of` has asked"
    value = error.token.value if error.token is not None else ""
    if choices := error.argument.get_choices():
        chosen = ", ".join(map(repr, choices))
        return f"invalid choice: {value!r} (choose from {chosen}){proposal(value, choices)}"
    kinds = {int: "a whole number", float: "a number", bool: "true or false"}
    kind = kinds.get(error.target_type) if error.target_type is not None else None
    return f"{value!r} is not {kind or 'a value that it can have'}"


def _listed(command: Described) -> str:
    return ", ".join(repr(name) for name, _ in command.commands)
