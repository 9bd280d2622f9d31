"""The parser of all commands: its errors, suggestions and examples.

$ firearrow serve --stroe data
usage: firearrow serve [options]
firearrow serve: error: unrecognized arguments: --stroe data; did you mean --store?
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "firearrow": (
        "firearrow serve",
        "firearrow broker -c broker.conf -n 10.0.0.1:9876",
        "firearrow store stat data/store",
    ),
    "firearrow serve": (
        "firearrow serve",
        "firearrow serve --store /var/lib/rocketmq --host 0.0.0.0",
        "firearrow serve --set flushDiskType=SYNC_FLUSH --log-level warning",
    ),
    "firearrow namesrv": (
        "firearrow namesrv",
        "firearrow namesrv -c namesrv.conf --port 9877",
    ),
    "firearrow broker": (
        "firearrow broker -c broker.conf",
        "firearrow broker -n '10.0.0.1:9876;10.0.0.2:9876' --store /var/lib/rocketmq",
        "firearrow broker -c broker.conf --set brokerIP1=192.0.2.7 -p",
    ),
    "firearrow store": (
        "firearrow store stat data/store",
        "firearrow store verify data/store",
    ),
    "firearrow store stat": ("firearrow store stat data/store --queues",),
    "firearrow store cat": (
        "firearrow store cat data/store --topic Orders --limit 10",
        "firearrow store cat data/store --key order-4711 --since 2026-01-31T08:00:00",
    ),
    "firearrow store verify": (
        "firearrow store verify data/store --json",
        "firearrow store verify /mnt/store --spark spark://master:7077 --report verify.html",
    ),
    "firearrow store repair": (
        "firearrow store repair data/store",
        "firearrow store repair data/store --apply",
    ),
    "firearrow store rebuild": (
        "firearrow store rebuild data/store --dry-run",
        "firearrow store rebuild data/store --only queues --to /tmp/new",
    ),
    "firearrow store salvage": ("firearrow store salvage data/store --to /tmp/saved",),
    "firearrow store diff": ("firearrow store diff data/store /backup/store --logical",),
    "firearrow store why-not-deleted": (
        "firearrow store why-not-deleted data/store -c broker.conf",
    ),
    "firearrow pipeline": (
        "firearrow pipeline backlog --path data/store",
        "firearrow pipeline archive --path data/store --to /archive",
    ),
    "firearrow pipeline backlog": (
        "firearrow pipeline backlog --path data/store --report backlog.html",
    ),
    "firearrow pipeline accounting": ("firearrow pipeline accounting --path data/store --top 5",),
    "firearrow pipeline deadletters": (
        "firearrow pipeline deadletters --path data/store --where \"text LIKE '%timeout%'\"",
    ),
    "firearrow pipeline transactions": ("firearrow pipeline transactions --path data/store",),
    "firearrow pipeline duplicates": (
        "firearrow pipeline duplicates --name-server 10.0.0.1:9876 --option subscribe=Orders",
    ),
    "firearrow pipeline latency": (
        "firearrow pipeline latency --path data/store --option subscribe=Orders",
    ),
    "firearrow pipeline archive": (
        "firearrow pipeline archive --name-server 10.0.0.1:9876 --to /archive --follow",
    ),
    "firearrow pipeline compact": ("firearrow pipeline compact --archive /archive",),
    "firearrow pipeline expire": ("firearrow pipeline expire --archive /archive --keep 365",),
    "firearrow pipeline take-over": ("firearrow pipeline take-over --archive /archive",),
    "firearrow pipeline restore": (
        (
            "firearrow pipeline restore --archive /archive --to-name-server 10.0.0.1:9876 "
            "--job /jobs/restore"
        ),
    ),
    "firearrow pipeline replay": (
        (
            "firearrow pipeline replay --path data/store --option subscribe=Orders --tag paid "
            "--to-topic Again --to-name-server 10.0.0.1:9876 --job /jobs/replay"
        ),
    ),
    "firearrow pipeline watch": (
        "firearrow pipeline watch --name-server 10.0.0.1:9876 --alert 'deadLetters > 0'",
    ),
}


_MOVED: Final[Mapping[str, str]] = {
    f"firearrow pipeline {name}": f"firearrow store {name} DIR --spark URL"
    for name in ("verify", "rebuild")
}


class Parser(argparse.ArgumentParser):
    """A parser whose refusals are two lines: its own usage, and what is wrong."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, formatter_class=argparse.RawDescriptionHelpFormatter)
        examples = EXAMPLES.get(self.prog, ())
        shown = "".join(f"\n  {example}" for example in examples)
        self.epilog = "\n\n".join(filter(None, [shown and f"examples:{shown}", self.epilog]))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse what is unknown here: argparse leaves that to the parser of all commands."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            like = _like(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{like}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            moved = _MOVED.get(f"{self.prog} {value}")
            error.message += (
                f"; that is `{moved}` now"
                if moved
                else _like(str(value), map(str, action.choices or ()))
            )
            raise

    def error(self, message: str) -> NoReturn:
        """End with 2 and two lines on standard error."""
        needed = [_words(action) for action in self._actions if action.required]
        usage = " ".join([self.prog, "[options]", *needed])
        self.exit(2, f"usage: {usage}\n{self.prog}: error: {message}\n")


def _words(action: argparse.Action) -> str:
    name: Sequence[str] = action.option_strings[:1]
    return " ".join([*name, str(action.metavar or action.dest.upper())])


def _like(word: str, candidates: Iterable[str]) -> str:
    import difflib  # only a slip pays for it

    found = difflib.get_close_matches(word, list(candidates), n=1)
    return f"; did you mean {found[0]}?" if found else ""
