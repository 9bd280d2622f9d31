"""Handlers that work on each key once, with a store in memory and one in a file."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from firearrow.client.idempotence import Claim, KeyStore, MemoryKeys, SqliteKeys, once
from firearrow.errors import ConsumeFailed

CLAIM_SECONDS = 60.0


class SetClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: SetClock) -> Iterator[KeyStore]:
    if request.param == "memory":
        yield MemoryKeys(claim_seconds=CLAIM_SECONDS, clock=clock)
        return
    keys = SqliteKeys(tmp_path / "keys.db", CLAIM_SECONDS, clock)
    yield keys
    keys.close()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def itself(message: str) -> str:
    return message


class Worker:
    """A handler, of which the messages are their keys; it fails as often as it is told."""

    def __init__(self, failures: int = 0) -> None:
        self.handled: list[str] = []
        self.failures = failures

    async def __call__(self, message: str) -> None:
        self.handled.append(message)
        if len(self.handled) <= self.failures:
            raise ValueError(message)


def test_a_message_that_comes_again_is_not_handled_again(store: KeyStore) -> None:
    worker = Worker()
    handle = once(store, itself)(worker.__call__)

    async def main() -> None:
        for message in ("a", "a", "b", "a"):
            await handle(message)

    run(main())
    assert worker.handled == ["a", "b"]


def test_what_failed_is_handled_again(store: KeyStore) -> None:
    worker = Worker(failures=1)
    handle = once(store, itself)(worker.__call__)

    async def main() -> None:
        with pytest.raises(ValueError, match="a"):
            await handle("a")
        await handle("a")
        await handle("a")

    run(main())
    assert worker.handled == ["a", "a"]


def test_without_a_key_it_is_handled_each_time(store: KeyStore) -> None:
    worker = Worker()
    handle = once(store, lambda _: None)(worker.__call__)

    async def main() -> None:
        await handle("a")
        await handle("a")

    run(main())
    assert worker.handled == ["a", "a"]


def test_what_another_works_on_is_left_for_later(store: KeyStore) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def handler(_: str) -> None:
        started.set()
        await go_on.wait()

    handle = once(store, itself)(handler)

    async def main() -> None:
        first = asyncio.ensure_future(handle("a"))
        await started.wait()
        with pytest.raises(ConsumeFailed, match="another consumer works on key 'a'"):
            await handle("a")
        go_on.set()
        await first
        assert await store.claim("a") is Claim.DONE

    run(main())


def test_a_claim_ends_by_itself(store: KeyStore, clock: SetClock) -> None:
    async def main() -> None:
        assert await store.claim("a") is Claim.GRANTED
        clock.ms += int(CLAIM_SECONDS * 1000) - 1
        assert await store.claim("a") is Claim.BUSY
        clock.ms += 1
        assert await store.claim("a") is Claim.GRANTED
        await store.done("a")
        clock.ms += 1 << 40
        assert await store.claim("a") is Claim.DONE

    run(main())


def test_memory_keeps_the_keys_that_were_used_last() -> None:
    keys = MemoryKeys(keys_max=2)

    async def main() -> None:
        await keys.done("a")
        await keys.done("b")
        assert await keys.claim("a") is Claim.DONE
        await keys.done("c")
        assert await keys.claim("a") is Claim.DONE
        assert await keys.claim("b") is Claim.GRANTED

    run(main())


def test_the_file_outlives_the_process_and_is_shared(tmp_path: Path, clock: SetClock) -> None:
    one = SqliteKeys(tmp_path / "keys.db", clock=clock)
    other = SqliteKeys(tmp_path / "keys.db", clock=clock)

    async def main() -> None:
        assert await one.claim("a") is Claim.GRANTED
        assert await other.claim("a") is Claim.BUSY
        await one.done("a")
        assert await other.claim("a") is Claim.DONE
        clock.ms += 5000
        await other.forget(older_than_seconds=4)
        assert await one.claim("a") is Claim.GRANTED

    run(main())
    one.close()
    other.close()
