"""What is deleted when, what follows it, and when sends are refused."""

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from firearrow.errors import DiskFull
from firearrow.store import Consumed, MessageStore
from firearrow.store.fs import FileSystem
from tests.broker.fakes import NOW_MS, HandClock
from tests.loglines import told
from tests.store.stores import KiB, append, bodies_by_key, make_store, messages, opened, settle

HOUR = 3600
COUNT = 48
HOUR_NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC).astimezone().hour
OTHER_HOURS = ";".join(str(hour) for hour in range(24) if hour != HOUR_NOW)


class Disk(FileSystem):
    """A disk that is as full as it is told to be, and notes what is removed."""

    def __init__(self) -> None:
        self.used = 0.1
        self.done: list[str] = []

    def used_ratio(self, path: Path) -> float:
        return self.used

    def remove(self, path: Path) -> None:
        super().remove(path)
        self.done.append(f"{path.parent.name}/{path.name}")

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.done.append(f"sync {path.name}")


class Kept:
    """An open store with three files of messages that are ``hours`` old."""

    def __init__(self, root: Path, **changed: Any) -> None:
        self.disk = Disk()
        self.clock = HandClock()
        self.store = make_store(root, fs=self.disk, clock=self.clock, **changed)
        self.store.open(background=False)
        for number in range(COUNT):
            append(
                self.store,
                b"%d" % number + bytes(3000),
                queue_id=number % 2,
                now_ms=NOW_MS + number,
                properties={"KEYS": f"k{number}"},
            )
        settle(self.store)
        self.store.when_safe(self.store.log.end_offset, lambda done: None)
        self.store.flush_step()
        assert self.files == 3
        self.disk.done.clear()

    @property
    def files(self) -> int:
        return len(list((self.store.root / "commitlog").iterdir()))

    def pass_hours(self, hours: int) -> None:
        self.clock.seconds += hours * HOUR
        self.store.flush_step()

    def gone(self) -> int:
        """How many messages are gone; the others are all there."""
        first = self.store.log.start_offset
        found = [view for q in (0, 1) for view in messages(self.store, "T", q)]
        assert all(view.physical_offset >= first for view in found)
        numbers = sorted(int(view.body.rstrip(b"\0")) for view in found)
        assert numbers == list(range(COUNT - len(numbers), COUNT))
        return COUNT - len(numbers)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_files_go_when_their_time_is_over_and_the_hour_has_come(root: Path) -> None:
    kept = Kept(root, delete_when=f"{HOUR_NOW:02d}")
    kept.pass_hours(71)
    kept.store.clean()
    assert (kept.files, kept.gone()) == (3, 0)
    kept.pass_hours(1 + 24)
    kept.store.clean()
    assert kept.files == 1
    assert kept.gone() > 30
    assert kept.store.get("T", 0, 0, 1).status.name == "OFFSET_TOO_SMALL"
    kept.store.close()
    names = [word for word in kept.disk.done if "commitlog" in word]
    assert names == [f"commitlog/{0:020d}", "sync commitlog", f"commitlog/{64 * KiB:020d}", "sync commitlog"]


@pytest.mark.parametrize("days", [400, -400])
def test_a_clock_that_was_wrong_for_a_while_keeps_nothing_for_ever_and_deletes_nothing_early(
    root: Path, days: int
) -> None:
    """The second file, or its first message alone, was stored at another time."""
    kept = Kept(root, delete_when=f"{HOUR_NOW:02d}")
    for file in kept.store.log.segments.files[1:2]:
        at = 56
        right = int.from_bytes(file.map[at : at + 8], "big")
        file.map[at : at + 8] = (right + days * 24 * HOUR * 1000).to_bytes(8, "big")
    kept.pass_hours(71)
    kept.store.clean()
    assert (kept.files, kept.gone()) == (3, 0)
    kept.pass_hours(1 + 24)
    kept.store.clean()
    assert kept.files == 1
    kept.store.close()


def test_queues_and_index_follow_the_log_and_a_start_finds_all_in_order(root: Path) -> None:
    kept = Kept(root, delete_when=f"{HOUR_NOW:02d}", max_index_num=12)
    queue_files = len(list((root / "consumequeue/T/0").iterdir()))
    index_files = len(list((root / "index").iterdir()))
    kept.pass_hours(96)
    kept.store.clean()
    gone = kept.gone()
    kept.store.close()
    assert len(list((root / "consumequeue/T/0").iterdir())) < queue_files
    assert len(list((root / "index").iterdir())) < index_files
    store = make_store(root, max_index_num=12)
    store.open(background=False)
    found = sorted(view.queue_offset for view in messages(store))
    assert found == list(range(-(-gone // 2), COUNT // 2))
    assert len(bodies_by_key(store, f"k{COUNT - 1}")) == 1
    assert bodies_by_key(store, "k0") == []
    append(store, b"new")
    settle(store)
    assert messages(store)[-1].queue_offset == COUNT // 2
    store.close()


def test_at_another_hour_nothing_goes_unless_somebody_asks(root: Path) -> None:
    kept = Kept(root, delete_when=OTHER_HOURS)
    kept.pass_hours(96)
    kept.store.clean()
    assert kept.files == 3
    kept.store.clean_on_request()
    assert kept.files == 1
    kept.store.close()


def test_one_round_deletes_no_more_than_it_may(root: Path) -> None:
    kept = Kept(root, delete_when=f"{HOUR_NOW:02d}", delete_file_batch_max=1)
    kept.pass_hours(96)
    kept.store.clean()
    assert kept.files == 2
    kept.store.close()


@pytest.mark.parametrize(("used", "hours", "left"), [(0.75, 96, 3), (0.76, 96, 1), (0.85, 1, 3), (0.86, 1, 1)])
def test_a_fuller_disk_lets_files_go_sooner(root: Path, used: float, hours: int, left: int) -> None:
    kept = Kept(root, delete_when=OTHER_HOURS)
    kept.pass_hours(hours)
    kept.disk.used = used
    kept.store.clean()
    assert kept.files == left
    kept.store.close()


def test_files_are_kept_on_a_full_disk_if_that_is_wanted(root: Path) -> None:
    kept = Kept(root, delete_when=OTHER_HOURS, clean_file_forcibly_enable=False)
    kept.disk.used = 0.89
    kept.store.clean()
    assert kept.files == 3
    kept.store.close()


def test_sends_are_refused_on_a_full_disk_and_taken_again_once_there_is_room(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Kept(root, delete_when=OTHER_HOURS, clean_file_forcibly_enable=False)
    store = kept.store
    kept.disk.used = 0.91
    for _ in range(3):
        store.clean()
    end = store.log.end_offset
    for _ in range(3):
        with pytest.raises(DiskFull, match="the disk is full: 91% are used, above 90 %"):
            append(store, b"no")
    facts = store.runtime_facts()
    assert (facts["commitLogDiskRatio"], facts["consumeQueueDiskRatio"]) == ("0.91", "0.91")
    assert facts["writesRefused"].startswith("the disk is full: 91%")
    assert facts["putMessageFailedTimes"] == "3"
    assert store.log.end_offset == end
    assert kept.gone() == 0
    assert caplog.text.count("sends are refused") == 1
    kept.disk.used = 0.88
    store.clean()
    with pytest.raises(DiskFull):
        append(store, b"not yet")
    kept.disk.used = 0.8
    with caplog.at_level(logging.INFO):
        store.clean()
    refused, taken = (line for line in told(caplog) if "used_percent" in line)
    assert (refused["used_percent"], refused["limit_percent"]) == (91, 90)
    assert taken == {"event": "sends are taken again", "used_percent": 80, "limit_percent": 85}
    assert append(store, b"yes") == end
    facts = store.runtime_facts()
    assert (facts["writesRefused"], facts["putMessageFailedTimes"]) == ("", "4")
    store.close()


def behind(store: MessageStore) -> None:
    """Have a group say that it has consumed 5 of each queue."""
    store.know_progress(lambda: [Consumed("readers", "T", q, 5) for q in (0, 1)])


def test_what_a_group_has_not_consumed_can_be_kept(root: Path) -> None:
    kept = Kept(root, delete_when=OTHER_HOURS, unconsumed_policy="keep")
    behind(kept.store)
    kept.pass_hours(96)
    kept.disk.used = 0.95
    kept.store.clean()
    assert (kept.files, kept.gone()) == (3, 0)
    with pytest.raises(DiskFull):
        append(kept.store, b"no")
    kept.store.know_progress(lambda: [Consumed("readers", "T", q, COUNT // 2) for q in (0, 1)])
    kept.store.clean()
    assert kept.files == 1
    kept.store.close()


def test_who_loses_what_can_be_told(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept(root, delete_when=f"{HOUR_NOW:02d}", unconsumed_policy="warn")
    behind(kept.store)
    kept.pass_hours(96)
    kept.store.clean()
    assert kept.files == 1
    lost = [line["unconsumed"] for line in told(caplog) if "unconsumed" in line]
    assert len(lost) == 2
    assert "group readers has 11 of T to consume" in str(lost[0])
    kept.store.close()


def test_nothing_goes_that_is_not_on_the_disk_and_in_the_queues(root: Path) -> None:
    kept = Kept(root, delete_when=f"{HOUR_NOW:02d}")
    for _ in range(40):
        append(kept.store, bytes(3000), now_ms=NOW_MS + COUNT)
    kept.pass_hours(96)
    kept.store.clean()
    assert kept.store.log.start_offset == 2 * 64 * KiB
    kept.store.close()


def test_a_file_that_can_not_be_removed_is_told_and_goes_another_time(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(disk: Disk, path: Path) -> None:
        raise PermissionError(1, "not permitted")

    kept = Kept(root, delete_when=f"{HOUR_NOW:02d}")
    kept.pass_hours(96)
    with monkeypatch.context() as patched:
        patched.setattr(Disk, "remove", refuse)
        kept.store.clean()
    assert "can't be removed" in caplog.text
    kept.store.close()
    again = make_store(root, fs=kept.disk, clock=kept.clock, delete_when=f"{HOUR_NOW:02d}")
    again.open(background=False)
    assert again.log.start_offset == 0
    again.when_safe(again.log.end_offset, lambda done: None)
    again.flush_step()
    again.clean()
    assert again.log.start_offset > 0
    again.close()


def test_nothing_overtakes_a_file_that_can_not_be_removed(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = Disk.remove

    def refuse(disk: Disk, path: Path) -> None:
        if path.name == f"{0:020d}":
            raise OSError(5, "Input/output error")
        remove(disk, path)

    kept = Kept(root, delete_when=f"{HOUR_NOW:02d}", delete_file_batch_max=1)
    kept.pass_hours(96)
    with monkeypatch.context() as patched:
        patched.setattr(Disk, "remove", refuse)
        for _ in range(3):
            kept.store.clean()
    assert (kept.files, kept.store.log.start_offset) == (3, 64 * KiB)
    assert caplog.text.count("can't be removed") == 1
    kept.store.clean()
    kept.store.clean()
    assert (kept.files, kept.store.log.start_offset) == (1, 128 * KiB)
    kept.store.close()


@pytest.mark.parametrize("queues", ["of a topic", "of which nothing is left"])
def test_what_is_rebuilt_is_not_taken_for_what_was_to_be_removed(root: Path, queues: str) -> None:
    kept = Kept(root)
    kept.store.close()
    # Its files are removed by a thread, which after the first waits for the store to be closed.
    store = make_store(
        root, clock=kept.clock, delete_when=f"{HOUR_NOW:02d}", delete_commit_log_files_interval=24 * HOUR * 1000
    )
    store.open()
    kept.clock.seconds += 96 * HOUR
    store.clean()
    if queues == "of a topic":
        store.delete_topic("T")
    else:
        store.queues.correct_min(store.log.end_offset)
        assert len(list(store.delete_expired_queues())) == 2
    append(store, b"new", now_ms=kept.clock.now_ms())
    settle(store)
    assert kept.files == 2
    store.close()
    assert kept.files == 1
    assert not (root / "abort").exists()
    again = make_store(root)
    again.open(background=False)
    assert [view.body for view in messages(again)] == [b"new"]
    again.close()


def test_queues_of_which_nothing_is_left_are_deleted_on_request(root: Path) -> None:
    kept = Kept(root, delete_when=f"{HOUR_NOW:02d}")
    append(kept.store, b"x", "Kept", now_ms=NOW_MS + COUNT)
    settle(kept.store)
    assert not list(kept.store.delete_expired_queues())
    kept.store.close()
    # Two queues whose messages all are in files that are gone.
    store = make_store(root, clock=kept.clock)
    store.open(background=False)
    store.queues.correct_min(store.log.end_offset)
    expired = {(queue.topic, queue.queue_id) for queue in store.delete_expired_queues()}
    assert expired == {("T", 0), ("T", 1), ("Kept", 0)}
    assert not (root / "consumequeue/T/0").exists()
    assert store.max_queue_offset("T", 0) == 0
    store.close()


def test_a_queue_with_messages_on_their_way_is_not_deleted(root: Path) -> None:
    with opened(root) as store:
        append(store, b"old")
        settle(store)
        store.queues.correct_min(store.log.end_offset)
        append(store, b"new")
        assert not list(store.delete_expired_queues())
        settle(store)
        assert store.max_queue_offset("T", 0) == 2


def test_queues_of_topics_that_nobody_has_are_deleted_on_request(root: Path) -> None:
    kept = Kept(root)
    append(kept.store, b"x", "Kept")
    append(kept.store, b"x", "RMQ_SYS_TRACE_TOPIC")
    settle(kept.store)
    assert list(kept.store.delete_unused_topics({"Kept"})) == ["T"]
    assert kept.store.max_queue_offset("T", 0) == 0
    assert kept.store.max_queue_offset("Kept", 0) == 1
    assert kept.store.max_queue_offset("RMQ_SYS_TRACE_TOPIC", 0) == 1
    kept.store.close()
