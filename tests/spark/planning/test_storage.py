"""A store reads the same wherever it is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pyarrow.fs as pafs
import pytest

from firearrow.errors import ConfigError
from firearrow.spark.planning.storage import RemoteStorage, open_storage
from firearrow.spark.planning.stores import Store
from firearrow.store.reading.storage import LocalStorage, Storage, list_files
from tests import golden
from tests.spark import logs
from tests.spark.source.test_files import by_place, read


def storages(root: Path) -> list[Storage]:
    files = pafs.SubTreeFileSystem(str(root.parent), pafs.LocalFileSystem())
    return [LocalStorage(str(root)), RemoteStorage("far", files, root.name)]


@pytest.mark.parametrize("number", [0, 1])
def test_directories_and_pieces_of_files(number: int, tmp_path: Path) -> None:
    root = tmp_path / "s"
    (root / "d" / "sub").mkdir(parents=True)
    (root / "d" / f"{7:020d}").write_bytes(bytes(range(200)) * 40)
    (root / "d" / "other").write_bytes(b"")
    storage = storages(root)[number]
    assert [(e.name, e.size_bytes, e.is_file) for e in storage.entries("d")] == [
        (f"{7:020d}", 8000, True),
        ("other", 0, True),
        ("sub", 0, False),
    ]
    assert storage.entries("nowhere") == []
    (file,) = list_files(storage, "d").files
    assert (file.base, file.end) == (7, 8007)
    assert bytes(storage.window(file.path, 4099, 4105)) == bytes(range(99, 105))
    assert bytes(storage.window(file.path, 7998, 9000)) == bytes((198, 199))
    assert bytes(storage.window(file.path, 8000, 9000)) == b""
    assert len(storage.read(file.path)) == 8000
    assert bytes(storage.read("d/other")) == b""
    with pytest.raises(FileNotFoundError):
        storage.read("d/nowhere")


@pytest.mark.parametrize(
    ("uri", "known_to_arrow"),
    [
        ("s3a://bucket/store", "s3://bucket/store"),
        ("s3://bucket/store", "s3://bucket/store"),
        ("gs://bucket/store", "gs://bucket/store?retry_limit_seconds=3"),
        ("gs://b/s?scheme=http", "gs://b/s?scheme=http&retry_limit_seconds=3"),
        ("gs://b/s?retry_limit_seconds=60", "gs://b/s?retry_limit_seconds=60"),
    ],
)
def test_uris_are_those_of_arrow(uri: str, known_to_arrow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def from_uri(uri: str) -> tuple[pafs.FileSystem, str]:
        asked.append(uri)
        return pafs.SubTreeFileSystem("/", pafs.LocalFileSystem()), "bucket/store"

    arrow = SimpleNamespace(from_uri=from_uri)
    monkeypatch.setattr("pyarrow.fs.FileSystem", arrow)
    assert open_storage(uri).root == uri
    assert asked == [known_to_arrow]


def test_without_credentials_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCE_METADATA_ROOT", "127.0.0.1:1")  # where nobody is
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with pytest.raises(ConfigError, match=r"^option path='gs://.*': there are no credentials for"):
        Store("gs://bucket/store?retry_limit_seconds=1").require()


@pytest.mark.parametrize("name", ["file-cq-clean", "rocksdb-cq-clean"])
def test_messages_are_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = golden.extract(name, tmp_path)
    expected = by_place(read(root))
    far = storages(root)[1]
    far.window_bytes_max = 10_000
    monkeypatch.setattr("firearrow.spark.planning.stores.open_storage", lambda _: far)
    for visibility in ("consumer", "log"):
        found = by_place(read("far://store", splitBytes="100k", visibility=visibility))
        assert found == expected


def test_a_file_that_is_deleted_stays_readable(tmp_path: Path) -> None:
    logs.write(tmp_path / "s", [logs.Sent(body=b"x" * 50)] * 20)
    storage = LocalStorage(str(tmp_path / "s"))
    (file,) = list_files(storage, "commitlog").files
    window = storage.window(file.path, 0, 4096)
    before = (tmp_path / "s" / file.path).read_bytes()
    (tmp_path / "s" / file.path).unlink()
    assert bytes(window) == before
