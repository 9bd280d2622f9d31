"""Process of one of several workers of a proxy: ``python -m firearrow.cli.serving.workerprocess NAME LEVEL FORMAT``.

Standard input has a `ProcessPlan` as one line of JSON. It stays open, and standard output gets one line, as for the
process of a broker (`firearrow.cli.serving.brokerprocess`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import cast

import msgspec

from firearrow.cli.entry import take_interrupts
from firearrow.cli.serving.brokerprocess import first_line
from firearrow.errors import FirearrowError


def main(words: Sequence[str]) -> int:
    """Serve until a signal or the end of standard input; give the exit code."""
    take_interrupts()
    from firearrow.cli.serving.brokerprocesses import FAILED, ProcessPlan
    from firearrow.cli.serving.serve import run
    from firearrow.cli.serving.settings import of_worker
    from firearrow.logs import LogFormat, configure

    name, level, form = words
    try:
        given = msgspec.json.decode(first_line(), type=ProcessPlan)
    except msgspec.DecodeError:  # the supervisor has ended already
        return 1
    configure(level, cast(LogFormat, form), server=name)
    try:
        return run(of_worker(given.pairs), banner_as_log=True, until_stdin_closes=True)
    except FirearrowError as error:
        print(FAILED + " ".join(str(error).split()), flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
