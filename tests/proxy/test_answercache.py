"""Answers of servers that are kept: who waits for them, when they are asked for again, and when they are forgotten."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from firearrow.net.replies import in_task
from firearrow.net.tasks import Tasks
from firearrow.proxy.answercache import NONE_SECONDS, AnswerCache, CacheLimits
from tests.broker.serving import until

LIMITS = CacheLimits(20, 300, 3)


class Source:
    """Server with an answer for each key, and a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.answers: dict[str, str | None] = {}
        self.asked: list[str] = []
        self.tasks = Tasks()
        self.gate = asyncio.Event()
        self.gate.set()
        self.cache = AnswerCache("answer for", self.ask, self.tasks, lambda: self.now, LIMITS)

    async def ask(self, key: str) -> str | None:
        self.asked.append(key)
        await self.gate.wait()
        if key not in self.answers:
            raise ConnectionError("no server answers")
        return self.answers[key]

    async def get(self, key: str) -> str | None:
        return await in_task(self.cache.get(key))

    async def fresh(self, key: str) -> str | None:
        return await in_task(self.cache.fresh(key))


def run(test: Callable[[Source], Awaitable[None]]) -> None:
    async def main() -> None:
        source = Source()
        await test(source)
        await source.tasks.close()

    asyncio.run(main())


def test_one_question_serves_all_callers_and_later_ones() -> None:
    async def test(source: Source) -> None:
        source.answers["k"] = "1"
        source.gate.clear()
        waiting = [asyncio.create_task(source.get("k")) for _ in range(3)]
        await asyncio.sleep(0)
        source.gate.set()
        assert await asyncio.gather(*waiting) == ["1"] * 3
        assert await source.get("k") == "1"
        assert source.cache.known("k") == "1"
        assert source.asked == ["k"]

    run(test)


def test_an_old_answer_is_used_while_a_task_asks_again() -> None:
    async def test(source: Source) -> None:
        source.answers["k"] = "1"
        await source.get("k")
        source.answers["k"] = "2"
        source.now += 19.9
        assert await source.get("k") == "1"
        assert source.asked == ["k"]
        source.now += 0.1
        assert await source.get("k") == "1"
        await source.tasks.settled()
        assert await source.get("k") == "2"
        assert source.asked == ["k", "k"]

    run(test)


def test_no_answer_is_believed_for_a_second() -> None:
    async def test(source: Source) -> None:
        source.answers["k"] = None
        assert await source.get("k") is None
        source.answers["k"] = "1"
        source.now += NONE_SECONDS - 0.01
        assert await source.get("k") is None
        source.now += 0.01
        assert await source.get("k") == "1"

    run(test)


def test_no_answer_is_believed_no_longer_when_there_is_one() -> None:
    async def test(source: Source) -> None:
        source.answers |= {"k": None, "known": "1"}
        assert [await source.get(key) for key in ("k", "known")] == [None, "1"]
        source.answers |= {"k": "1", "known": "2"}
        for key in ("k", "known", "never asked"):
            source.cache.created(key)
        assert [await source.get(key) for key in ("k", "known")] == ["1", "1"]
        assert source.asked == ["k", "known", "k"]

    run(test)


def test_a_failed_question_is_told_to_all_who_wait_and_asked_again() -> None:
    async def test(source: Source) -> None:
        for _ in range(2):
            with pytest.raises(ConnectionError, match="no server answers"):
                await source.get("k")
        assert source.asked == ["k", "k"]
        assert len(source.cache) == 0

    run(test)


def test_a_failure_leaves_the_known_answer_and_is_not_repeated_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(source: Source) -> None:
        source.answers["k"] = "1"
        await source.get("k")
        del source.answers["k"]
        source.now += 20
        for _ in range(3):
            assert await source.get("k") == "1"
            await source.tasks.settled()
        assert source.asked == ["k", "k"]
        source.now += NONE_SECONDS
        assert await source.get("k") == "1"
        await source.tasks.settled()
        assert source.asked == ["k", "k", "k"]

    run(test)
    assert "answer is out of date" in caplog.text


def test_an_answer_without_use_is_asked_for_again() -> None:
    async def test(source: Source) -> None:
        source.answers["k"] = "1"
        await source.get("k")
        source.answers["k"] = "2"
        source.now += 300.1
        assert await source.get("k") == "2"

    run(test)


def test_the_answers_that_were_used_last_are_kept() -> None:
    async def test(source: Source) -> None:
        source.answers = dict.fromkeys("abcd", "1")
        for key in "abcabd":
            await source.get(key)
        assert len(source.cache) == 3
        assert [source.cache.known(key) for key in "abcd"] == ["1", "1", None, "1"]
        source.now += 301
        source.answers["e"] = "1"
        await source.get("e")
        assert len(source.cache) == 1

    run(test)


def test_a_doubt_asks_again_at_the_next_use_once_in_a_second() -> None:
    async def test(source: Source) -> None:
        source.answers["k"] = "1"
        await source.get("k")
        source.answers["k"] = "2"
        source.now += 0.5
        source.cache.doubt()
        assert await source.get("k") == "1"
        await source.tasks.settled()
        source.cache.doubt()
        assert await source.get("k") == "2"
        await source.tasks.settled()
        assert source.asked == ["k", "k"]

    run(test)


def test_a_fresh_answer_is_not_older_than_a_second() -> None:
    async def test(source: Source) -> None:
        source.answers["k"] = "1"
        assert await source.fresh("k") == "1"
        source.answers["k"] = "2"
        assert await source.fresh("k") == "1"
        source.now += NONE_SECONDS
        assert await source.fresh("k") == "2"
        source.answers["k"] = "3"
        source.cache.refresh("k")
        source.cache.refresh("unknown")
        source.now += NONE_SECONDS
        source.cache.refresh("k")
        await source.tasks.settled()
        assert source.cache.known("k") == "3"
        assert source.asked == ["k", "k", "k"]

    run(test)


def test_the_end_of_the_tasks_is_told_to_all_who_wait() -> None:
    async def test(source: Source) -> None:
        source.gate.clear()
        waiting = asyncio.create_task(source.get("k"))
        await until(lambda: bool(source.asked))
        await source.tasks.close()
        with pytest.raises(ConnectionError, match="answer for k: the proxy stops"):
            await waiting

    run(test)


def test_questions_after_the_end_of_the_tasks_fail_at_once() -> None:
    async def test(source: Source) -> None:
        source.answers["k"] = "1"
        await source.get("k")
        await source.tasks.close()
        source.now += 100
        source.cache.refresh("k")
        assert await source.get("k") == "1"
        with pytest.raises(ConnectionError, match="answer for other: the proxy stops"):
            await source.get("other")

    run(test)
