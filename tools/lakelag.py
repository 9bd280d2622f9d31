"""Draw the lag of typed tables that a service fills: `python -m tools.lakelag`.

A broker takes messages for three topics all the time. `firearrow pipeline serve` fills their tables, which have targets
of 6, 20 and 60 seconds. After a minute it is killed, and a new process begins 20 seconds later. The picture
`docs/lake-lag.svg` shows the lag that `/varz` reports each second. While there is no service, it is the age of the last
state that was reported.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import firearrow.lake
from firearrow.cli.output.page import as_picture
from firearrow.cli.output.reports import Cell, Lines, Table
from firearrow.client.blocking import Producer
from firearrow.testing import EmbeddedCluster

PICTURE: Final = Path(__file__).parent.parent / "docs" / "lake-lag.svg"
TARGETS: Final = {"fast": 6, "usual": 20, "slow": 60}
SECONDS: Final = 180
KILLED_AFTER: Final = 60
AWAY_SECONDS: Final = 20
PAUSE_SECONDS: Final = 0.02  # between two messages of each topic


@contextmanager
def sending(name_server: str) -> Iterator[dict[str, int]]:
    """Send orders to all topics during a block; give the number of those that were stored."""
    stored, stop = dict.fromkeys(TARGETS, 0), Event()

    def send() -> None:
        with Producer(name_server, group="shop") as producer:
            while not stop.wait(PAUSE_SECONDS):
                for topic in TARGETS:
                    producer.send(topic, json.dumps({"number": stored[topic]}).encode())
                    stored[topic] += 1

    thread = Thread(target=send)
    thread.start()
    try:
        yield stored
    finally:
        stop.set()
        thread.join()


@contextmanager
def serving(name_server: str, file: Path) -> Iterator[int]:
    """Run the service during a block, then kill it; give the port of its pages."""
    command = [sys.executable, "-m", "firearrow", "pipeline", "serve", "--name-server", name_server]
    command += ["--file", str(file), "--instance", "a", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline().rpartition(":")[2])
        finally:
            process.kill()


class Watched:
    """Lags, second by second."""

    def __init__(self) -> None:
        self.rows: list[list[Cell]] = []
        self._fresh: dict[str, float] = {}

    def watch(self, until: float, port: int | None = None) -> None:
        """Look at the tables each second until a time."""
        while (now := time.time()) < until:
            for status in [] if port is None else asked(port):
                if status["lag"] is not None:
                    self._fresh[status["topic"]] = now - status["lag"]
            moment = datetime.fromtimestamp(now, UTC)
            for topic, fresh in self._fresh.items():
                self.rows.append([moment, f"{topic}, target {TARGETS[topic]} s", now - fresh])
            time.sleep(1)


def asked(port: int) -> list[dict[str, Any]]:
    """Return the state of the tables."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/varz") as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


def main() -> int:
    """Draw the picture, and count the rows in the end."""
    with tempfile.TemporaryDirectory() as name, EmbeddedCluster() as cluster:
        root, file, watched = Path(name) / "lake", Path(name) / "lake.toml", Watched()
        tables = [
            f'[[tables]]\ntopics = "{topic}"\nschema = "number long"\nlag = {lag}' for topic, lag in TARGETS.items()
        ]
        file.write_text("\n".join([f'root = "{root}"', *tables]))
        for topic in TARGETS:
            cluster.create_topic(topic)
        start = time.time()
        with sending(cluster.name_server) as stored:
            with serving(cluster.name_server, file) as port:
                watched.watch(start + KILLED_AFTER, port)
            watched.watch(start + KILLED_AFTER + AWAY_SECONDS)
            with serving(cluster.name_server, file) as port:
                watched.watch(start + SECONDS, port)
        for topic, count in stored.items():
            live = firearrow.lake.table(topic, str(root), {"nameServer": cluster.name_server})
            numbers = live.read_all()["number"].to_pylist()
            assert sorted(numbers) == [*range(count)]
            print(f"{topic}: {count} messages, each once")
    lags = Table("Lag", ["time", "table", "lagSeconds"], watched.rows, chart=Lines("time", "lagSeconds", "table"))
    PICTURE.write_text(as_picture(lags), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
