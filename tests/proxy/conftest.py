"""A cluster that serves gRPC for the tests of a module, its clients, and an administrator."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from typing import Any, TypeVar

import pytest

from firearrow.client.admin import Admin
from firearrow.client.session.portal import LoopThread
from firearrow.net.access import Access
from firearrow.net.client import Client
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from firearrow.wire.signature import Credentials
from tests.proxy.rpcs import Rpcs

T = TypeVar("T")
SHORT_WAITS = {
    "grpcClientConsumerMinLongPollingTimeoutMillis": 50,
    "minInvisibleTimeMillsForRecv": 1,
    "transactionTimeOut": 100,
    "transactionCheckInterval": 100,
}
"""Receives may wait for 50 ms only, and messages be invisible for any time."""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[BlockingCluster]:
    """A broker with short waits; a module changes its configuration by `KEYS`."""
    with EmbeddedCluster(grpc=True, config=SHORT_WAITS | getattr(request.module, "KEYS", {})) as found:
        yield found


Connect = Callable[..., Rpcs]


@pytest.fixture
def connect(cluster: BlockingCluster) -> Iterator[Connect]:
    """Open a client; arguments are those of `Rpcs` behind the address."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(Rpcs(cluster.brokers[0].grpc, *args, **options))


@pytest.fixture
def rpcs(connect: Connect) -> Rpcs:
    return connect()


class Administrator:
    """Calls of `Admin` that block: ``administrator(lambda admin: admin.groups.config(...))``."""

    def __init__(self, name_server: str, credentials: Credentials | None = None) -> None:
        self._thread = LoopThread("administrator", 30)
        self._client, self._admin = self._thread.run(self._opened(name_server, Access(credentials)))

    async def _opened(self, name_server: str, access: Access) -> tuple[Client, Admin]:
        client = Client(access=access)
        return client, Admin(client, [name_server])

    def __call__(self, ask: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
        return self._thread.run(ask(self._admin))

    def close(self) -> None:
        self._thread.run(self._client.close())
        self._thread.close()


@pytest.fixture(scope="module")
def administrator(cluster: BlockingCluster) -> Iterator[Administrator]:
    found = Administrator(cluster.name_server)
    yield found
    found.close()
