"""Tables in RocksDB, printed from their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import rocksdict

from firearrow.state import VERSION_FAMILY, VERSION_KEY
from tests.mqadminscript import run_ours


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A directory with two databases."""
    options = rocksdict.Options(raw_mode=True)
    topics = rocksdict.Rdict(str(tmp_path / "topics"), options)
    topics[b"T"] = b'{"perm":6}'
    versions = topics.create_column_family(VERSION_FAMILY, options)
    versions[VERSION_KEY] = b'{"counter":3}'
    versions.close()
    topics.close()
    offsets = rocksdict.Rdict(str(tmp_path / "consumerOffsets"), options)
    offsets[b"T@g"] = b'{"offsetTable":{"0":25}}'
    offsets.close()
    return tmp_path


def test_topics(config: Path) -> None:
    out, err, code = run_ours(["exportMetadataInRocksDB", "-p", str(config), "-t", "topics"])
    assert (out, err, code) == ('1, Key: T, Value: {"perm":6}\n', "", 0)
    words = ["exportMetadataInRocksDB", "-p", str(config), "-t", "topics", "-j", "true"]
    assert json.loads(run_ours(words)[0]) == {"topicConfigTable": {"T": {"perm": 6}}}


def test_tables_as_json(config: Path) -> None:
    words = ["rocksDBConfigToJson", "-p", str(config), "-t"]
    head, _, text = run_ours([*words, "topics"])[0].partition("\n")
    assert head == "Use [local mode] load rocksdb to print or export file "
    assert json.loads(text) == {"dataVersion": {"counter": 3}, "topicConfigTable": {"T": {"perm": 6}}}
    _, _, text = run_ours([*words, "consumerOffsets"])[0].partition("\n")
    assert json.loads(text) == {"offsetTable": {"T@g": {"0": 25}}}
    file = config / "out.json"
    run_ours([*words, "consumerOffsets", "-e", str(file)])
    assert json.loads(file.read_text()) == {"offsetTable": {"T@g": {"0": 25}}}


def test_a_refusal_names_the_fault(config: Path) -> None:
    out = run_ours(["rocksDBConfigToJson", "-p", str(config), "-t", "tables"])[0]
    assert out.startswith("Invalid configType: tables ")
    out = run_ours(["exportMetadataInRocksDB", "-p", str(config), "-t", "tables"])[0]
    assert out.startswith("Invalid config type=tables")
