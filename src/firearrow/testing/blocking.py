"""An embedded cluster in a thread of its own, for tests that block.

Its methods are those of `EmbeddedCluster` by the same names; each returns when all is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from firearrow.client.loopthread import LoopThread
from firearrow.message.model import MessageView
from firearrow.testing.broker import EmbeddedBroker
from firearrow.testing.cluster import QUEUES, EmbeddedCluster

T = TypeVar("T")

CALL_SECONDS_MAX: Final = 60.0  # for anything that is asked of the cluster; a test has failed then


class BlockingCluster:
    """What ``with EmbeddedCluster(...)`` gives: the same, called from outside of its loop."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster

    def __enter__(self) -> Self:
        self._thread = LoopThread("firearrow-cluster", CALL_SECONDS_MAX)
        try:
            self._thread.run(self._cluster.start())
        except BaseException:
            self._thread.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._thread.run(self._cluster.__aexit__(kind, error, trace))
        finally:
            self._thread.close()

    @property
    def name_server(self) -> str:
        """Where clients reach the name server, ``127.0.0.1:port``."""
        return self._cluster.name_server

    @property
    def brokers(self) -> Sequence[EmbeddedBroker]:
        """Its brokers: their names, addresses and stores."""
        return self._cluster.brokers

    @property
    def directory(self) -> Path:
        """Where the stores are."""
        return self._cluster.directory

    @property
    def store(self) -> Path:
        """The directory of the first broker's store."""
        return self._cluster.store

    def create_topic(self, name: str, *, queues: int = QUEUES, **attributes: str | int) -> None:
        """Create a topic, see `EmbeddedCluster.create_topic`."""
        self._thread.run(self._cluster.create_topic(name, queues=queues, **attributes))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages."""
        self._thread.run(self._cluster.delete_topic(name))

    def create_group(self, name: str, **settings: Any) -> None:
        """Create a consumer group, see `EmbeddedCluster.create_group`."""
        self._thread.run(self._cluster.create_group(name, **settings))

    def messages(self, topic: str) -> list[MessageView]:
        """What the stores have of a topic, see `EmbeddedCluster.messages`."""
        return self._thread.run(self._messages(topic))

    async def _messages(self, topic: str) -> list[MessageView]:
        return self._cluster.messages(topic)

    def stop_name_server(self) -> None:
        """Stop the name server."""
        self._thread.run(self._cluster.stop_name_server())

    def restart_name_server(self) -> None:
        """Start the name server, at the same address and with nothing that it knew."""
        self._thread.run(self._cluster.restart_name_server())

    def stop_broker(self, number: int = 0) -> None:
        """Stop a broker in order."""
        self._thread.run(self._cluster.stop_broker(number))

    def kill_broker(self, number: int = 0) -> None:
        """Stop a broker as ``kill -9`` would."""
        self._thread.run(self._cluster.kill_broker(number))

    def restart_broker(self, number: int = 0) -> None:
        """Start a broker on its store, at the same address."""
        self._thread.run(self._cluster.restart_broker(number))
