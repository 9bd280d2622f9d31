"""Quick answers to a completing shell, by a table of all commands instead of their modules.

A shell waits for each answer, and the modules of a command, with argparse and asyncio, take five times as long as this
one. `tools.write_docs` writes the table, ``completions.tsv``. A line begins a command:

    words of the command    summary    c for the options of a cluster, o for the options of the output

The lines below are its arguments, each behind a tab; an argument in its place has no names:

    names, joined by commas    value    help

The value is ``-`` for none, ``?`` for any, ``@topics`` and the like for names (``=`` if a value follows them),
``@files``, or the choices, joined by bars. ``...`` at its end means that it may be repeated.

`answer` gives None for a line that argcomplete must read: with quotes, with a part of a value behind ``=``, or with a
file. Names of a cluster are kept for a day, and renewed beside the answer after half a minute. The start of a shell
asks for them, too (`firearrow.cli.completion.WARMING`). Even the import of pathlib would take as long as all this.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final

from firearrow.cli.commands import PROGRAM, SHORT_FORMS

TABLE: Final = os.path.join(os.path.dirname(__file__), "completions.tsv")
MANY: Final = "..."
NO_VALUE: Final = "-"
FILES: Final = "@files"
SHARED: Final = {"c": "cluster.", "o": "output."}
KEYS: Final = "keys"
FIELDS: Final = {
    "--name-server": "name_server",
    "--context": "context",
    "--access-key": "user",
    "--secret-file": "secret_file",
    "--tls": "tls",
    "--tls-ca": "tls_ca",
    "--tls-any": "tls_any",
}
"""Options that decide where names come from, and their fields in `ClusterOptions`."""
ENVIRONMENT: Final = ("NAMESRV_ADDR", "FIREARROW_ACCESS_KEY")
FRESH_MS: Final = 30_000
"""Age of names, from which on a child process asks for them again while the shell gets the old ones."""
KEPT_MS: Final = 86_400_000
"""Age up to which names are better than a wait for the cluster.

Few names go in a day, a command refuses one that is gone, and the next key has the new ones.
"""
CLOSED_MAX: Final = 64
"""Descriptors below this are closed in that process; a shell opens no more for a completion."""
ESCAPED: Final = "();<>|&!`$*?[]{} \t"
"""Characters that a shell does not take as they are."""
SEPARATOR: Final = "\v"
PLACE: Final = 8
"""Descriptor that argcomplete's scripts read the answer from."""


class Argument:
    """An option, or an argument in its place, which has no names."""

    def __init__(self, names: str, value: str, text: str) -> None:
        self.names: Final = names
        self.value: Final = value
        self.help: Final = text


class Command:
    """A command of the table. Its lines are read into arguments only when an answer needs them."""

    def __init__(self, summary: str, shared: Sequence[Command]) -> None:
        self.summary: Final = summary
        self.lines: Final[list[str]] = []
        self._shared: Final = shared

    @property
    def arguments(self) -> list[Argument]:
        """Its arguments, those that commands share first."""
        shared = chain.from_iterable(it.arguments for it in self._shared)
        return [*shared, *(Argument(*line[1:].rstrip("\n").split("\t")) for line in self.lines)]


HELP: Final = "\t-h,--help\t-\tshow the help"

Candidates = list[tuple[str, str]]
"""Words that a line may go on with, each with its help."""


def complete() -> bool:
    """Answer the shell that the environment describes; False if argcomplete must."""
    given = os.environ
    line = given["COMP_LINE"].encode()[: int(given["COMP_POINT"])].decode(errors="replace")
    found = answer(line) if given["_ARGCOMPLETE"] == "1" and "_ARGCOMPLETE_DFS" not in given else None
    if found is None:
        return False
    if len(found) == 1 and not found[0][0].endswith(("=", "/")) and given.get("_ARGCOMPLETE_SUPPRESS_SPACE") != "1":
        found = [(f"{found[0][0]} ", found[0][1])]
    is_zsh = given.get("_ARGCOMPLETE_SHELL") == "zsh"
    words = [f"{word}:{text}" if is_zsh else word for word, text in found]
    with open(given.get("_ARGCOMPLETE_STDOUT_FILENAME") or PLACE, "w", encoding="utf-8") as out:
        out.write(given.get("_ARGCOMPLETE_IFS", SEPARATOR).join(words))
    return True


def answer(line: str) -> Candidates | None:
    """Give the words that the last one of a line, which may be empty, can become."""
    words = line.split()
    current = "" if line[-1:].isspace() else words.pop()
    if any(mark in line for mark in "'\"\\") or "=" in current or ":" in current or "--" in words:
        return None
    read = _Line(_table())
    for word in words[1:]:
        if not read.goes_on(word):
            return []
    found = read.candidates(current)
    if found is None or any(mark in word for word, _ in found for mark in ESCAPED):
        return None
    return [it for it in found if it[0].startswith(current)]


class _Line:
    """The words of a line before the last one."""

    def __init__(self, commands: Mapping[str, Command]) -> None:
        self._commands = commands
        self._command = PROGRAM
        self._arguments = commands[PROGRAM].arguments
        self._place = 0
        self._pending: Argument | None = None
        self._given: dict[str, str] = {}

    def goes_on(self, word: str) -> bool:
        """Take a word; False for an option that the command does not have."""
        if self._pending is not None:
            self._given[_long(self._pending)] = word
            self._pending = None
        elif word.startswith("-") and len(word) > 1:
            name, _, value = word.partition("=")
            option = next((it for it in self._arguments if name in it.names.split(",")), None)
            if option is None:
                return False
            self._given[_long(option)] = value
            self._pending = option if option.value != NO_VALUE and not value else None
        elif (command := self._named(word)) in self._commands:
            self._command, self._arguments = command, self._commands[command].arguments
        else:
            self._place += 1
        return True

    def _named(self, word: str) -> str:
        words = SHORT_FORMS.get(word, (word,)) if self._command == PROGRAM else (word,)
        return " ".join([self._command, *words])

    def candidates(self, current: str) -> Candidates | None:
        if self._pending is not None:
            return self._values(self._pending)
        if current.startswith("-"):
            left = [it for it in self._arguments if _long(it) not in self._given or it.value.endswith(MANY)]
            return [(name, it.help) for it in left for name in it.names.split(",") if name]
        places = [it for it in self._arguments if not it.names]
        here = places[min(self._place, len(places) - 1)] if places else None
        if here is None or (self._place >= len(places) and not here.value.endswith(MANY)):
            return self._children()
        values = self._values(here)
        return None if values is None else self._children() + values

    def _children(self) -> Candidates:
        if self._place:
            return []
        start = f"{self._command} "
        named = ((name.removeprefix(start), it.summary) for name, it in self._commands.items() if start in name)
        found = [(word, text) for word, text in named if " " not in word]
        short = SHORT_FORMS if self._command == PROGRAM else {}
        return found + [(word, " ".join(long)) for word, long in short.items()]

    def _values(self, argument: Argument) -> Candidates | None:
        value = argument.value.removesuffix(MANY)
        if value == FILES:
            return None
        if value == "?":
            return []
        if not value.startswith("@"):
            return [(word, "") for word in value.split("|")]
        kind = value.strip("@=")
        if kind == KEYS:
            equals = "=" if value.endswith("=") else ""
            return [(f"{it.names}{equals}", "") for it in self._commands[f"{KEYS}."].arguments]
        options = {field: self._given[name] or True for name, field in FIELDS.items() if name in self._given}
        return [(word, "") for word in names_of(kind, options)]


def names_of(kind: str, options: Mapping[str, str | bool]) -> Sequence[str]:
    """Give the names of a kind that are kept, or those that the cluster has; ``options`` name it."""
    from firearrow.clock import SystemClock

    path = _kept_in(kind, options)
    with suppress(OSError):
        age_ms = SystemClock().now_ms() - 1000 * os.stat(path).st_mtime
        if 0 <= age_ms < KEPT_MS:
            with open(path, encoding="utf-8") as file:
                found = file.read().splitlines()
            if age_ms >= FRESH_MS:
                _renew(path, kind, options)
            return found
    return _asked(path, kind, options)


def _asked(path: str, kind: str, options: Mapping[str, str | bool]) -> Sequence[str]:
    from firearrow.cli import completion

    found = [*completion.names_of(kind, options)]  # type: ignore[arg-type] # of the table
    if found:
        with suppress(OSError):  # nothing is kept where nothing can be written
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
                file.write("\n".join(found))
            os.replace(file.name, path)
    return found


def _renew(path: str, kind: str, options: Mapping[str, str | bool]) -> None:
    """Ask the cluster in a child process, for the next key; forget the names of one that does not answer.

    The shell does not wait, because the child has none of its files.
    """
    os.utime(path)  # another key asks no second time meanwhile
    if os.fork() == 0:
        try:
            os.setsid()
            os.closerange(0, CLOSED_MAX)
            for _ in range(3):
                os.open(os.devnull, os.O_RDWR)
            if not _asked(path, kind, options):
                os.unlink(path)
        finally:
            os._exit(0)


def _kept_in(kind: str, options: Mapping[str, str | bool]) -> str:
    """Give the file for the names of a cluster, which options, environment and contexts name."""
    given = os.environ
    contexts = os.path.join(given.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "firearrow/contexts.toml")
    with suppress(OSError):
        contexts += f" {os.stat(contexts).st_mtime_ns}"
    named = [kind, *sorted(options.items()), contexts, *(given.get(name) for name in ENVIRONMENT)]
    cache = given.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "firearrow", f"names-{zlib.crc32(repr(named).encode()):08x}")


def _long(argument: Argument) -> str:
    return argument.names.rpartition(",")[2]


def _table() -> dict[str, Command]:
    found: dict[str, Command] = {}
    lines: list[str] = []
    with open(TABLE, encoding="utf-8") as file:
        for line in file:
            if line[0] == "\t":
                lines.append(line)
                continue
            name, summary, shared = line.rstrip("\n").split("\t")
            found[name] = command = Command(summary, [found[SHARED[letter]] for letter in shared])
            lines = command.lines
            if not name.endswith("."):
                lines.append(HELP)
    return found
