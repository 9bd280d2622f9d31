"""PySpark's daemon, with workers that end quietly when Spark does not need them any more.

A worker waits for its next task. When Spark ends or has no work for it, Spark closes the socket. PySpark's own worker
takes that for a failure. It cannot report to the closed socket, and prints a traceback unless it is killed first.
`firearrow.spark.configure` lets Spark run this daemon.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from zipimport import zipimporter

_ZIP = "pyspark.zip"
_COMPARED = ("pyspark/version.py", "pyspark/worker.py")


def path_with_bytecode(path: list[str]) -> list[str]:
    """Return the path for modules with Spark's own zip of PySpark behind an installed PySpark that is the same.

    Spark puts the zip first. It has no bytecode, so each worker would compile all that it imports from it: a small job
    spends more time there than on its messages. A PySpark of another version stays behind the zip.
    """
    zips = [entry for entry in path if entry.endswith(_ZIP)]
    others = [entry for entry in path if entry not in zips]
    installed = next((Path(entry) for entry in others if Path(entry, "pyspark", "version.py").is_file()), None)
    if not zips or installed is None:
        return path
    try:
        its = zipimporter(zips[0])
        same = all(its.get_data(name) == (installed / name).read_bytes() for name in _COMPARED)
    except (ImportError, OSError):
        return path
    return others + zips if same else path


if __name__ == "__main__":
    sys.path[:] = path_with_bytecode(sys.path)

from pyspark import daemon  # noqa: E402

_work = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run the next task; return 1, which ends the worker, if no task comes."""
    try:
        begun = sock.recv(1, socket.MSG_PEEK)
    except OSError:
        return 1
    try:
        return _work(sock, authenticated) if begun else 1
    except (BrokenPipeError, ConnectionResetError):  # Spark stops reading, for example after a limit
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
