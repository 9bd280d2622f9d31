"""Parser of one command, which argparse is given from the signature of the command's function."""

from __future__ import annotations

import argparse
import re
import sys
from argparse import PARSER, SUPPRESS, Action, ArgumentError, Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from inspect import BoundArguments, Parameter, Signature, signature
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, get_args, get_origin, get_type_hints

from firearrow.cli.commands import PROGRAM, SHORT_FORMS, TOP, CommandGroup, Function
from firearrow.cli.parameters import NOT_ASKED, STANDARD_INPUT, NamesOf, Options, WrongOptions
from firearrow.cli.parameters import Parameter as Declared
from firearrow.cli.records import NEEDED, fields_of

if TYPE_CHECKING:
    from firearrow.cli.cluster.options import ClusterOptions

USAGE_OF: Final = {"firearrow check": 3}
"""The exit code for a wrong command line, where it is not 2: to monitoring, 2 means that the cluster is ill."""
HELP: Final = ("--help", "-h")
END_OF_OPTIONS: Final = "--"
NAMES_COLUMNS: Final = 26
_NEGATIVE: Final = re.compile(r"-\d+(\.\d+|ms|[smhd])?$|-\.\d+$")
"""Words that are no options: negative numbers, and negative durations such as -1h."""


def parser_for(words: Sequence[str]) -> tuple[CommandParser, list[str]]:
    """Give the parser of the command that a command line names, and the words behind the name."""
    name, summary = PROGRAM, "Apache RocketMQ's message system in Python"
    command: Function | CommandGroup = TOP
    front, rest = options_in_front(words)
    rest[:1] = SHORT_FORMS.get(rest[0], rest[:1]) if rest else ()
    while isinstance(command, CommandGroup) and rest and (found := command.commands.get(rest[0])):
        name, summary, command = f"{name} {rest.pop(0)}", found.summary, found.load()
    return CommandParser(name, summary, command), [*(front if command is not TOP else ()), *rest]


def options_in_front(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide a command line into the options before the command, by their long names, and the rest."""
    front: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        action = next((it for it in front_parser().arguments if name in it.option_strings), None)
        if action is None or (action.nargs != 0 and not equals and not rest):
            return [], list(words)  # the parser of all commands refuses them
        long = action.option_strings[-1]
        front.append(long if action.nargs == 0 else f"{long}={value if equals else rest.pop(0)}")
    return front, rest


@cache
def front_parser() -> CommandParser:
    """Give the parser of the options that may precede the name of a command."""
    from firearrow.cli.cluster.options import ANY, ClusterOptions
    from firearrow.cli.output.listing import PLAIN, Output

    def front(*, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
        """Take the options."""

    front.__annotations__ = {"cluster": ClusterOptions, "output": Output}  # local names can't be looked up
    return CommandParser(PROGRAM, "options in front", front)


def cluster_of(front: Sequence[str]) -> ClusterOptions:
    """Give the cluster that options in front of `mqadmin` name; SystemExit for options of the output."""
    from firearrow.cli.output.listing import PLAIN

    parser = front_parser()
    given = parser.bound(front).arguments
    if given["output"] != PLAIN:
        parser.error("mqadmin prints what RocketMQ's prints: it has no options of the output")
    cluster: ClusterOptions = given["cluster"]
    return cluster


def asks_for_help(words: Sequence[str]) -> bool:
    """Tell whether one of the options is that for help."""
    return any(word in HELP for word in _split(words)[0])


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide words at the end of options."""
    end = words.index(END_OF_OPTIONS) if END_OF_OPTIONS in words else len(words)
    return list(words[:end]), list(words[end:])


class _Format(argparse.HelpFormatter):
    """Names of options with their value once, and paragraphs that keep their lines if they have several."""

    def __init__(self, prog: str, columns: int = 80) -> None:  # argparse makes one to check an argument, too
        super().__init__(prog, max_help_position=NAMES_COLUMNS, width=columns - 2)

    def _format_action(self, action: Action) -> str:
        text = super()._format_action(action)
        return text.partition("\n")[2] if action.nargs == PARSER else text  # the commands alone

    def _format_action_invocation(self, action: Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        return named(action)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def named(action: Action) -> str:
    """Give the names of an option with its value; of an argument in its place, the value."""
    value = "" if action.nargs == 0 else str(action.metavar)
    return " ".join(filter(None, [", ".join(action.option_strings), value]))


class _Parser(argparse.ArgumentParser):
    """A parser that proposes the probable word, and takes no beginning of a name for the whole."""

    ends_process = True

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, formatter_class=_Format, allow_abbrev=False, **settings)
        self._negative_number_matcher = _NEGATIVE

    def error(self, message: str) -> NoReturn:
        """End with 2 (`check`: 3) and two lines on standard error: the usage, and the error."""
        if not self.ends_process:
            raise WrongOptions(message)
        self.print_usage(sys.stderr)
        self.exit(USAGE_OF.get(self.prog, 2), f"{self.prog}: error: {message}\n")

    def _check_value(self, action: Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            from firearrow.config.kinds import proposal  # only a misspelt word pays for it

            known = f" (choose from {', '.join(map(repr, action.choices))})"
            raise ArgumentError(action, f"invalid choice: {value!r}{proposal(value, action.choices) or known}")


class _OnOff(Action):
    """An option whose first name switches it on, the second off."""

    def __call__(self, parser: object, namespace: Namespace, values: object, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, option_string == self.option_strings[0])


class CommandParser:
    """The parser of a command, or of a group of commands.

    Options and arguments may be mixed, which argparse can't read at once: each have a parser. A third one of both is
    made only for the help and for a shell: a command would wait 1 ms for it.
    """

    def __init__(self, name: str, summary: str, command: Function | CommandGroup) -> None:
        self.prog: Final = name
        self.description: Final = f"{summary[0].upper()}{summary[1:]}."
        self.function: Final = command.default if isinstance(command, CommandGroup) else command
        self.arguments: Final[list[Action]] = []
        self.completed: Final[dict[Action, NamesOf]] = {}
        self.has_commands: Final = isinstance(command, CommandGroup)
        self._signature: Final = signature(self.function) if self.function else Signature()
        self._classes: Final[dict[str, type]] = {}
        self._options: Final = _Parser(name, add_help=False)
        self._places: Final = _Parser(name, add_help=False)
        usage = [name]
        if self.function:
            self._declare(get_type_hints(self.function, include_extras=True))
            usage += ["[options]", *map(_usage, self.arguments)]
        if isinstance(command, CommandGroup):
            usage += ["COMMAND"] if command.default is None else []
            self._declare_commands(command)
        self._options.usage = self._places.usage = " ".join(filter(None, usage))

    def whole(self) -> argparse.ArgumentParser:
        """Give the parser of options and arguments, with their help."""
        parents = [self._places, self._options]
        return _Parser(self.prog, parents=parents, description=self.description, usage=self._places.usage)

    def format_help(self) -> str:
        """Give the help, with examples, for the width of the terminal."""
        from shutil import get_terminal_size  # a command that runs needs neither this nor examples

        from firearrow.cli.examples import EXAMPLES

        columns = get_terminal_size().columns
        epilog = "\n  ".join(["examples:", *EXAMPLES.get(self.prog, ())])
        if self.prog == PROGRAM:
            forms = (f"{word:8}{' '.join(long)}" for word, long in SHORT_FORMS.items())
            epilog += "\n  ".join(["\n\nshort forms:", *forms])
        if self.has_commands:
            epilog += f"\n\n`{self.prog} COMMAND --help` lists the options of a command."
        whole = self.whole()
        whole.formatter_class = lambda prog: _Format(prog, columns)
        whole.epilog = epilog
        return whole.format_help()

    def error(self, message: str) -> NoReturn:
        """Refuse a command line."""
        self._places.error(message)

    def raise_errors(self) -> None:
        """Make wrong words raise WrongOptions instead of ending the process, for callers without a command line."""
        for parser in (self._options, self._places):
            parser.ends_process = False

    def bound(self, words: Sequence[str]) -> BoundArguments:
        """Read the words behind the name, and give the arguments of the function.

        Raises SystemExit for words that are wrong; WrongOptions after `raise_errors`.
        """
        head, tail = _split(words)
        self._check_names(head)
        head = [STANDARD_INPUT if word == STANDARD_INPUT else word for word in head]
        given, rest = self._options.parse_known_args(head)
        values: dict[str, Any] = {}
        fields_of: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for place, value in vars(self._places.parse_args([*rest, *tail], given)).items():
            name, _, field = place.partition(".")
            into = fields_of[name] if field else values
            into[field or name] = tuple(value) if isinstance(value, list) else value
        values |= {name: kind(**fields_of[name]) for name, kind in self._classes.items()}
        in_place: list[Any] = []
        for one in self._signature.parameters.values():
            if one.kind is Parameter.VAR_POSITIONAL:
                in_place += values.pop(one.name)
            elif one.kind is Parameter.POSITIONAL_ONLY:
                in_place.append(values.pop(one.name))
        bound = self._signature.bind(*in_place, **values)
        bound.apply_defaults()
        return bound

    def _check_names(self, words: Sequence[str]) -> None:
        known = {*HELP, *(name for action in self.arguments for name in action.option_strings)}
        for word in words:
            name = word.partition("=")[0]
            if name.startswith("--") and name not in known and " " not in word:
                from firearrow.config.kinds import proposal

                self.error(f"unrecognized arguments: {word}{proposal(name, known)}")

    def _declare_commands(self, group: CommandGroup) -> None:
        commands = self._places.add_subparsers(
            title="commands", metavar="COMMAND", prog=self._places.prog, required=group.default is None
        )
        for name, command in group.commands.items():
            commands.add_parser(name, help=_escaped(command.summary), add_help=False)
        for name in SHORT_FORMS if group is TOP else ():
            commands.add_parser(name, add_help=False)  # help does not list it again

    def _declare(self, hints: Mapping[str, Any]) -> None:
        for one in self._signature.parameters.values():
            hint = hints[one.name]
            if isinstance(hint, type) and issubclass(hint, Options):
                self._classes[one.name] = hint
                own = get_type_hints(hint, include_extras=True)
                for field, default in fields_of(hint).items():
                    self._add_option(f"{one.name}.{field}", own[field], is_needed=default is NEEDED)
            elif one.kind is Parameter.KEYWORD_ONLY:
                self._add_option(one.name, hint, is_needed=one.default is Parameter.empty)
            else:
                self._add_place(one, hint)

    def _add_option(self, place: str, hint: Any, *, is_needed: bool) -> None:
        kind, declared = get_args(hint)
        if declared is NOT_ASKED:
            return
        names = tuple(declared.names) or (f"--{place.rpartition('.')[2].replace('_', '-')}",)
        if len(names) > 1:  # an option of the command itself may have one of them
            names = tuple(name for name in names if name not in self._options._option_string_actions)
        settings: dict[str, Any] = {"dest": place, "default": SUPPRESS, "help": _escaped(declared.help)}
        if kind is bool:
            settings["action"] = "store_true"
        elif _unwrapped(kind) is bool:
            names = *names, declared.off or f"--no-{names[0].removeprefix('--')}"
            settings |= {"action": _OnOff, "nargs": 0}
        else:
            settings |= _of_value(kind, declared, names[-1])
            settings["required"] = is_needed or declared.needed
            if get_origin(kind) is tuple:
                settings["action"] = "append"
        self._added(self._options.add_argument(*names, **settings), declared)

    def _add_place(self, one: Parameter, hint: Any) -> None:
        kind, declared = get_args(hint)
        settings = _of_value(kind, declared, one.name)
        if one.default is not Parameter.empty:
            settings |= {"default": one.default, "nargs": "?"}
        if one.kind is Parameter.VAR_POSITIONAL:
            settings["nargs"] = "*"
        elif get_origin(kind) is tuple:
            settings["nargs"] = "+"
        self._added(self._places.add_argument(one.name, help=_escaped(declared.help), **settings), declared)

    def _added(self, action: Action, declared: Declared) -> None:
        self.arguments.append(action)
        if declared.names_of:
            self.completed[action] = declared.names_of


def _of_value(kind: Any, declared: Declared, name: str) -> dict[str, Any]:
    """Settings of argparse for an option or argument that has a value."""
    kind = get_args(kind)[0] if get_origin(kind) is tuple else _unwrapped(kind)
    choices = get_args(kind) if get_origin(kind) is Literal else None
    value = declared.metavar or "|".join(choices or ()) or name.lstrip("-").upper().replace("-", "_")
    read = declared.read or (None if choices else kind)
    return {"metavar": value, "choices": choices, "type": read}


def _unwrapped(kind: Any) -> Any:
    """Give the type of a value that may be None, too."""
    return next((one for one in get_args(kind) if one is not NoneType), kind) if NoneType in get_args(kind) else kind


def _usage(action: Action) -> str:
    """Form of a required option, or of an argument in its place, in the usage."""
    if action.option_strings:
        return f"{action.option_strings[0]} {action.metavar}" if action.required else ""
    text = f"{action.metavar} ..." if action.nargs in ("*", "+") else str(action.metavar)
    return f"[{text}]" if action.nargs in ("*", "?") else text


def _escaped(text: str) -> str:
    return text.replace("%", "%%")  # argparse formats it
