"""What a start finds wrong with single files, and makes good."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from firearrow.message.model import MessageView
from firearrow.message.record import iter_records
from firearrow.store.checkpoint import Checkpoint
from tests.store.stores import abandon, append, bodies, make_store, messages, opened, settle
from tests.store.test_engine import check_complete, fill, filled, tree

QUEUE = "consumequeue/T/1"


def shorten(queue: Path) -> None:
    file = min(queue.iterdir())
    file.write_bytes(file.read_bytes()[:-7])


def lose_a_file(queue: Path) -> None:
    sorted(queue.iterdir())[1].unlink()


def misname(queue: Path) -> None:
    for file in sorted(queue.iterdir(), reverse=True):
        file.rename(queue / f"{int(file.name) + 7:020d}")


@pytest.mark.parametrize("damage", [shorten, lose_a_file, misname])
@pytest.mark.parametrize("clean", [True, False])
def test_a_queue_that_can_not_be_used_is_kept_aside_and_made_anew(
    tmp_path: Path, damage: Callable[[Path], None], clean: bool
) -> None:
    sent = filled(tmp_path)
    before = tree(tmp_path / QUEUE)
    damage(tmp_path / QUEUE)
    damaged = tree(tmp_path / QUEUE)
    if not clean:
        (tmp_path / "abort").touch()
    with opened(tmp_path) as store:
        check_complete(store, sent)
        append(store, b"more", queue_id=1)
        settle(store)
        assert messages(store, queue_id=1)[-1].queue_offset == 150
    assert tree(tmp_path / "quarantine" / QUEUE) == damaged
    with opened(tmp_path) as store:
        assert bodies(store, "T", 1) == [*sent[1::2], b"more"]
    for name, data in before.items():
        assert tree(tmp_path / QUEUE)[name].startswith(data.rstrip(b"\0"))


def test_a_queue_that_lost_its_files_is_made_anew_when_a_message_shows_it(tmp_path: Path) -> None:
    sent = filled(tmp_path, 200)
    store_end = max(view.physical_offset for view in iter_all(tmp_path))
    store = make_store(tmp_path)
    store.open()
    fill(store, [b"more %d" % n for n in range(100)], 200)
    abandon(store)
    shutil.rmtree(tmp_path / QUEUE)
    Checkpoint(queues_physical_offset=store_end).save(tmp_path / "checkpoint")
    (tmp_path / "settled").unlink()
    with opened(tmp_path) as store:
        check_complete(store, sent + [b"more %d" % n for n in range(100)])


def iter_all(root: Path) -> list[MessageView]:
    return [
        view
        for file in sorted((root / "commitlog").iterdir())
        for view in iter_records(file.read_bytes())
    ]


def test_lost_messages_are_bridged_by_the_next_one(tmp_path: Path) -> None:
    """A log that was mended after damage lacks messages; their queues go on behind them."""
    with opened(tmp_path) as store:
        for number in range(9):
            append(store, b"%d" % number, queue_id=number % 2)
    log = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    for number in (2, 4):  # queue 0 at 1 and 2: nothing dispatches what was rolled back
        data[iter_all(tmp_path)[number].physical_offset + 39] |= 0xC
    log.write_bytes(data)
    shutil.rmtree(tmp_path / "consumequeue")
    with opened(tmp_path) as store:
        assert bodies(store, "T", 1) == [b"1", b"3", b"5", b"7"]
        assert bodies(store, "T", 0) == [b"0", b"6", b"6", b"6", b"8"]
        append(store, b"new")
        settle(store)
        assert messages(store, start=5)[0].queue_offset == 5
