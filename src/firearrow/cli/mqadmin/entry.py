"""Run one command of `mqadmin`, and give its exit code.

The exit code is 1 for a command line that can't be read, and for a command that failed, did nothing or does not exist;
RocketMQ's tool ends with 0 then. The error is on standard error.

Name servers, user and encryption come from `firearrow.cli.cluster.options`. Without a user there, a run signs as the
one in RocketMQ's ``conf/tools.yml`` below the directory in ``ROCKETMQ_HOME``. Only these two lines of the file are
read:

    accessKey: rocketmq2
    secretKey: 12345678
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from firearrow.cli.mqadmin.commandline import WrongCommandLine, overview, usage, values_in
from firearrow.cli.mqadmin.table import Row, row_of

if TYPE_CHECKING:
    from firearrow.cli.cluster.options import ClusterOptions
    from firearrow.wire.signature import Credentials

HOME: Final = "ROCKETMQ_HOME"
USER_FILE: Final = "conf/tools.yml"
REFUSED: Final = 1


def run(words: Sequence[str], cluster: ClusterOptions | None = None) -> int:
    """Run a command line, which begins with the name of a command, for a cluster unless ``-n`` names another one."""
    if not words:
        sys.stdout.write(overview())
        return 0
    asks_for_help = words[0] == "help" and len(words) == 2
    name = words[1] if asks_for_help else words[0]
    row = row_of(name)
    if row is None:
        sys.stdout.write(f"The sub command {name} not exist.\n")
        return REFUSED
    if asks_for_help:
        sys.stdout.write(usage(row))
        return 0
    return _run(row, words[1:], cluster)


def _run(row: Row, words: Sequence[str], cluster: ClusterOptions | None) -> int:
    if not row.is_supported:
        print(f"mqadmin: {row.name} is not supported: {row.summary}", file=sys.stderr)
        return REFUSED
    try:
        values = values_in(row, words)
    except WrongCommandLine as error:
        print(error, file=sys.stderr)
        sys.stdout.write(usage(row))
        return REFUSED
    if "h" in values:
        sys.stdout.write(usage(row))
        return 0
    import asyncio  # slow to import, and help does not need it

    from firearrow.cli.failures import carried_out

    return carried_out(lambda: asyncio.run(_carry_out(row, values, cluster)), REFUSED)


async def _carry_out(row: Row, values: Mapping[str, str | bool], cluster: ClusterOptions | None) -> int:
    from firearrow.cli.cluster.options import ANY
    from firearrow.cli.mqadmin.invocation import Invocation
    from firearrow.client.admin import Admin
    from firearrow.clock import SystemClock

    chosen = cluster or ANY
    if given := values.get("n"):
        chosen = chosen.changed(name_server=str(given))
    target = chosen.target()
    async with Admin.of(target.name_servers, target.credentials or credentials(), target.tls) as admin:
        invocation = Invocation(row, values, admin, SystemClock())
        await _function(row)(invocation)
    return REFUSED if invocation.has_failed else 0


def _function(row: Row) -> Callable[..., Awaitable[None]]:
    module, _, name = row.place.partition(":")
    found = getattr(import_module(f"firearrow.cli.mqadmin.{module}"), name)
    return cast(Callable[..., Awaitable[None]], found)


def credentials() -> Credentials | None:
    """Read the user from the file; None if there is no file, or one of the two lines is missing."""
    from pathlib import Path  # slow to import, and help does not need it

    from firearrow.wire.signature import Credentials

    home = os.environ.get(HOME)
    path = Path(home) / USER_FILE if home else None
    if path is None or not path.is_file():
        return None
    pairs = [line.partition(":") for line in path.read_text(encoding="utf-8").splitlines()]
    found = {key.strip(): value.strip().strip("'\"") for key, _, value in pairs}
    access, secret = found.get("accessKey"), found.get("secretKey")
    return Credentials(access, secret) if access and secret else None
