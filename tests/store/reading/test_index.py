"""By the index a message is found wherever it is, and little else is read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from firearrow.errors import CorruptStore
from firearrow.store.reading.index import candidates, index_files, index_rows
from firearrow.store.reading.storage import LocalStorage, StoreFile
from tests import golden
from tests.spark.source.test_files import by_place, read


def test_every_key_of_every_message_leads_to_it(tmp_path: Path) -> None:
    root = golden.extract("file-cq-clean", tmp_path)
    storage = LocalStorage(str(root))
    (file,) = index_files(storage).files
    known = index_rows(storage, file)
    lines = golden.expected("file-cq-clean")
    for line in lines:
        words = [line["uniqKey"], line["offsetMsgId"], *line["properties"].get("KEYS", "").split()]
        for word in words:
            found = candidates(storage, line["topic"], [word], 700_000)
            place = line["physicalOffset"]
            assert any(start <= place < end for start, end in found)
            inside = [end - start for start, end in found if start < known.end_offset]
            assert sum(inside) <= 50


@pytest.mark.parametrize("name", ["file-cq-clean", "rocksdb-cq-clean"])
def test_the_same_messages_with_and_without_an_index(name: str, tmp_path: Path) -> None:
    root = golden.extract(name, tmp_path)
    lines = [line for line in golden.expected(name) if line["properties"].get("KEYS")]
    words = " ".join(line["properties"]["KEYS"] for line in lines[::97]) + " " + lines[5]["uniqKey"]
    with_index = by_place(read(root, keys=words))
    shutil.rmtree(root / "index")
    assert with_index == by_place(read(root, keys=words))
    asked = set(words.split())
    assert [row["commitLogOffset"] for row in with_index] == sorted(
        line["physicalOffset"]
        for line in golden.expected(name)
        if asked & {*line["properties"].get("KEYS", "").split(), line["uniqKey"]}
    )


def test_long_chains_are_looked_at_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = golden.extract("file-cq-clean", tmp_path)
    storage = LocalStorage(str(root))
    words = [line["uniqKey"] for line in golden.expected("file-cq-clean")[:50]]
    by_chains = candidates(storage, "GoldenPlain", words, 700_000)
    monkeypatch.setattr("firearrow.store.reading.index._STEPS_MAX", 0)
    assert candidates(storage, "GoldenPlain", words, 700_000) == by_chains


def test_a_file_of_another_size_is_none(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "1").write_bytes(bytes(100))
    with pytest.raises(CorruptStore, match="index/1: 100 bytes don't fit a header and four entries"):
        index_rows(LocalStorage(str(tmp_path)), StoreFile("index/1", 1, 100))
