"""``python -m benchmarks.tasks``: how many tasks of Taskiq and Celery a second one worker runs.

The broker is `firearrow serve --ephemeral` in a process of its own, the tasks do nothing, and
sender and worker take turns in another process: Taskiq's with 64 sends and up to 100 tasks at
once, Celery's one by one (its `solo` pool). Beside each rate stands the memory of that process;
`celery-memory` is Celery without a broker, for comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SENDS_AT_ONCE = 64


@contextmanager
def serving() -> Iterator[str]:
    """A name server and a broker; gives the address of the name server."""
    command = [sys.executable, "-m", "firearrow", "serve", "--ephemeral", "--until-stdin-closes"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield server.stdout.readline().split()[1].removeprefix("namesrv=")
        server.stdin.close()


class Countdown:
    """Says when so many tasks have run."""

    def __init__(self, count: int, done: Callable[[], None]) -> None:
        self.left = count
        self.done = done

    def __call__(self) -> None:
        self.left -= 1
        if not self.left:
            self.done()


async def taskiq(name_server: str, count: int) -> dict[str, float]:
    """Send tasks, then run them."""
    from taskiq.receiver import Receiver

    from firearrow.integrations.taskiq import RocketMQBroker

    finish = asyncio.Event()
    broker = RocketMQBroker(name_server, topic="tasks", group="workers", batch=32)
    ran = Countdown(count, finish.set)

    @broker.task
    async def nothing() -> None:
        ran()

    async def send(some: int) -> None:
        for _ in range(some):
            await nothing.kiq()

    await broker.startup()
    began = time.perf_counter()
    await asyncio.gather(*(send(count // SENDS_AT_ONCE) for _ in range(SENDS_AT_ONCE)))
    await send(count % SENDS_AT_ONCE)
    sent = time.perf_counter()
    await Receiver(broker, max_async_tasks=100, run_startup=False).listen(finish)
    ended = time.perf_counter()
    await broker.shutdown()
    return {"sent": count / (sent - began), "run": count / (ended - sent)}


def celery(url: str, count: int) -> dict[str, float]:
    """Send tasks, then run them."""
    from celery import Celery
    from celery.contrib.testing.worker import start_worker

    import firearrow.integrations.kombu  # noqa: F401

    app: Any = Celery("bench", broker=url)
    app.conf.update(task_ignore_result=True, task_acks_late=True, worker_prefetch_multiplier=32)
    finish = threading.Event()
    ran = Countdown(count, finish.set)

    @app.task(name="nothing")  # type: ignore[untyped-decorator]
    def nothing() -> None:
        ran()

    began = time.perf_counter()
    for _ in range(count):
        nothing.delay()
    sent = time.perf_counter()
    with start_worker(app, perform_ping_check=False, pool="solo", shutdown_timeout=60):
        finish.wait()
        ended = time.perf_counter()
    app.close()
    return {"sent": count / (sent - began), "run": count / (ended - sent)}


def main() -> None:
    """Print the figures of one kind, or start a process for each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=["taskiq", "celery", "celery-memory"])
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args()
    if options.kind is None:
        for kind in ("taskiq", "celery", "celery-memory"):
            command = [sys.executable, "-m", "benchmarks.tasks", "--kind", kind]
            subprocess.run([*command, "--count", str(options.count)], check=True)
        return
    with serving() as name_server:
        if options.kind == "taskiq":
            found = asyncio.run(taskiq(name_server, options.count))
        else:
            url = "memory://" if options.kind == "celery-memory" else f"rocketmq://{name_server}"
            found = celery(url, options.count)
    found["MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"kind": options.kind, **{name: round(it) for name, it in found.items()}}))


if __name__ == "__main__":
    main()
