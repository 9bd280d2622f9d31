"""Several brokers in processes of their own: started, started again, and stopped together."""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import socket
import subprocess
from pathlib import Path

from firearrow.cli.several import Control, read_control
from firearrow.client import Producer
from firearrow.client.admin import Admin
from firearrow.errors import TopicNotFound
from tests.cli.test_serve import STOP_SECONDS_MAX, last_line, read_line, running, stop

READY = re.compile(r"ready namesrv=(\S+) broker-a=(\S+) broker-b=(\S+)\n")
LATE_SECONDS = 30


def start(process: subprocess.Popen[str]) -> tuple[str, str, str]:
    """The addresses of the name server and of both brokers."""
    ready = READY.fullmatch(read_line(process))
    assert ready
    name_server, first, second = ready.groups()
    return name_server, first, second


def two(store: Path, *words: str) -> tuple[str, ...]:
    ports = ("--namesrv-port", "0", "--broker-port", "0")
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
        seen = lines_with(process, "broker serves again")
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


def test_a_process_that_is_ended_in_order_is_started_at_once_by_the_file_as_it_is_now(
    tmp_path: Path,
) -> None:
    store, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text("regionId=before\n")
    with running(*two(store, "-c", str(conf))) as process:
        name_server, first, _ = start(process)
        conf.write_text("regionId=behind\n")
        os.kill(control(store).brokers["broker-a"].pid, signal.SIGTERM)
        seen = lines_with(process, "broker serves again")
        assert 'end="ended with exit code 0" in_seconds=0.0' in seen

        async def region() -> str:
            async with Admin.of([name_server]) as admin:
                return (await admin.brokers.config(first))["regionId"]

        assert asyncio.run(region()) == "behind"
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
