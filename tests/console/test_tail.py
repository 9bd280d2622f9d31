"""Live tails: new messages come at once, nothing is counted as consumed, and reading ends with the last browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, contextmanager
from threading import Event

import httpx
import pytest

from firearrow.cli.messages.browsing import Wanted
from firearrow.cli.messages.reading import Place, places
from firearrow.client.admin import Admin
from firearrow.client.blocking import Producer
from firearrow.client.queues import Queue
from firearrow.console import tails
from firearrow.console.tails import Subject, Tail, Tails
from firearrow.errors import FirearrowError
from firearrow.testing import BlockingCluster
from tests.client.diagnosis.sending import send

PAGE = "/cluster/topics/orders/tail"
PAUSE_SECONDS = 0.05


def events(answer: httpx.Response) -> Iterator[str]:
    text = ""
    for line in answer.iter_lines():
        if line:
            text += line.removeprefix("data: ")
        else:
            yield text
            text = ""


@contextmanager
def again_and_again(send_some: Callable[[], object]) -> Iterator[None]:
    """Send during a ``with`` block: what arrives before the first pull of a tail is not new to it."""
    with ThreadPoolExecutor(1) as pool:
        ended = Event()

        def run() -> None:
            while not ended.wait(PAUSE_SECONDS):
                send_some()

        running = pool.submit(run)
        try:
            yield
        finally:
            ended.set()
            running.result()


def test_new_messages_that_pass_the_filters_come_at_once(cluster: BlockingCluster, browser: httpx.Client) -> None:
    assert "Waiting for new messages." in browser.get(PAGE).text
    stream = {"accept": "text/event-stream"}
    with (
        browser.stream("GET", PAGE, params={"having": "a=1"}, headers=stream) as answer,
        Producer(cluster.name_server, group="shop") as producer,
    ):
        found = events(answer)
        assert "No message has arrived yet." in next(found)

        def send_both() -> None:
            producer.send("orders", "filtered", properties={"a": "2"})
            producer.send("orders", "wanted", properties={"a": "1"})

        with again_and_again(send_both):
            text = next(text for text in found if "wanted" in text)
    assert "filtered" not in text


def test_wrong_filters_are_a_sentence_in_the_stream(browser: httpx.Client) -> None:
    with browser.stream("GET", PAGE, params={"sql": "(("}, headers={"accept": "text/event-stream"}) as answer:
        assert any("a value, a name" in text for text in events(answer))


@asynccontextmanager
async def administered(cluster: BlockingCluster) -> AsyncIterator[tuple[Admin, list[Place]]]:
    async with Admin.of([cluster.name_server]) as admin:
        yield admin, await places(admin, "orders")


async def first(tail: Tails, admin: Admin, found: list[Place], subject: Subject) -> Tail:
    async with aclosing(tail.follow(admin, subject, found)) as pictures:
        async for picture in pictures:
            return picture
    raise AssertionError("a tail has a picture")


def test_a_tail_counts_as_nothing_and_ends_with_its_last_browser(cluster: BlockingCluster) -> None:
    async def check() -> None:
        async with administered(cluster) as (admin, found):
            address = found[0].address
            before = (await admin.brokers.runtime(address))["msgGetTotalTodayNow"]
            groups = await admin.topics.groups(address, "orders")
            open_tails = Tails()
            subject = Subject("orders", Wanted())
            async with aclosing(open_tails.follow(admin, subject, found)) as pictures:
                with again_and_again(lambda: send(cluster.name_server, "orders", 1)):
                    tail = await anext(picture async for picture in pictures if picture.read)
                assert (await first(open_tails, admin, found, subject)) is tail
                [task] = open_tails.tasks()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert open_tails.tasks() == []
            assert (await admin.brokers.runtime(address))["msgGetTotalTodayNow"] == before
            assert await admin.topics.groups(address, "orders") == groups

    asyncio.run(check())


def test_tails_and_their_queues_have_limits(cluster: BlockingCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with administered(cluster) as (admin, found):
            monkeypatch.setattr(tails, "TAILS_MAX", 1)
            open_tails = Tails()
            async with aclosing(open_tails.follow(admin, Subject("orders", Wanted()), found)) as pictures:
                await anext(pictures)
                with pytest.raises(FirearrowError, match="1 tails of this cluster are open"):
                    await first(open_tails, admin, found, Subject("orders", Wanted(text="x")))
            many = [Place(Queue("orders", "b", number), "") for number in range(tails.QUEUES_MAX + 1)]
            with pytest.raises(FirearrowError, match="A tail reads at most"):
                await first(open_tails, admin, many, Subject("orders", Wanted()))

    asyncio.run(check())


def test_a_browser_that_goes_away_ends_its_tail(browser: httpx.Client) -> None:
    """With one tail per address, a ninth one is refused until an earlier one has ended."""
    stream = {"accept": "text/event-stream"}
    for number in range(3 * tails.TAILS_MAX):
        for _ in range(200):
            params = {"containing": f"never {number}"}
            with browser.stream("GET", PAGE, params=params, headers=stream) as answer:
                text = next(events(answer))
            if "No message has arrived yet." in text:
                break
        else:
            pytest.fail("the tails of browsers that went away have not ended")
