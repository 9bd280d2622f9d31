"""The key-value configuration outlives the process."""

from pathlib import Path

import pytest

from firearrow.errors import ConfigError
from firearrow.namesrv.kv import KvConfig


def reopened(path: Path) -> KvConfig:
    kv = KvConfig(path)
    kv.load()
    return kv


def test_pairs_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    kv = reopened(path)
    assert kv.get("n", "k") is None
    assert kv.pairs("n") is None
    kv.put("n", "k", "v")
    kv.put("n", "k2", "é")
    kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:8")
    again = reopened(path)
    assert again.get("n", "k") == "v"
    assert again.pairs("n") == {"k": "v", "k2": "é"}
    again.delete("n", "k")
    again.delete("n", "unknown")
    again.delete("unknown", "k")
    assert reopened(path).pairs("n") == {"k2": "é"}
    assert reopened(path).get("ORDER_TOPIC_CONFIG", "T") == "broker-a:8"


def test_the_file_is_as_the_java_name_server_writes_it(tmp_path: Path) -> None:
    kv = reopened(tmp_path / "kv.json")
    kv.put("ORDER_TOPIC_CONFIG", "TBW102", "broker-a:8")
    kv.put("n", "k", "v")
    assert (tmp_path / "kv.json").read_text() == (
        '{"configTable":{"ORDER_TOPIC_CONFIG":{"TBW102":"broker-a:8"},"n":{"k":"v"}}}'
    )


def test_each_change_is_counted(tmp_path: Path) -> None:
    kv = reopened(tmp_path / "kv.json")
    before = kv.version
    kv.put("n", "k", "v")
    kv.delete("n", "unknown")
    assert kv.version == before + 1


def test_what_can_not_be_saved_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kv = KvConfig(tmp_path / "file" / "kv.json")
    with pytest.raises(OSError, match="file"):
        kv.put("n", "k", "v")
    assert kv.get("n", "k") is None


def test_a_file_that_can_not_be_read_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "kv.json").write_text("{")
    with pytest.raises(ConfigError, match=r"kv\.json"):
        reopened(tmp_path / "kv.json")
