"""Command lines on a cluster that runs beside the test, and what they print."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import pytest

from firearrow.cli.main import main
from firearrow.cli.messages.reading import follow, places
from firearrow.client.admin import Admin
from firearrow.client.blocking import Producer
from firearrow.testing import BlockingCluster, EmbeddedCluster
from firearrow.wire.client_bodies import MessageQueue

TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
MESSAGE_ID = re.compile(r"\b[0-9A-F]{32}\b")
SECONDS = re.compile(r",\d+\.\d+$", re.MULTILINE)
PORT = re.compile(r"127\.0\.0\.1:\d+")


class Terminal(io.StringIO):
    """Standard output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Shell:
    """Runs command lines of `firearrow`."""

    def __init__(self, cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]) -> None:
        self.cluster = cluster
        self._capsys = capsys

    def rows(self, *words: str) -> list[dict[str, Any]]:
        """What a command that succeeds prints with `--json`."""
        assert main([*words, "--json"]) == 0, self._capsys.readouterr().err
        found: list[dict[str, Any]] = json.loads(self._capsys.readouterr().out)
        return found

    def lines(self, *words: str) -> list[dict[str, Any]]:
        """What a command prints with `--json` that prints an object a line."""
        assert main([*words, "--json"]) == 0, self._capsys.readouterr().err
        return [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]

    def text(self, *words: str) -> str:
        """What a command that succeeds prints for people."""
        assert main([*words]) == 0, self._capsys.readouterr().err
        return self._capsys.readouterr().out

    def said(self) -> str:
        """What the last command has printed."""
        return self._capsys.readouterr().out

    def commit(self, group: str, *offsets: int) -> None:
        """Have a group be at an offset of each queue of ``orders``."""

        async def commit() -> None:
            async with Admin.of([self.cluster.name_server]) as admin:
                for number, offset in enumerate(offsets):
                    queue = MessageQueue("orders", "broker-a", number)
                    await admin.offsets.commit(self.cluster.brokers[0].address, group, queue, offset)

        asyncio.run(commit())

    def fails(self, *words: str) -> tuple[int, str]:
        """The exit code of a command that does not succeed, and what it says."""
        try:
            code = main([*words])
        except SystemExit as end:
            code = int(str(end.code))
        return code, self._capsys.readouterr().err


@contextmanager
def shop(monkeypatch: pytest.MonkeyPatch, **keys: Any) -> Iterator[BlockingCluster]:
    """A cluster that all commands are for: topic ``orders`` with two queues and six messages."""
    with EmbeddedCluster(**keys) as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.name_server)
        cluster.create_topic("orders", queues=2)
        fill_orders(cluster.name_server)
        yield cluster


def fill_orders(name_server: str) -> None:
    """Send the six messages of ``orders`` and wait for them to be in its queues."""
    with Producer(name_server, group="shop") as producer:
        queues = producer.queues("orders")
        for number in range(6):
            producer.send(
                "orders",
                f"order {number}",
                tag="paid" if number % 3 else "open",
                key=f"o-{number}",
                properties={"number": str(number)},
                queue=queues[number % len(queues)],
            )
    asyncio.run(dispatched(name_server, 6))


async def dispatched(name_server: str, count: int) -> None:
    """Wait for all messages of ``orders`` to be in their queues: until then their ends are not where they are."""
    async with (
        Admin.of([name_server]) as admin,
        aclosing(follow(admin, await places(admin, "orders"), count)) as messages,
    ):
        for _ in range(count):
            await anext(messages)


def steady(text: str) -> str:
    """A screen without what is another at each run."""
    text = MESSAGE_ID.sub("0" * 32, TIME.sub("2026-01-31 08:00:00Z", text))
    return SECONDS.sub(",1.0", PORT.sub("127.0.0.1:10911", text))
