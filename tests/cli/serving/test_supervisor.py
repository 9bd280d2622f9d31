"""Several brokers in processes of their own: started, started again, and stopped together."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from firearrow.cli.serving import supervisor
from firearrow.cli.serving.brokerprocesses import BrokerPlan, Control, read_control
from firearrow.cli.serving.supervisor import Supervisor
from firearrow.client import Producer
from firearrow.client.admin import Admin
from firearrow.errors import TopicNotFound
from tests.broker.serving import until
from tests.cli.serving.test_serve import STOP_SECONDS_MAX, last_line, read_line, running, stop
from tests.loglines import told

READY = re.compile(r"ready namesrv=(\S+) broker-a=(\S+) broker-b=(\S+) grpc=\S+\n")
LATE_SECONDS = 30


def start(process: subprocess.Popen[str]) -> tuple[str, str, str]:
    """The addresses of the name server and of both brokers."""
    ready = READY.fullmatch(read_line(process))
    assert ready
    name_server, first, second = ready.groups()
    return name_server, first, second


def two(store: Path, *words: str) -> tuple[str, ...]:
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--no-console")
    return ("serve", "--brokers", "2", "--store", str(store), *ports, *words)


def lines_with(process: subprocess.Popen[str], event: str) -> str:
    """What is logged up to a line."""
    assert process.stderr is not None
    seen = ""
    while event not in seen:
        line = process.stderr.readline()
        assert line, seen
        seen += line
    return seen


def control(store: Path) -> Control:
    found = read_control(store)
    assert found is not None
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended is left to whoever has it to wait for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def brokers_of(name_server: str, topic: str) -> set[str]:
    async with Admin.of([name_server]) as admin:
        try:
            return {queues.broker_name for queues in (await admin.topics.route(topic)).queue_datas}
        except TopicNotFound:
            return set()


async def on_both(name_server: str, topic: str) -> None:
    async with asyncio.timeout(LATE_SECONDS):
        while True:
            if await brokers_of(name_server, topic) == {"broker-a", "broker-b"}:
                return
            await asyncio.sleep(0.05)


async def send(name_server: str, *bodies: str) -> None:
    async with Producer(name_server, group="p") as producer:
        for body in bodies:
            await producer.send("orders", body)


def test_a_topic_is_on_all_brokers_and_one_that_is_killed_comes_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with running(*two(store, "--set", "broker-b.regionId=r2")) as process:
        name_server, _, second = start(process)
        asyncio.run(send(name_server, "first"))
        asyncio.run(on_both(name_server, "orders"))

        async def region() -> str:
            async with Admin.of([name_server]) as admin:
                return (await admin.brokers.config(second))["regionId"]

        assert asyncio.run(region()) == "r2"
        killed = control(store).brokers["broker-b"]
        assert killed.address == second
        os.kill(killed.pid, signal.SIGKILL)
        seen = lines_with(process, "server serves again")
        assert f'broker_name=broker-b pid={killed.pid} end="ended by signal 9"' in seen
        assert "server=broker-b" in seen
        again = control(store).brokers["broker-b"]
        assert (again.address, again.pid == killed.pid) == (second, False)
        asyncio.run(on_both(name_server, "orders"))
        children = [it.pid for it in control(store).brokers.values()]
        stop(process)
    assert [pid for pid in children if is_alive(pid)] == []
    assert read_control(store) is None
    assert [name for name in ("broker-a", "broker-b") if (store / name / "abort").exists()] == []


def test_a_process_that_is_ended_in_order_is_started_at_once_by_the_file_as_it_is_now(tmp_path: Path) -> None:
    store, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text("regionId=before\n")
    with running(*two(store, "-c", str(conf))) as process:
        name_server, first, _ = start(process)
        conf.write_text("regionId=behind\n")
        os.kill(control(store).brokers["broker-a"].pid, signal.SIGTERM)
        seen = lines_with(process, "server serves again")
        assert 'end="ended with exit code 0" in_seconds=0.0' in seen

        async def region() -> str:
            async with Admin.of([name_server]) as admin:
                return (await admin.brokers.config(first))["regionId"]

        assert asyncio.run(region()) == "behind"
        stop(process, signal.SIGINT)


@pytest.mark.parametrize("has_file", [True, False])
def test_what_is_changed_at_run_time_is_kept_by_a_broker_that_is_started_again(tmp_path: Path, has_file: bool) -> None:
    store, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text("fileReservedTime=5\n")
    words = ("-c", str(conf)) if has_file else ("--set", "fileReservedTime=5")

    async def change(name_server: str, *brokers: str) -> None:
        async with Admin.of([name_server]) as admin, asyncio.TaskGroup() as group:
            for number, broker in enumerate(brokers):
                keys = {"fileReservedTime": str(40 + number)}
                group.create_task(admin.brokers.update_config(broker, keys))

    async def kept(name_server: str, *brokers: str) -> list[str]:
        async with Admin.of([name_server]) as admin:
            return [(await admin.brokers.config(it))["fileReservedTime"] for it in brokers]

    with running(*two(store, *words)) as process:
        addresses = start(process)
        asyncio.run(change(*addresses))
        for number in (signal.SIGKILL, signal.SIGTERM):  # as if it failed, and as a restart does
            os.kill(control(store).brokers["broker-b"].pid, number)
            lines_with(process, "server serves again")
            assert asyncio.run(kept(*addresses)) == ["40", "41"]
        stop(process, signal.SIGINT)
    with running(*two(store, *words)) as process:  # as a broker alone: in the file or nowhere
        assert asyncio.run(kept(*start(process))) == (["40", "41"] if has_file else ["5", "5"])
        stop(process, signal.SIGINT)


def test_none_is_left_of_who_is_killed_himself(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with running(*two(store)) as process:
        start(process)
        children = [os.pidfd_open(it.pid) for it in control(store).brokers.values()]
        process.kill()
        process.wait(STOP_SECONDS_MAX)
        process.communicate(timeout=STOP_SECONDS_MAX)  # the log is theirs, too, until they end
    for child in children:  # readable when it has ended
        assert select.select([child], [], [], STOP_SECONDS_MAX)[0] == [child]
        os.close(child)
    assert [name for name in ("broker-a", "broker-b") if (store / name / "abort").exists()] == []


def test_one_that_can_not_start_ends_all(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = two(tmp_path / "store", "--set", f"broker-b.listenPort={port}")
        with running(*words) as process:
            out, err = process.communicate(timeout=STOP_SECONDS_MAX)
    assert (process.returncode, out) == (1, "")
    assert last_line(err) == (
        f"firearrow: broker-b: the broker cannot listen on 127.0.0.1:{port}: Address already in use"
    )
    assert not (tmp_path / "store" / "broker-a" / "abort").exists()


def test_a_directory_that_can_not_be_made_is_an_error_in_words() -> None:
    with running(*two(Path("/proc/none/store"))) as process:
        out, err = process.communicate(timeout=STOP_SECONDS_MAX)
    assert (process.returncode, out) == (1, "")
    assert last_line(err) == ("firearrow: the brokers cannot use /proc/none: No such file or directory")


# --- what stands in the way of a process that is to be started again ---

LIVES = "while :; do sleep 0.01; done"
READY_LINE = "trap 'exit 0' TERM; echo ready broker=127.0.0.1:1; "  # whoever is ready ends in order


class Stand:
    """A supervisor whose brokers are small scripts."""

    def __init__(self, directory: Path) -> None:
        self.script = directory / "python"
        self.is_as(READY_LINE + LIVES)
        self.root = directory / "store"
        self.brokers = [BrokerPlan("broker-a", {"storePathRootDir": str(self.root / "broker-a")})]
        self.again: Callable[[], Sequence[BrokerPlan]] = lambda: self.brokers

    def is_as(self, does: str) -> None:
        """Have processes that are started from now on do something."""
        fresh = self.script.with_name("fresh")
        fresh.write_text(f"#!/bin/sh\nread line\n{does}\n")
        fresh.chmod(0o755)
        fresh.rename(self.script)

    @property
    def pid(self) -> int | None:
        """The process of the broker, while it serves."""
        found = read_control(self.root)
        broker = None if found is None else found.brokers.get("broker-a")
        return None if broker is None else broker.pid

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        """Run it; gives the first process."""
        supervised = Supervisor(self.brokers, lambda: self.again(), ("info", "text"))
        await supervised.start()
        pid = self.pid
        assert pid is not None
        try:
            yield pid
        finally:
            await supervised.stop()

    async def has_other(self, pid: int) -> None:
        """Wait until another process serves."""
        await until(lambda: self.pid not in (None, pid))


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Stand:
    caplog.set_level(logging.INFO)
    made = Stand(tmp_path)
    monkeypatch.setattr(sys, "executable", str(made.script))
    monkeypatch.setattr(supervisor, "FIRST_WAIT_SECONDS", 0.01)
    return made


def test_a_process_that_the_system_does_not_start_is_started_later(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with stand.running() as pid:
            away = stand.script.rename(stand.script.with_name("away"))
            os.kill(pid, signal.SIGTERM)
            await until(lambda: "server does not start" in caplog.text)
            away.rename(stand.script)
            await stand.has_other(pid)

    asyncio.run(main())
    assert "task failed" not in caplog.text


def test_a_broker_that_the_configuration_does_not_name_any_more_keeps_what_it_had(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with stand.running() as pid:
            stand.again = list
            os.kill(pid, signal.SIGKILL)
            await stand.has_other(pid)

    asyncio.run(main())
    [line] = [it for it in told(caplog) if str(it["event"]).startswith("configuration can't")]
    assert line["error"] == "it is of brokers with other names than broker-a"


def test_a_full_disk_keeps_no_broker_from_coming_again(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def main() -> None:
        async with stand.running() as pid:
            with monkeypatch.context() as patch:
                patch.setattr(os, "pwrite", full)
                os.kill(pid, signal.SIGKILL)
                await until(lambda: "server serves again" in caplog.text)
            assert stand.pid is None  # nobody is told of the process that was
            assert (stand.root / "brokers.json").read_bytes() == b""

    asyncio.run(main())
    assert "processes of brokers can't be noted" in caplog.text


def test_a_process_that_ends_in_order_before_it_serves_has_failed(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with stand.running() as pid:
            stand.is_as("exit 0")
            os.kill(pid, signal.SIGTERM)
            await until(lambda: caplog.text.count("server does not start") >= 3)
            stand.is_as(READY_LINE + LIVES)
            await stand.has_other(pid)

    asyncio.run(main())
    ends = [it for it in told(caplog) if str(it["event"]).startswith("process of a server has ended")]
    assert [it["in_seconds"] for it in ends][:4] == ["0.0", "0.01", "0.02", "0.04"]
