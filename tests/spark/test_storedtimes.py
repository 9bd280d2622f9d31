"""Times in a log: any of them, in any order, in one file or many."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.spark.storedtimes import StoredTimes
from firearrow.spark.stores import Store
from firearrow.store.reading import storage
from tests.spark import logs, oracle


@given(
    sent=st.lists(
        st.builds(
            lambda size, step_ms: logs.Sent(body=bytes(size), step_ms=step_ms),
            st.integers(0, 300),
            st.sampled_from([0, 0, 1, 10]),
        ),
        min_size=1,
        max_size=60,
    ),
    file_bytes=st.sampled_from([1500, 4096, 1 << 20]),
    asked=st.lists(st.integers(-5, 300), min_size=1, max_size=20),
)
def test_every_time_is_found_in_any_order(sent: list[logs.Sent], file_bytes: int, asked: list[int]) -> None:
    with TemporaryDirectory() as home:
        root = Path(home)
        logs.write(root, sent, file_bytes)
        store = Store(str(root))
        rows = oracle.log(root, "")
        stored = [logs.START_MS + sum(message.step_ms for message in sent[: number + 1]) for number in range(len(sent))]
        times = StoredTimes(store, store.log.end)
        for moment in asked:
            row = bisect_left(stored, logs.START_MS + moment)
            found = times.first_at(logs.START_MS + moment)
            if row < len(rows):
                assert found == rows[row]["commitLogOffset"]
            else:
                assert found > rows[-1]["commitLogOffset"]


def test_what_is_allocated_ahead_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.write(tmp_path, [logs.Sent(step_ms=10) for _ in range(2000)], 64 << 20)
    store = Store(str(tmp_path))
    times = StoredTimes(store, store.log.end)
    looks = 0
    window = storage.LocalStorage.window

    def counted(self: storage.LocalStorage, path: str, start: int, end: int) -> memoryview:
        nonlocal looks
        looks += 1
        return window(self, path, start, end)

    monkeypatch.setattr(storage.LocalStorage, "window", counted)
    rows = oracle.log(tmp_path, "")
    assert times.first_at(logs.START_MS + 5000) == rows[499]["commitLogOffset"]
    assert looks > 10
    looks = 0
    assert times.first_at(logs.START_MS + 5001) == rows[500]["commitLogOffset"]
    assert looks <= 2
    assert times.first_at(logs.START_MS + (1 << 30)) > rows[-1]["commitLogOffset"]
    assert looks <= 10


@pytest.mark.parametrize("asked", [0, 3, 10, 25, 60, 99])
@pytest.mark.parametrize("gone", [1, 3])
def test_files_that_retention_deletes_meanwhile_are_passed_over(asked: int, gone: int, tmp_path: Path) -> None:
    logs.write(tmp_path, [logs.Sent(body=bytes(200), step_ms=1)] * 60, 1500)
    store = Store(str(tmp_path))
    times = StoredTimes(store, store.log.end)
    before = times.first_at(logs.START_MS + asked)
    for file in store.log.files[:gone]:
        (tmp_path / file.path).unlink()
    later = StoredTimes(store, store.log.end)
    assert later.first_at(logs.START_MS + asked) == max(before, store.log.files[gone].base)
    assert store.stored_at(0) is None
