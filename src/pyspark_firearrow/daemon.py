"""PySpark's daemon, whose workers end quietly where Spark has no more use for them.

A worker waits for its next task, and when Spark ends or has no work for it, Spark closes the
socket. PySpark's worker takes that for a failure, tells the socket of it, and as nobody is there
prints a traceback, unless it is killed before. `firearrow.spark.configure` has Spark run this.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_work = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Do a task when there is one; if none comes, give 1: the worker is to end."""
    try:
        begun = sock.recv(1, socket.MSG_PEEK)
    except OSError:
        return 1
    try:
        return _work(sock, authenticated) if begun else 1
    except (BrokenPipeError, ConnectionResetError):  # Spark has enough, as after a limit
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
