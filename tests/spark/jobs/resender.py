"""A process that replays or restores an archive, to be killed: by itself a program.

Arguments are ``replay`` or ``restore``, the archive, the name server and the job's directory.
"""

from __future__ import annotations

import sys
from pathlib import Path

from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.resend.replay import Selection, replay
from firearrow.spark.jobs.resend.restore import restore
from firearrow.spark.jobs.resend.sources import ArchiveMessages
from tests.spark.jobs.inline import Inline

RATE = 3000.0  # slow enough to be killed meanwhile


def main(kind: str, root: str, name_server: str, job: str) -> None:
    """Send all that is not sent yet."""
    kept, sink = Archive(root), {"nameServer": name_server}
    if kind == "restore":
        restore(Inline(), kept, sink, Path(job), rate=RATE)
    else:
        messages, again = ArchiveMessages.of(kept), sink | {"topic": "again"}
        replay(Inline(), messages, Selection(), again, Path(job), rate=RATE)


if __name__ == "__main__":
    main(*sys.argv[1:])
