"""Queues and an index that can't be written for a while: they hold nobody up, and catch up."""

import os
import shutil
from pathlib import Path

import pytest

from firearrow.errors import CorruptStore
from firearrow.store import GetStatus
from tests.broker.fakes import HandClock
from tests.store.stores import abandon, append, bodies, bodies_by_key, make_store, settle


class Running:
    """An open store, and what it was sent: messages by turns to two topics."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = HandClock()
        self.sent: dict[str, list[bytes]] = {"A": [], "B": []}
        self.open()

    def open(self) -> None:
        self.store = make_store(self.root, clock=self.clock)
        self.store.open(background=False)

    def send(self, count: int) -> None:
        for _ in range(count):
            for topic, sent in self.sent.items():
                body = b"%s %d" % (topic.encode(), len(sent))
                append(self.store, body, topic, properties={"KEYS": body.decode()[2:]})
                sent.append(body)
        settle(self.store)

    def catch_up(self) -> None:
        """Let a minute pass, and all steps be taken."""
        self.clock.seconds += 61
        self.store.catch_up_left_out()
        self.clock.seconds += 61
        while (wait := self.store.catch_up_left_out()) is not None and wait < 1:
            pass

    def check(self) -> None:
        for topic, sent in self.sent.items():
            assert bodies(self.store, topic) == sent
            assert self.store.queue(topic, 0).next_offset == len(sent)
            for number in (0, len(sent) - 1):
                assert bodies_by_key(self.store, str(number), topic) == [sent[number]]

    def end_and_open(self, end: str) -> None:
        if end == "closed":
            self.store.close()
        else:
            abandon(self.store)
            if end == "lost power":
                (self.root / "settled").unlink()
        self.open()


@pytest.fixture
def running(tmp_path: Path) -> Running:
    return Running(tmp_path)


@pytest.mark.parametrize("place", ["consumequeue/A", "consumequeue/A/0"])
def test_a_file_in_the_place_of_a_directory_holds_nobody_up(running: Running, place: str) -> None:
    (running.root / place).parent.mkdir(parents=True, exist_ok=True)
    (running.root / place).write_text("what is this?")
    running.send(50)
    assert bodies(running.store, "B") == running.sent["B"]
    assert bodies(running.store, "A") == []
    running.catch_up()
    running.check()
    running.send(5)
    running.check()
    assert (running.root / "quarantine" / place).read_text() == "what is this?"
    assert running.store.catch_up_left_out() is None
    running.end_and_open("closed")
    running.check()
    assert not (running.root / "left-out-queues.tsv").exists()


@pytest.mark.parametrize("end", ["closed", "killed", "lost power"])
@pytest.mark.parametrize("flushed", [True, False])
def test_a_queue_that_was_left_out_is_whole_at_the_next_start(running: Running, end: str, flushed: bool) -> None:
    running.send(10)
    running.clock.seconds += 61
    running.store.flush_step()
    queue = running.root / "consumequeue/A/0"
    shutil.rmtree(queue)
    queue.write_text("")
    running.send(50)
    if flushed:
        running.clock.seconds += 61
        running.store.flush_step()
    assert bodies(running.store, "A") == running.sent["A"][: len(bodies(running.store, "A"))]
    running.end_and_open(end)
    running.check()
    running.store.close()
    assert not (running.root / "left-out-queues.tsv").exists()


def test_who_consumes_of_a_queue_that_is_left_out_is_not_moved(running: Running) -> None:
    running.send(20)
    running.store.flush_step()
    queue = running.root / "consumequeue/A/0"
    shutil.rmtree(queue)
    queue.write_text("")
    running.send(30)
    known = running.store.max_queue_offset("A", 0)
    assert known >= 20
    found = running.store.get("A", 0, known, 32)
    assert (found.status, found.next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, known)
    assert bodies(running.store, "A") == running.sent["A"][:known]
    arrived: list[tuple[str, int, int, int]] = []
    running.store.messages_arrived.listen(arrived.extend)
    running.catch_up()
    assert arrived == [("A", 0, known, 50)]
    running.check()


def test_of_a_queue_that_can_not_even_be_moved_nothing_is_said(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is its consumer moved to another offset, nor is an offset given twice."""
    running.send(30)
    running.store.close()
    (running.root / f"consumequeue/A/0/{0:020d}").write_bytes(b"short")
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.parts[-3:] == ("consumequeue", "A", "0"):
            raise PermissionError(13, "refused", str(path))
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", refuse)
        running.open()
        running.send(5)
        running.catch_up()
        running.store.clean()
        assert bodies(running.store, "B") == running.sent["B"]
        for ask in (running.store.max_queue_offset, running.store.min_queue_offset):
            with pytest.raises(CorruptStore, match="queue A-0 can't be read for now: "):
                ask("A", 0)
        with pytest.raises(CorruptStore, match="queue A-0 can't be read for now: "):
            running.store.get("A", 0, 30, 32)
        assert running.store.queue("A", 0).next_offset == 35
    running.catch_up()
    running.check()


def test_files_that_are_deleted_under_a_running_store_are_rebuilt(running: Running) -> None:
    running.send(50)
    running.clock.seconds += 61
    running.store.flush_step()
    shutil.rmtree(running.root / "consumequeue/A")
    running.send(3)
    running.clock.seconds += 61
    running.store.flush_step()
    running.catch_up()
    running.clock.seconds += 61
    running.store.flush_step()
    running.check()
    assert not (running.root / "left-out-queues.tsv").exists()
    running.end_and_open("killed")
    running.check()


def test_an_index_that_can_not_be_written_holds_nobody_up(running: Running) -> None:
    running.send(20)
    shutil.rmtree(running.root / "index")
    (running.root / "index").write_text("")
    running.send(100)
    assert [len(bodies(running.store, topic)) for topic in "AB"] == [120, 120]
    running.catch_up()
    (running.root / "index").unlink()
    running.catch_up()
    running.check()
    running.send(1)
    running.end_and_open("closed")
    running.check()


def test_a_file_in_the_place_of_the_index_stops_no_start(running: Running) -> None:
    running.send(20)
    running.store.close()
    shutil.rmtree(running.root / "index")
    (running.root / "index").write_text("what is this?")
    running.open()
    running.check()
    assert (running.root / "quarantine/index").read_text() == "what is this?"


def test_a_topic_that_is_deleted_meanwhile_stays_deleted(running: Running) -> None:
    (running.root / "consumequeue").mkdir(exist_ok=True)
    (running.root / "consumequeue/A").write_text("")
    running.send(5)
    running.clock.seconds += 61
    running.store.catch_up_left_out()
    running.clock.seconds += 61
    running.store.catch_up_left_out()
    running.store.delete_topic("A")
    running.catch_up()
    assert bodies(running.store, "A") == []
    running.sent["A"].clear()
    assert not os.path.lexists(running.root / "left-out-queues.tsv")
    running.end_and_open("closed")
    assert bodies(running.store, "A") == []
