"""A store is read while its broker has it open, and left as it is."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import CorruptStore
from firearrow.spark.options import parse
from firearrow.spark.planning.stores import Store, StoredTimes, open_stores
from firearrow.store.reading import storage
from tests.spark import logs, oracle
from tests.spark.source.test_files import by_place, read
from tests.store.stores import KINDS, append, opened, settle


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("visibility", ["consumer", "log"])
def test_beside_a_store_that_is_open(kind: str, visibility: str, tmp_path: Path) -> None:
    root = tmp_path / "s"
    with opened(root, background=False, store_type=kind) as store:
        for number in range(500):
            append(store, bytes([number % 256]) * 200, f"T{number % 3}")
        settle(store)
        store.queues.flush(0)
        for number in range(500, 507):  # not dispatched yet
            append(store, bytes([number % 256]) * 200, f"T{number % 3}")
        before = sorted(path for path in root.rglob("*"))
        found = by_place(read(root, visibility=visibility, splitBytes="20k"))
        assert [row["body"][0] for row in found] == [number % 256 for number in range(507)]
        assert sorted(path for path in root.rglob("*")) == before
    assert len(read(root, visibility=visibility)) == 507


def test_names_of_brokers(tmp_path: Path) -> None:
    root = tmp_path / "directory"
    logs.write(root, [logs.Sent()])
    assert Store(str(root)).broker == "directory"
    assert Store(f"{root}/").broker == "directory"
    assert Store(str(root), "given").broker == "given"
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text(
        '{"topicConfigTable":{"a":{},"rmq_sys_SYNC_BROKER_MEMBER_broker-7":{}}}'
    )
    assert Store(str(root)).broker == "broker-7"
    (root / "brokerIdentity").write_text("cluster#broker-8#0\n")
    assert Store(str(root)).broker == "broker-8"


def test_one_path_twice_is_one_store(tmp_path: Path) -> None:
    logs.write(tmp_path / "s", [logs.Sent()])
    paths = f'["{tmp_path}/s", "{tmp_path}/s"]'
    assert len(open_stores(parse({"paths": paths}))) == 1


def test_a_configuration_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    root = tmp_path / "s"
    logs.write(root, [logs.Sent()])
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text("{]")
    with pytest.raises(CorruptStore, match=r"config/topics\.json can't be read"):
        assert Store(str(root)).topics


# --- Times in a log: any of them, in any order, in one file or many ---


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
