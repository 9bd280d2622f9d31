"""A store is read while its broker has it open, and left as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from firearrow.errors import CorruptStore
from firearrow.spark.options import parse
from firearrow.spark.stores import Store, open_stores
from tests.spark import logs
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
