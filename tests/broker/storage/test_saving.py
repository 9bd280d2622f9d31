"""Saving: answers wait for the disk together, and files are written one after another."""

import asyncio
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.state.persistence import JsonFile, Rest, StateFile, no_rest
from firearrow.broker.storage.saving import WRITE_SECONDS, Saving, SavingService
from firearrow.errors import ConfigError, CorruptStore
from firearrow.journal import Change
from firearrow.testing.loop import VirtualClock, VirtualLoop, run
from firearrow.wire.command import FieldValue
from tests.broker.serving import Caller, Serving, calling, until
from tests.loglines import events

COUNT = 20


def topic_fields(topic: str) -> dict[str, FieldValue]:
    return {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1,
        "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
    }  # fmt: skip


def test_a_created_topic_is_on_the_disk_before_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that come during a sync wait for one more sync, all together."""
    go_on = threading.Event()
    syncs: list[str] = []
    sync = JsonFile.sync

    def slow(file: JsonFile) -> None:
        syncs.append(file.path.name)
        assert go_on.wait(20)
        sync(file)

    async def main(served: Serving, caller: Caller) -> None:
        monkeypatch.setattr(JsonFile, "sync", slow)
        asked = [caller.tell(17, topic_fields(f"T{number}")) for number in range(COUNT)]
        first = asyncio.create_task(caller.talker.answer())
        async with served.caller() as other:
            await until(lambda: len(syncs) == 1)
            await other.sent(topic="T0")  # no other request waits
        assert not first.done()
        go_on.set()
        answers = [await first] + [await caller.talker.answer() for _ in asked[1:]]
        assert [answer.opaque for answer in answers] == asked
        assert {answer.code for answer in answers} == {0}
        assert syncs == ["topics.json"] * len(syncs)
        assert len(syncs) <= 2

    calling(tmp_path, main)


def test_an_answer_in_steps_waits_for_the_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its client says that it sends nothing more."""
    syncs: list[str] = []
    sync = JsonFile.sync

    def noted(file: JsonFile) -> None:
        sync(file)
        syncs.append(file.path.name)

    async def main(_: Serving, caller: Caller) -> None:
        monkeypatch.setattr(JsonFile, "sync", noted)
        configs = [{"topicName": f"T{number}"} for number in range(COUNT)]
        asked = caller.tell(18, {}, json.dumps({"topicConfigList": configs}).encode())
        caller.talker.write_end()
        assert (await caller.talker.answer()).opaque == asked
        assert syncs == ["topics.json"]
        assert await caller.talker.end() == b""

    calling(tmp_path, main)


@pytest.mark.parametrize("error", [OSError(5, "the disk is gone"), ConfigError("the disk is gone: no such database")])
def test_what_the_disk_does_not_take_is_said_and_the_next_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """No request waits for ever, and changes without a sync get it with the next change."""
    synced: list[Path] = []
    sync = JsonFile.sync

    def failing(_: JsonFile) -> None:
        raise error

    def noted(file: JsonFile) -> None:
        sync(file)
        synced.append(file.path)

    async def main(_: Serving, caller: Caller) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(JsonFile, "sync", failing)
            answer = await caller.call(17, topic_fields("T"))
        assert answer.code == 1
        assert "the disk is gone" in (answer.remark or "")
        monkeypatch.setattr(JsonFile, "sync", noted)
        group = json.dumps({"groupName": "G"}).encode()
        assert (await caller.call(200, {}, group)).code == 0
        assert {path.name for path in synced} == {"topics.json", "subscriptionGroup.json"}

    calling(tmp_path, main)


def test_files_that_fall_due_meanwhile_are_written_afterwards(tmp_path: Path) -> None:
    states = [StateFile(JsonFile(tmp_path / f"{name}.json"), lambda: {"a": 1}) for name in "xy"]

    async def main() -> None:
        saving = Saving(states)
        for state in states:
            state.keep(Change({}, {"dataVersion": {"counter": 1}}))
            saving.write(state)
        assert [state.behind for state in states] == [False, True]
        await saving.finish()
        assert [state.behind for state in states] == [False, False]

    asyncio.run(main())
    assert sorted(path.name for path in tmp_path.glob("*.json*")) == ["x.json", "y.json"]


def test_who_writes_a_long_file_rests_until_the_broker_stops(tmp_path: Path) -> None:
    rests: list[bool] = []

    class LongFile(JsonFile):
        """Takes for ever to write with rests."""

        def write(self, content: Mapping[str, Any], rest: Rest = no_rest) -> None:
            while not rests or not rests[-1]:
                rests.append(bool(rest()))
            super().write(content, rest)

    async def main() -> None:
        state = StateFile(LongFile(tmp_path / "x.json"), lambda: {"a": 1})
        state.behind = True
        saving = Saving([state])
        saving.write(state)
        await until(lambda: len(rests) > 2)
        await saving.stop()
        assert rests[:3] + rests[-1:] == [False, False, False, True]
        assert state.read() == {"a": 1}

    asyncio.run(main())


def test_a_file_that_fails_is_written_the_next_time_and_those_after_it_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(JsonFile):
        """Fails to write at first."""

        has_failed = False

        def write(self, content: Mapping[str, Any], rest: Rest = no_rest) -> None:
            if not self.has_failed:
                self.has_failed = True
                raise CorruptStore("the database is damaged")
            super().write(content, rest)

    files = Failing(tmp_path / "x.json"), JsonFile(tmp_path / "y.json")
    states = [StateFile(file, lambda: {"a": 1}) for file in files]

    async def main() -> None:
        saving = Saving(states)
        for expected in ([True, False], [False, False]):
            states[1].behind = states[0].behind = True
            saving.write(*states)
            await saving.finish()
            assert [state.behind for state in states] == expected

    asyncio.run(main())
    assert events(caplog) == ["file can't be written: the write is retried"]
    assert "the database is damaged" in caplog.text


class Refusing(JsonFile):
    """Counts its writes, and refuses some."""

    writes = refuses = 0

    def write(self, content: Mapping[str, Any], rest: Rest = no_rest) -> None:
        self.writes += 1
        if self.refuses:
            self.refuses -= 1
            raise OSError(28, "No space left on device")
        super().write(content, rest)


def test_a_file_follows_a_change_within_a_second_and_nothing_runs_until_the_next(tmp_path: Path) -> None:
    storage = Refusing(tmp_path / "x.json")
    state = StateFile(storage, lambda: {"a": 1})

    async def main(_: VirtualClock) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        following = SavingService(Saving([state]), [state], loop)
        await following.start()
        await asyncio.sleep(3600)
        assert loop.leaps <= 2
        state.keep(Change({}, {"dataVersion": {"counter": 1}}))
        await asyncio.sleep(WRITE_SECONDS + 0.001)
        assert (storage.writes, state.read()) == (1, {"a": 1})
        storage.refuses = 3
        state.keep(Change({}, {"dataVersion": {"counter": 2}}))
        await asyncio.sleep(3600)
        assert (storage.writes, state.behind) == (5, False)
        assert loop.leaps < 20
        await following.stop()
        state.keep(Change({}, {"dataVersion": {"counter": 3}}))
        await asyncio.sleep(3600)
        assert storage.writes == 5

    run(main)
