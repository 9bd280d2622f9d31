"""What the last records of a log tell of transactions, and of messages that waited."""

from __future__ import annotations

from pathlib import Path

from firearrow.message.sysflag import TRANSACTION_COMMIT
from firearrow.store import committed_halves, delivered_copies, timed_copies
from tests.store.stores import BORN_HOST, BORN_MS, append, opened


def test_commits_name_their_halves(tmp_path: Path) -> None:
    with opened(tmp_path, background=False) as store:
        places = []
        for number in range(300):  # some files of the log
            places.append(store.log_end_offset)
            append(store, bytes(500))
            sys_flag = TRANSACTION_COMMIT if number % 3 == 0 else 0
            queue, born = store.queue("T", 1), (BORN_MS, BORN_HOST)
            store.put(queue, b"", b"", 0, sys_flag, *born, BORN_MS, 0, number)
        found = [each for some in committed_halves(store, places[100], 1 << 30) for each in some]
        assert [half for half, _ in found] == list(range(102, 300, 3))
        for half, place in found:
            view = store.view_at(place)
            assert (view.prepared_transaction_offset, view.queue_offset) == (half, half)
        some = [half for some in committed_halves(store, places[100], 1) for half in some]
        assert 0 < len(some) < len(found)
        assert list(committed_halves(store, store.log_end_offset, 1 << 30)) == []


def test_what_was_delivered_names_what_waited(tmp_path: Path) -> None:
    """Deliveries of delay levels by RocketMQ name nothing, and what still waits is none."""
    with opened(tmp_path, background=False) as store:
        kinds = (
            ("T", b"DELAY\x013\x02", 7),
            ("T", b"a\x01b\x02DELAY\x0118\x02", 0),
            ("SCHEDULE_TOPIC_XXXX", b"DELAY\x013\x02", 9),
            ("T", b"TIMER_OUT_MS\x0150\x02", 8),
            ("T", b"TIMER_OUT_MS\x0150\x02", 0),
            ("T", b"a\x01b\x02", 5),
        )
        places = []
        for topic, text, named in kinds * 50:
            queue, born = store.queue(topic, 1), (BORN_MS, BORN_HOST)
            places.append(store.put(queue, bytes(500), text, 0, 0, *born, BORN_MS, 0, named))
        everything = places[0], 1 << 30
        delayed = [each for some in delivered_copies(store, *everything) for each in some]
        timed = [each for some in timed_copies(store, *everything) for each in some]
        levels = [(7, 0), (0, 1)]
        assert delayed == [(named, places[at + 6 * n]) for n in range(50) for named, at in levels]
        assert timed == [(8, places[3 + 6 * n]) for n in range(50)]
        last = [place for some in timed_copies(store, places[0], 1) for _, place in some]
        base = store.log.base_of(store.log_end_offset)
        assert last == [place for _, place in timed if place >= base] != []
