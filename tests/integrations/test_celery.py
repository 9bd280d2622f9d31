"""Celery on RocketMQ: an application with a worker beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain, signals
from celery.contrib.testing.worker import start_worker
from kombu import pools

import firearrow.integrations.kombu  # noqa: F401  (makes rocketmq:// known)
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster

WITHIN = 30


@signals.setup_logging.connect  # type: ignore[untyped-decorator]
def leave_logging_alone(**_: Any) -> None:
    """Have a worker not set the level of the whole process, as it does where nobody says so."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


class Shop:
    """An application and what its tasks did."""

    def __init__(self, name_server: str) -> None:
        self.app = Celery("shop", broker=f"rocketmq://{name_server}", backend="cache+memory://")
        self.app.conf.update(
            broker_transport_options={"visibility_timeout": 2},
            broker_connection_retry_on_startup=True,
            task_acks_late=True,
        )
        self.ran: list[tuple[str, float]] = []
        self.all_ran = threading.Event()

        @self.app.task(name="add")  # type: ignore[untyped-decorator]
        def add(one: int, two: int) -> int:
            return one + two

        @self.app.task(name="flaky", bind=True, max_retries=3)  # type: ignore[untyped-decorator]
        def flaky(task: Any) -> str:
            self.ran.append(("flaky", time.monotonic()))
            if task.request.retries < 2:
                raise task.retry(exc=ValueError("no"), countdown=0.1)
            return f"after {task.request.retries}"

        @self.app.task(name="note")  # type: ignore[untyped-decorator]
        def note(name: str, expected: int) -> None:
            self.ran.append((name, time.monotonic()))
            if len(self.ran) == expected:
                self.all_ran.set()

        self.add, self.flaky, self.note = add, flaky, note


@pytest.fixture(scope="module")
def shop(cluster: BlockingCluster) -> Iterator[Shop]:
    shop = Shop(cluster.name_server)
    with start_worker(shop.app, perform_ping_check=False, shutdown_timeout=WITHIN, task_events=True):
        yield shop
    shop.app.close()
    pools.reset()  # what has sent tasks stays open otherwise


@pytest.fixture(autouse=True)
def empty(shop: Shop) -> None:
    shop.ran.clear()
    shop.all_ran.clear()


def test_a_task_and_its_result(shop: Shop) -> None:
    assert shop.add.delay(1, 2).get(timeout=WITHIN) == 3
    many = [shop.add.delay(number, 1) for number in range(50)]
    assert [it.get(timeout=WITHIN) for it in many] == list(range(1, 51))
    assert chain(shop.add.s(1, 2), shop.add.s(3))().get(timeout=WITHIN) == 6


def test_a_task_that_is_retried(shop: Shop) -> None:
    assert shop.flaky.delay().get(timeout=WITHIN) == "after 2"
    assert len(shop.ran) == 3


def test_a_countdown_longer_than_the_visibility_timeout(shop: Shop) -> None:
    """The worker has the task meanwhile, and nobody else gets it."""
    began = time.monotonic()
    shop.note.apply_async(("later", 2), countdown=3)
    shop.note.delay("now", 2)
    assert shop.all_ran.wait(WITHIN)
    (first, at_once), (second, later) = shop.ran
    assert (first, second) == ("now", "later")
    assert at_once - began < 2.5 <= 3 <= later - began < WITHIN


def test_workers_are_found_and_controlled(shop: Shop) -> None:
    [answer] = shop.app.control.ping(timeout=WITHIN, limit=1)
    assert next(iter(answer.values())) == {"ok": "pong"}
    [tasks] = shop.app.control.inspect(timeout=WITHIN, limit=1).registered().values()
    assert {"add", "flaky", "note"} <= set(tasks)


def test_events_are_received(shop: Shop) -> None:
    events: list[str] = []
    with shop.app.connection_for_read() as connection:
        handlers = {"*": lambda event: events.append(event["type"])}
        receiver = shop.app.events.Receiver(connection, handlers=handlers)
        with receiver.consumer_context(wakeup=False) as (consuming, _, _):
            shop.add.delay(1, 2)
            while "task-succeeded" not in events:
                consuming.drain_events(timeout=WITHIN)
    assert {"task-received", "task-started"} <= set(events)


def test_what_waits_in_a_queue_is_purged(shop: Shop) -> None:
    shop.add.apply_async((1, 2), queue="nobody.consumes@this")
    with shop.app.connection_for_write() as connection:
        queue = connection.default_channel.queue_declare("nobody.consumes@this", passive=True)
        assert queue.message_count == 1
        assert connection.default_channel.queue_purge("nobody.consumes@this") == 1
