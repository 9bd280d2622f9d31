"""Python clients that send and consume for as long as a block takes."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from firearrow.client import Message, StartFrom
from firearrow.client.blocking import Producer, PushConsumer
from firearrow.errors import FirearrowError

POLL_SECONDS = 0.3  # how often clients ask where topics are
PAUSE_SECONDS = 0.002
LATE_SECONDS = 60


class Traffic:
    """A producer and a push consumer of a topic; ``sent`` has what was acknowledged, ``failed``
    what a send raised."""

    def __init__(self, name_server: str, topic: str) -> None:
        self.sent: list[str] = []
        self.failed: list[Exception] = []
        self._topic = topic
        self._name_server = name_server
        self._consumed: set[str] = set()
        self._news = threading.Condition()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send)
        group = f"python-{topic}"
        self._consumer = PushConsumer(name_server, group=group, start=StartFrom.FIRST, poll_seconds=POLL_SECONDS)
        self._consumer.on(topic)(self._consume)

    def __enter__(self) -> Self:
        self._consumer.__enter__()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._consumer.__exit__(kind, error, trace)

    def end(self) -> None:
        """Send no more."""
        self._is_over.set()
        self._thread.join()

    def missing(self, wanted: set[str]) -> set[str]:
        """Which of these were not consumed, after a while at most."""
        with self._news:
            self._news.wait_for(lambda: wanted <= self._consumed, LATE_SECONDS)
            return wanted - self._consumed

    def _send(self) -> None:
        number = 0
        with Producer(self._name_server, group="p", poll_seconds=POLL_SECONDS) as producer:
            while not self._is_over.wait(PAUSE_SECONDS):
                body = f"python {number}"
                number += 1
                try:
                    producer.send(self._topic, body)
                except (OSError, FirearrowError) as error:
                    self.failed.append(error)
                else:
                    self.sent.append(body)

    def _consume(self, message: Message) -> None:
        with self._news:
            self._consumed.add(message.text())
            self._news.notify_all()
