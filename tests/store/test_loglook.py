"""What the last records of a log tell of transactions."""

from __future__ import annotations

from pathlib import Path

from firearrow.message.sysflag import TRANSACTION_COMMIT
from firearrow.store import committed_halves
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
