"""Process of one of several brokers: ``python -m firearrow.cli.serving.brokerprocess NAME LEVEL FORMAT``.

Standard input has a `BrokerPlan` as one line of JSON. The supervisor keeps it open; at its end the broker stops as by a
signal, so no broker outlives its supervisor. Standard output gets one line, ``ready broker=...`` or ``failed`` with the
reason.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final, cast

import msgspec

from firearrow.cli.entry import take_interrupts
from firearrow.errors import FirearrowError

_PIECE_BYTES: Final = 64 * 1024


def main(words: Sequence[str]) -> int:
    """Serve until a signal or the end of standard input; give the exit code."""
    take_interrupts()
    from firearrow.broker.state.settings import SharedFile
    from firearrow.cli.serving.brokerprocesses import FAILED, BrokerPlan
    from firearrow.cli.serving.serve import run
    from firearrow.cli.serving.settings import of_broker
    from firearrow.files import thrown_away
    from firearrow.logs import LogFormat, configure

    name, level, form = words
    try:
        given = msgspec.json.decode(first_line(), type=BrokerPlan)
    except msgspec.DecodeError:  # the supervisor has ended already
        return 1
    configure(level, cast(LogFormat, form), server=name)
    root = Path(given.pairs["storePathRootDir"])
    try:
        with thrown_away(root) if given.thrown_away else nullcontext():
            plan = of_broker(given.pairs, SharedFile(Path(given.file), name) if given.file else None)
            plan = msgspec.structs.replace(plan, notes=[])  # the supervisor has logged them
            return run(plan, banner_as_log=True, until_stdin_closes=True)
    except FirearrowError as error:
        print(FAILED + " ".join(str(error).split()), flush=True)
        return 1


def first_line() -> bytes:
    """First line of standard input, read without any byte behind it."""
    found = b""
    while not found.endswith(b"\n"):
        piece = os.read(0, _PIECE_BYTES)
        if not piece:
            break
        found += piece
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
