"""PySpark's daemon, with workers that end quietly when Spark does not need them any more.

A worker waits for its next task. When Spark ends or has no work for it, Spark closes the socket. PySpark's own worker
takes that for a failure. It cannot report to the closed socket, and prints a traceback unless it is killed first.
`firearrow.spark.configure` lets Spark run this daemon.
"""

from __future__ import annotations

import socket

from pyspark import daemon

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
