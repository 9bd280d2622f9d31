"""`firearrow completion`, and the answers to a completing shell: commands, options, names of the cluster."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from firearrow.cli.commands import PROGRAM
from firearrow.cli.parameters import NamesOf, Parameter
from firearrow.errors import FirearrowError

if TYPE_CHECKING:
    from firearrow.client.admin import Admin

ANSWER_SECONDS_MAX: Final = 1.0
WARMING: Final = """
sh -c 'export _ARGCOMPLETE=1 _ARGCOMPLETE_STDOUT_FILENAME=/dev/null
for line in "firearrow topic show " "firearrow group show "; do
    COMP_LINE=$line COMP_POINT=${#line} nice firearrow
done </dev/null >/dev/null 2>&1 &'
"""
"""Two keys, as a shell would ask for them, whose answers nobody reads: the first key of a user finds the names.

The background belongs to a shell that ends, so the one that starts neither waits nor tells of a job. All shells read
this alike.
"""
UNLESS_A_FUNCTION: Final = '[[ -n "${ZSH_VERSION-}" && $zsh_eval_context == *func ]] ||'
"""The script may also be a function that zsh calls at each key."""


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter("the shell")], /) -> None:
    """Print the completion script for a shell, which also asks for names in the background."""
    from argcomplete.shell_integration import shellcode

    warming = WARMING if shell == "fish" else f"{UNLESS_A_FUNCTION}{WARMING}"
    sys.stdout.write(shellcode([PROGRAM], shell=shell) + warming)


def complete() -> None:
    """Answer a shell that completes a command line, and end the process."""
    from argcomplete import autocomplete
    from argcomplete.lexers import split_line

    from firearrow.cli.parser import parser_for

    line, point = os.environ["COMP_LINE"], int(os.environ["COMP_POINT"])
    words = split_line(line, point)[3]
    program_words = int(os.environ["_ARGCOMPLETE"])
    parser, rest = parser_for(words[program_words:])
    # argcomplete takes the words of the command for the name of a program
    os.environ["_ARGCOMPLETE"] = str(len(words) - len(rest))
    for action, kind in parser.completed.items():
        action.completer = _Completer(kind)  # type: ignore[attr-defined] # of argcomplete
    autocomplete(parser.whole())


class _Completer:
    """Names of a kind, for argcomplete."""

    def __init__(self, kind: NamesOf) -> None:
        self._kind: Final = kind

    def __call__(self, parsed_args: Namespace, **_: object) -> Iterable[str]:
        prefix = "cluster."
        named = {place.removeprefix(prefix): it for place, it in vars(parsed_args).items() if place.startswith(prefix)}
        return names_of(self._kind, named)


def names_of(kind: NamesOf, options: Mapping[str, Any]) -> Iterable[str]:
    """Give the names of a kind; ``options`` are fields of `ClusterOptions`."""
    if kind == "topics":
        return _of_cluster(options, _topic_names)
    if kind == "groups":
        return _of_cluster(options, _group_names)
    if kind == "contexts":
        from firearrow.cli.cluster.contexts import load_contexts

        with suppress(FirearrowError):
            return load_contexts().contexts
    return ()  # keys are in the table of `firearrow.cli.quickcompletion` alone


def _of_cluster(options: Mapping[str, Any], ask: Callable[[Admin], Awaitable[Iterable[str]]]) -> Iterable[str]:
    """Ask the cluster for names; none if it does not answer in time."""
    import asyncio

    from firearrow.cli.cluster.options import ClusterOptions

    async def asked() -> Iterable[str]:
        async with asyncio.timeout(ANSWER_SECONDS_MAX), ClusterOptions(**options).admin() as admin:
            return await ask(admin)

    with suppress(OSError, FirearrowError):
        return asyncio.run(asked())
    return ()


async def _topic_names(admin: Admin) -> Iterable[str]:
    from firearrow.message import names

    return filter(names.is_of_users, await admin.topics.names())


async def _group_names(admin: Admin) -> Iterable[str]:
    from firearrow.cli.cluster.masters import group_names

    return await group_names(admin)
