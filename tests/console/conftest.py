"""A cluster with a topic, a group and some messages, and the console in front of it."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette

from firearrow.cli.cluster.options import ClusterOptions
from firearrow.clock import SystemClock
from firearrow.console.app import Console
from firearrow.console.changes import ChangeLog
from firearrow.console.clusters import Clusters
from firearrow.testing import BlockingCluster, EmbeddedCluster
from tests.client.diagnosis.sending import send
from tests.net.background import in_thread
from tests.patience import be_patient

CONFIG = {"enablePropertyFilter": True, "recallMessageEnable": True, "traceTopicEnable": True}


@pytest.fixture(autouse=True, scope="module")
def patient(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make clients wait for a slow machine, but where a test is about a server that hangs."""
    with pytest.MonkeyPatch.context() as patch:
        if "tests.console.hanging" not in request.path.read_text():
            be_patient(patch.setattr)
        yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    """Topic ``orders`` with three messages, and group ``billing``, which has consumed nothing."""
    with EmbeddedCluster(config=CONFIG) as running:
        running.create_topic("orders")
        running.create_group("billing")
        send(running.name_server, "orders", 3)
        yield running


@pytest.fixture(scope="module")
def browser(cluster: BlockingCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Client of a console; addresses begin with ``/cluster/``."""
    options, clock = ClusterOptions(name_server=cluster.name_server), SystemClock()
    console = Console(Clusters(options, clock), ChangeLog(tmp_path_factory.mktemp("state"), clock), "key", clock)
    with browsing(console) as client:
        yield client


@contextmanager
def browsing(console: Console) -> Iterator[httpx.Client]:
    """Serve a console for a ``with`` block; yield a client of it."""
    with (
        in_thread(lambda: served(console)) as address,
        httpx.Client(base_url=address, follow_redirects=True, timeout=30) as client,
    ):
        yield client


def served(console: Console) -> AbstractAsyncContextManager[str]:
    """Serve a console for an ``async with`` block; yield its address."""
    return serving(console.application(), console.end_streams)


@asynccontextmanager
async def serving(application: Starlette, before_end: Callable[[], None] = lambda: None) -> AsyncIterator[str]:
    """Serve an application for an ``async with`` block; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(application, log_level="warning", lifespan="on", timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve([listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            before_end()
            server.should_exit = True
            await task


def token(browser: httpx.Client) -> str:
    """Give the token of a browser's session, as each form has it."""
    found = re.search(r'name="csrf" value="(\w+)"', browser.get("/cluster/sign-in").text)
    assert found is not None, "a form has a token"
    return found[1]


def sign_in(browser: httpx.Client, user: str, password: str, wanted: str = "") -> httpx.Response:
    """Sign a browser in, and go on to a page."""
    given = {"user": user, "password": password, "next": wanted, "csrf": token(browser)}
    return browser.post("/cluster/sign-in", data=given)


def post(browser: httpx.Client, path: str, step: str, **values: str) -> httpx.Response:
    """Send the form of an operation."""
    return browser.post(f"/cluster{path}", data={**values, "csrf": token(browser), "step": step})


def undo_of(done: httpx.Response) -> str:
    """Give the address of the undo of a change."""
    link = re.search(r'href="/cluster(/undo/[^"]+)"', done.text)
    assert link is not None, "a change has an undo file"
    return link[1]
