"""Signals to programs whose consumers run in the main thread: an end without loss, repetition or traceback."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from firearrow.client import Message, PushConsumer, StartFrom
from firearrow.client import blocking as blocking_client
from firearrow.errors import ClientError
from firearrow.testing import EmbeddedCluster
from tests.pages import README, hello

pytestmark = pytest.mark.usefixtures("patience")

BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
COUNT = 200
SEEN = 20  # messages before the signal

ASYNCIO = """
import asyncio, sys
from firearrow.client import Message, PushConsumer, StartFrom

async def main(name_server, wanted):
    consumer = PushConsumer(name_server, group="readers", start=StartFrom.FIRST)

    @consumer.on("greetings", concurrency=4)
    async def read(message: Message) -> None:
        nonlocal wanted
        print("begun", message.text(), flush=True)
        await asyncio.sleep(0.02)
        print("done", message.text(), flush=True)
        wanted -= 1
        if not wanted:
            consumer.stop()

    await consumer.run()
    print("returned", flush=True)

RUN(main(sys.argv[1], int(sys.argv[2])))
"""

BLOCKING = """
import sys, threading, time
from firearrow.client import Message, StartFrom
from firearrow.client.blocking import PushConsumer

name_server, wanted, lock = sys.argv[1], int(sys.argv[2]), threading.Lock()
consumer = PushConsumer(name_server, group="readers", start=StartFrom.FIRST)

@consumer.on("greetings", concurrency=4)
def read(message: Message) -> None:
    global wanted
    with lock:
        print("begun", message.text(), flush=True)
    time.sleep(0.02)
    with lock:
        print("done", message.text(), flush=True)
        wanted -= 1
        if not wanted:
            consumer.stop()

consumer.run()
print("returned", flush=True)
"""

PROGRAMS = {
    "asyncio": ASYNCIO.replace("RUN", "asyncio.run"),
    "uvloop": ASYNCIO.replace("RUN", "__import__('uvloop').run"),
    "blocking": BLOCKING,
}

HANGS = """
import sys, time
from firearrow.client import StartFrom
from firearrow.client.blocking import PushConsumer

consumer = PushConsumer(sys.argv[1], group="readers", start=StartFrom.FIRST, drain=1000)

@consumer.on("greetings")
def read(message) -> None:
    print("begun", flush=True)
    time.sleep(1000)

consumer.run()
"""

FORKS = """
import multiprocessing, signal, sys, threading, warnings
from firearrow.client import StartFrom
from firearrow.client.blocking import PushConsumer

warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks
consumer = PushConsumer(sys.argv[1], group="readers", start=StartFrom.FIRST)

def wait(began) -> None:
    began.set()
    signal.pause()

@consumer.on("greetings")
def read(message) -> None:
    context = multiprocessing.get_context("fork")
    began = context.Event()
    child = context.Process(target=wait, args=(began,))
    child.start()
    began.wait()
    child.terminate()
    child.join(60)
    print("child ended by", child.exitcode, flush=True)
    consumer.stop()

consumer.run()
"""

ELSEWHERE = """
import signal, sys, threading
from firearrow.client import StartFrom
from firearrow.client.blocking import PushConsumer

consumer = PushConsumer(sys.argv[1], group="readers", start=StartFrom.FIRST)

@consumer.on("greetings")
def read(message) -> None:
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

consumer.run()
print("returned")
"""


@contextmanager
def running(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_until(process: subprocess.Popen[str], start: str, count: int = 1) -> list[str]:
    """Read lines until ``count`` of them begin with a text."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.strip())
        count -= line.startswith(start)
        if not count:
            return lines
    raise AssertionError(f"the program ended after {lines}: {process.stderr and process.stderr.read()}")


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait for the end; return what else it printed, and its errors. `communicate` would lose what is buffered."""
    assert process.stdout is not None
    assert process.stderr is not None
    printed, errors = process.stdout.read(), process.stderr.read()
    process.wait(60)
    return printed, errors


def send(cluster: Any, count: int) -> list[str]:
    cluster.create_topic("greetings")
    bodies = [str(number) for number in range(count)]
    with blocking_client.Producer(cluster.name_server, group="greeters") as producer:
        for at in range(0, count, 10):  # some for each queue
            producer.send_batch("greetings", bodies[at : at + 10])
    return bodies


def of(word: str, lines: list[str]) -> list[str]:
    return sorted(line.split()[1] for line in lines if line.startswith(word))


@BOTH
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_in_flight_is_consumed_and_nothing_comes_again(program: str, number: signal.Signals) -> None:
    with EmbeddedCluster() as cluster:
        bodies = send(cluster, COUNT)
        with running(program, cluster.name_server, 0) as first:
            lines = lines_until(first, "done", SEEN)
            first.send_signal(number)
            rest, errors = ended(first)
        lines += rest.splitlines()
        assert (first.returncode, errors, lines[-1]) == (0, "", "returned")
        consumed = of("done", lines)
        assert of("begun", lines) == consumed
        assert SEEN <= len(consumed) < COUNT
        with running(program, cluster.name_server, COUNT - len(consumed)) as second:
            rest, errors = ended(second)
        assert (second.returncode, errors) == (0, "")
        assert sorted(consumed + of("done", rest.splitlines())) == sorted(bodies)


@BOTH
def test_the_program_of_the_readme(number: signal.Signals) -> None:
    with EmbeddedCluster() as cluster:
        with running(hello(README, "python", cluster.name_server)) as process:
            lines = lines_until(process, "received")
            process.send_signal(number)
            rest, errors = ended(process)
        assert (process.returncode, [*lines, rest], errors) == (0, ["SEND_OK", "received hello", ""], "")


@BOTH
def test_a_second_signal_ends_it_at_once(number: signal.Signals) -> None:
    with EmbeddedCluster() as cluster:
        send(cluster, 1)
        with running(HANGS, cluster.name_server) as process:
            lines_until(process, "begun")
            while process.poll() is None:
                process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.1)  # two signals at once count as one
            assert (ended(process), process.returncode) == (("", ""), -number)


def test_a_forked_child_has_the_signals_of_the_program() -> None:
    with EmbeddedCluster() as cluster:
        send(cluster, 1)
        with running(FORKS, cluster.name_server) as process:
            printed, errors = ended(process)
        assert (process.returncode, printed, errors) == (0, f"child ended by {-signal.SIGTERM}\n", "")


def test_a_signal_that_the_thread_of_a_handler_gets_is_not_lost() -> None:
    """The system does so if that thread unblocks signals before the main thread has taken it."""
    with EmbeddedCluster() as cluster:
        send(cluster, 1)
        with running(ELSEWHERE, cluster.name_server) as process:
            assert ended(process) == ("returned\n", "")


def test_one_signal_stops_all_consumers_and_the_program_gets_its_handlers_back() -> None:
    taken: list[int] = []

    def own(number: int, _: object) -> None:
        taken.append(number)

    async def main(name_server: str) -> None:
        consumers = [PushConsumer(name_server, group=f"readers-{n}", start=StartFrom.FIRST) for n in range(3)]
        came = [asyncio.Event() for _ in consumers]

        async def arrived(n: int, _: Message) -> None:
            came[n].set()

        for n, consumer in enumerate(consumers):
            consumer.subscribe("greetings", partial(arrived, n))
        runs = [asyncio.ensure_future(consumer.run(signals=n != 2)) for n, consumer in enumerate(consumers)]
        await asyncio.gather(*(event.wait() for event in came))
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.gather(*runs[:2])
        assert not runs[2].done()
        os.kill(os.getpid(), signal.SIGTERM)
        consumers[2].stop()
        await runs[2]
        with pytest.raises(ClientError, match="it is closed"):
            await consumers[2].run()

    before = signal.signal(signal.SIGTERM, own)
    try:
        with EmbeddedCluster() as cluster:
            send(cluster, 1)
            asyncio.run(main(cluster.name_server))
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
    assert taken == [signal.SIGTERM]


def test_another_thread_takes_no_signals() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    came = threading.Event()
    with EmbeddedCluster() as cluster:
        send(cluster, 1)
        consumer = blocking_client.PushConsumer(cluster.name_server, group="readers", start=StartFrom.FIRST)
        consumer.on("greetings")(lambda _: came.set())
        thread = threading.Thread(target=consumer.run)
        thread.start()
        assert came.wait(60)
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
        consumer.stop()
        thread.join(60)
        assert not thread.is_alive()
