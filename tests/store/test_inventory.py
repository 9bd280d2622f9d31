"""What a clean stop notes, and what the next start says and does where that is gone."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from firearrow.errors import CorruptStore
from firearrow.store import engine, inventory
from firearrow.store.fs import OS_FILES
from firearrow.store.inventory import Inventory
from tests.loglines import told
from tests.store.stores import abandon, append, bodies, bodies_by_key, make_store, opened, settle
from tests.store.test_engine import check_complete, filled

QUEUE = "consumequeue/T/1"


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def first(directory: Path) -> None:
    (directory / names(directory)[0]).unlink()


def last(directory: Path) -> None:
    (directory / names(directory)[-1]).unlink()


def test_the_bytes_of_the_note(tmp_path: Path) -> None:
    noted = Inventory(2774365718, (0, 4096), ["20261120213113741"], {"T": {0: (0, 12)}})
    inventory.save(tmp_path, noted, OS_FILES)
    assert (tmp_path / "closed.json").read_text() == (
        '{"checkpoint":2774365718,"log":[0,4096],"index":["20261120213113741"],"queues":{"T":{"0":[0,12]}}}'
    )
    assert inventory.load(tmp_path) is None  # of another checkpoint
    (tmp_path / "closed.json").write_text("{")
    assert inventory.load(tmp_path) is None


def test_it_is_there_only_while_the_store_is_closed(tmp_path: Path) -> None:
    filled(tmp_path)
    noted = inventory.load(tmp_path)
    assert noted is not None
    assert noted.queues == {"T": {0: (0, 150), 1: (0, 150)}}
    assert noted.index == names(tmp_path / "index")
    store = make_store(tmp_path)
    store.open()
    assert not (tmp_path / "closed.json").exists()
    assert noted.log == (0, store.log.end_offset)
    abandon(store)
    assert not (tmp_path / "closed.json").exists()


@pytest.mark.parametrize("lose", [first, last, shutil.rmtree])
@pytest.mark.parametrize("killed", [True, False])
def test_what_vanished_of_a_queue_is_rebuilt(
    tmp_path: Path, lose: Callable[[Path], None], killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    sent = filled(tmp_path)
    lose(tmp_path / QUEUE)
    if killed:  # a start that has seen it, before it could do anything
        (tmp_path / "abort").touch()
    with opened(tmp_path) as store:
        check_complete(store, sent)
    [line] = [line for line in told(caplog) if line["event"] == "queue is left out"]
    assert (line["topic"], line["queue_id"]) == ("T", 1)
    assert line["reason"] == "it lacks messages that it had when the store was closed"
    caplog.clear()
    with caplog.at_level(logging.WARNING), opened(tmp_path) as store:
        check_complete(store, sent)
    assert not caplog.records
    assert not (tmp_path / "left-out-queues.tsv").exists()


@pytest.mark.parametrize("lose", [first, last])
def test_what_vanished_after_a_stop_of_rocketmq_is_rebuilt(
    tmp_path: Path, lose: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """It leaves no note, but queues don't fit the log any more."""
    sent = filled(tmp_path)
    (tmp_path / "closed.json").unlink()
    with opened(tmp_path) as store:
        check_complete(store, sent)
    assert "rebuilt" not in caplog.text
    (tmp_path / "closed.json").unlink()
    lose(tmp_path / QUEUE)
    with opened(tmp_path) as store:
        check_complete(store, sent)
    assert {("queue is left out", "T", 1, "it lacks messages that the log has")} <= {
        (line["event"], line.get("topic"), line.get("queue_id"), line.get("reason")) for line in told(caplog)
    }


def test_a_topic_that_was_deleted_stays_so_without_a_note(tmp_path: Path) -> None:
    filled(tmp_path)
    with opened(tmp_path) as store:
        append(store, b"of another topic", "Other")
        settle(store)
        store.delete_topic("T")
        append(store, b"of the new one", "T")
    (tmp_path / "closed.json").unlink()
    with opened(tmp_path) as store:
        assert bodies(store, "T", 0) == [b"of the new one"]
        assert bodies(store, "T", 1) == []


def test_entries_that_lead_to_no_record_stop_no_start_without_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine, "LOOK_BYTES", 4096)
    filled(tmp_path)
    (tmp_path / "closed.json").unlink()
    for path in (tmp_path / "consumequeue/T").glob("*/*"):
        data = bytearray(path.read_bytes())
        for at in range(0, len(data), 20):
            if any(data[at : at + 8]):
                data[at + 7] ^= 1
        path.write_bytes(data)
    with opened(tmp_path) as store:
        assert store.max_queue_offset("T", 0) == 150
    assert "can't be compared with the end of the log" in caplog.text


def test_a_file_in_the_place_of_a_topic_is_kept_and_its_queues_are_rebuilt(tmp_path: Path) -> None:
    sent = filled(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue/T")
    (tmp_path / "consumequeue/T").write_text("what is this?")
    with opened(tmp_path) as store:
        check_complete(store, sent)
    assert (tmp_path / "quarantine/consumequeue/T").read_text() == "what is this?"


def test_a_queue_that_vanished_with_its_messages_goes_on_where_it_was(tmp_path: Path) -> None:
    filled(tmp_path)
    store = make_store(tmp_path)
    store.open(background=False)
    for _ in range(300):
        append(store, bytes(600), "Other")
    settle(store)
    while len(store.log.segments.files) > 1:
        store.log.segments.drop(store.log.segments.shift())
    store.close()
    shutil.rmtree(tmp_path / QUEUE)
    with opened(tmp_path) as store:
        assert store.queue("T", 1).next_offset == store.max_queue_offset("T", 1) == 150
        append(store, b"next", queue_id=1)
        settle(store)
        assert store.get("T", 1, 150, 1).count == 1


@pytest.mark.parametrize("lose", [first, last])
def test_what_vanished_of_the_index_is_rebuilt(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    with opened(tmp_path) as store:
        for number in range(500):
            append(store, b"%d" % number, properties={"KEYS": f"k{number}"})
    assert len(names(tmp_path / "index")) > 2
    lose(tmp_path / "index")
    with opened(tmp_path) as store:
        for number in range(0, 500, 7):
            assert bodies_by_key(store, f"k{number}") == [b"%d" % number]


def test_without_the_end_of_its_log_a_store_does_not_start(tmp_path: Path) -> None:
    filled(tmp_path, 2000)
    log = tmp_path / "commitlog"
    gone = log / names(log)[-1]
    data = gone.read_bytes()
    gone.unlink()
    for _ in range(2):
        with pytest.raises(CorruptStore, match=f"put {gone} back, or delete {tmp_path}/closed.json to"):
            make_store(tmp_path).open()
    gone.write_bytes(data)
    with opened(tmp_path) as store:
        assert store.max_queue_offset("T", 0) == 1000
    gone.unlink()
    (tmp_path / "closed.json").unlink()
    with opened(tmp_path) as store:
        assert 0 < store.max_queue_offset("T", 0) < 1000


def test_that_the_log_lost_its_beginning_or_end_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, 2000)
    log = tmp_path / "commitlog"
    first(log)
    with opened(tmp_path):
        [line] = [line for line in told(caplog) if "noted_physical_offset" in line]
        assert str(line["event"]).endswith("when the store was closed: the files between are gone")
        assert (line["noted_physical_offset"], line["physical_offset"]) != (0, 0)
        assert line["noted_physical_offset"] == 0
    with opened(tmp_path) as store:
        last_record = append(store, b"the last")
        place = store.log.end_offset
    path = log / names(log)[-1]
    data = bytearray(path.read_bytes())
    data[last_record - int(path.name) + 4] ^= 0xFF  # in its magic
    path.write_bytes(data)
    with opened(tmp_path):
        line = told(caplog)[-1]
        assert line["event"] == ("CommitLog ends before the place where it ended when the store was closed")
        assert (line["physical_offset"], line["noted_physical_offset"]) == (last_record, place)
