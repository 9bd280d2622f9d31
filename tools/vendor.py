"""Bring the files of others for the console from the npm registry: `python -m tools.vendor`.

The table in `firearrow.console.vendored` names them. For a new version, change its row, run this with ``--accept`` and
put the printed sums into the table.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from firearrow.console.vendored import VENDORED

STATIC = Path(__file__).parent.parent / "src" / "firearrow" / "console" / "static"


@cache
def files_of(package: str, version: str) -> dict[str, bytes]:
    """Fetch a package, and give its files by their places."""
    with tempfile.TemporaryDirectory() as directory:
        command = ["npm", "pack", "--silent", f"{package}@{version}"]
        subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL)
        [archive] = Path(directory).iterdir()
        data = archive.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data)) as packed:
        members = [member for member in packed.getmembers() if member.isfile()]
        return {it.name.partition("/")[2]: packed.extractfile(it).read() for it in members}  # type: ignore[union-attr]


def main(words: Sequence[str] | None = None) -> int:
    """Write the files; 1 if a sum differs from the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accept", action="store_true", help="write files whose sum differs from the table, too")
    accept = parser.parse_args(words).accept
    failed = False
    for row in VENDORED:
        data = files_of(row.package, row.version)[row.place]
        found = sha256(data).hexdigest()
        if found != row.sha256:
            print(f"{row.file}: SHA-256 {found}, the table has {row.sha256}", file=sys.stderr)
            failed = True
        if accept or found == row.sha256:
            (STATIC / row.file).write_bytes(data)
    return int(failed and not accept)


if __name__ == "__main__":
    sys.exit(main())
