"""The key-value configuration outlives the process."""

from pathlib import Path

import pytest

from firearrow.errors import BrokerError, ConfigError
from firearrow.namesrv import kv as kv_module
from firearrow.namesrv.kv import NAME_CHARS_MAX, PAIR_CHARS, VALUE_CHARS_MAX, KvConfig


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


def test_what_is_kept_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is written again for each change."""
    monkeypatch.setattr(kv_module, "CHARS_MAX", 3 * PAIR_CHARS + 30)
    kv = reopened(tmp_path / "kv.json")
    for name in ("a", "b"):
        kv.put("n", name, "v")
    kv.put("n", "a", "v" * 20)
    with pytest.raises(BrokerError, match=f"the limit is {3 * PAIR_CHARS + 30}"):
        kv.put("n", "c", "v" * 20)
    kv.put("n", "a", "v")
    kv.put("n", "c", "v" * 20)
    kv.delete("n", "c")
    reopened(tmp_path / "kv.json").put("n", "c", "v" * 20)


@pytest.mark.parametrize(
    "pair",
    [
        ("n" * (NAME_CHARS_MAX + 1), "k", "v"),
        ("n", "k" * (NAME_CHARS_MAX + 1), "v"),
        ("n", "k", "v" * (VALUE_CHARS_MAX + 1)),
    ],
)
def test_names_and_values_are_limited(tmp_path: Path, pair: tuple[str, str, str]) -> None:
    kv = reopened(tmp_path / "kv.json")
    with pytest.raises(BrokerError, match="more than"):
        kv.put(*pair)
    assert kv.version == 1
