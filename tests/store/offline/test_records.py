"""Records come out as the original's own client decoded them, on whatever way they are found."""

import io
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from firearrow.errors import StoreError
from firearrow.message.compress import Compression
from firearrow.message.model import MessageView
from firearrow.message.sysflag import INNER_BATCH
from firearrow.store.offline import Layout, Selection, StoreView, as_row, find, write_stream
from tests import golden
from tests.message.writing import with_compression
from tests.store.offline.damage import golden_store, messages
from tests.store.stores import KINDS, append, opened, settle


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden_store(tmp_path_factory.mktemp("find"))


@pytest.fixture(scope="module")
def everything(root: Path) -> list[MessageView]:
    return messages(root)


def test_a_store_without_a_message_has_nothing_to_show(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    assert messages(tmp_path) == []
    assert messages(tmp_path, topic="T") == []
    assert messages(tmp_path, topic="T", queue_id=0) == []


def test_a_queue_without_a_file_between_others_is_an_error(tmp_path: Path) -> None:
    with opened(tmp_path, mapped_file_size_consume_queue=400) as store:
        for _ in range(60):
            append(store, b"body")
        settle(store)
    (tmp_path / f"consumequeue/T/0/{400:020d}").unlink()
    with pytest.raises(StoreError, match=r"queue T-0 has no file between \S+/0{20} and 0{17}800: "):
        messages(tmp_path, topic="T", queue_id=0)
    assert len(messages(tmp_path, topic="T")) == 60


@pytest.mark.parametrize("name", golden.golden_names)
def test_a_queue_reads_as_the_original_client_read_it(name: str, tmp_path: Path) -> None:
    store = golden.extract(name, tmp_path)
    expected = golden.expected(name)
    for line in expected:
        for added in golden.ADDED_BY_CLIENT:
            line["properties"].pop(added, None)
    wanted = [line for line in expected if line["topic"] == "GoldenPlain"]
    found: list[dict[str, Any]] = []
    for queue_id in range(4):
        views = messages(store, topic="GoldenPlain", queue_id=queue_id)
        found += [golden.as_java_prints(view) for view in views]
    order = lambda line: (line["queueId"], line["queueOffset"])  # noqa: E731
    assert sorted(found, key=order) == sorted(wanted, key=order)


def by_hand(everything: list[MessageView], **wanted: Any) -> list[MessageView]:
    return [view for view in everything if Selection(**wanted).holds(view)]


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"topic": "GoldenOrder"},
        {"topic": "GoldenOrder", "queue_id": 1},
        {"topic": "GoldenPlain", "queue_id": 2, "queue_from": 100, "queue_to": 110},
        {"topic": "GoldenPlain", "queue_from": 3, "queue_to": 4},
        {"queue_id": 3, "tag": "TagB"},
        {"topic": "GoldenPlain", "key": "order-13"},
        {"key": "order-13"},
        {"physical_from": 262_144, "physical_to": 300_000},
        {"physical_from": 1000, "physical_to": 5000},
        {"since_ms": 1_795_210_230_000, "until_ms": 1_795_210_231_000},
        {"topic": "NoSuchTopic"},
        {"topic": "标签"},
    ],
    ids=str,
)
def test_every_way_finds_what_a_look_at_all_finds(
    root: Path, everything: list[MessageView], wanted: dict[str, Any]
) -> None:
    assert messages(root, **wanted) == by_hand(everything, **wanted)


def test_one_record_by_id_and_by_place(root: Path, everything: list[MessageView]) -> None:
    chosen = everything[200]
    assert messages(root, topic=chosen.topic, unique_key=chosen.unique_key) == [chosen]
    at = chosen.physical_offset
    assert messages(root, physical_from=at, physical_to=at + 1) == [chosen]
    assert messages(root, physical_from=at + 1, physical_to=at + 2) == []


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_usual_queue_an_inner_batch_has_one_queue_offset(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path / "store", store_type=kind) as store:
        for _ in range(3):
            append(store, b"abc", properties={"INNER_NUM": "3"}, sys_flag=INNER_BATCH)
        settle(store)
    for queue_id in (0, None):  # by the queue, and by the log
        for at in range(3):
            wanted = {"topic": "T", "queue_id": queue_id, "queue_from": at, "queue_to": at + 1}
            found = messages(tmp_path / "store", **wanted)
            assert [message.queue_offset for message in found] == [at]


def test_a_damaged_index_or_queue_leads_to_nothing_wrong(tmp_path: Path) -> None:
    store = golden_store(tmp_path)
    for path in [*(store / "index").iterdir(), *(store / "consumequeue").rglob("0000*")]:
        path.write_bytes(b"\x01\x7f" * (path.stat().st_size // 2))
    assert messages(store, topic="GoldenPlain", queue_id=0) == []
    assert messages(store, topic="GoldenPlain", key="order-13") == []


def test_bodies_are_decompressed_unless_the_stored_ones_are_asked_for(root: Path) -> None:
    with StoreView(Layout(root)) as view:
        packed = next(found for found in find(view, Selection()) if found.sys_flag & 1)
    plain = as_row(packed, stored_body=False)
    stored = as_row(packed, stored_body=True)
    assert stored["body"] == packed.body
    assert plain["body"] == packed.body_decompressed()
    assert len(plain["body"]) == plain["bodyLength"] > stored["bodyLength"]


def test_a_body_that_can_not_be_decompressed_is_given_as_stored(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StoreView(Layout(root)) as view:
        packed = next(found for found in find(view, Selection()) if found.sys_flag & 1)
    lz4 = replace(packed, body=b"x", sys_flag=with_compression(packed.sys_flag, Compression.LZ4))
    damaged = as_row(lz4, stored_body=False)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    unreadable = as_row(lz4, stored_body=False)
    assert damaged["body"] == unreadable["body"] == b"x"
    assert "pip install 'firearrow[compress]'" in unreadable["bodyError"]
    assert damaged["bodyError"] not in (None, unreadable["bodyError"])


def test_arrow_gives_the_same_rows(everything: list[MessageView]) -> None:
    rows = [as_row(view, stored_body=True) for view in everything]
    sink = io.BytesIO()
    assert write_stream([dict(row) for row in rows], sink) == len(rows)
    table = pa.ipc.open_stream(sink.getvalue()).read_all()
    assert table.num_rows == len(rows)
    got = table.to_pylist()
    for line, row in zip(got, rows, strict=True):
        assert dict(line.pop("properties")) == row["properties"]
        assert line.pop("bodyError") is None
        assert line == {name: value for name, value in row.items() if name != "properties"}
