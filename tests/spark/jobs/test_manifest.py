"""An archive's steps: who may make one, and what is read where they are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from firearrow.client.queues import Queue
from firearrow.errors import ConfigError, CorruptStore, StoreLocked
from firearrow.spark.jobs.manifest import Archive, DataFile, Gap, Manifest
from firearrow.spark.offsets import OffsetJson

A = Queue("T", "a", 0)


def offsets(number: int) -> OffsetJson:
    return {"T": {"a": {"0": number}}}


def stage(archive: Archive, run: str, name: str) -> DataFile:
    path = f"topic=T/dt=2026-11-21/{name}.parquet"
    staged = archive.staging / run / path
    staged.parent.mkdir(parents=True)
    staged.write_bytes(name.encode())
    return DataFile(path, run, "T", "2026-11-21", 1, len(name), 1, 2, ())


def commit_one(archive: Archive, name: str, **changed: object) -> DataFile:
    with archive.changing() as state:
        run = archive.new_run()
        file = stage(archive, run, name)
        given = {
            "archive": "id",
            "sequence": state.sequence + 1,
            "run": run,
            "created_ms": 7,
            "offsets": offsets(state.sequence + 1),
            "added": (file,),
        }
        archive.commit(state, Manifest(**(given | changed)))  # type: ignore[arg-type]
    return file


def test_a_step_counts_and_its_files_are_in_their_places(tmp_path: Path) -> None:
    archive = Archive(f"file://{tmp_path}")
    file = commit_one(archive, "one")
    assert (tmp_path / file.path).read_bytes() == b"one"
    commit_one(archive, "two")
    state = archive.load()
    assert (state.sequence, state.offsets, len(state.files)) == (2, {A: 2}, 2)
    assert [manifest.sequence for manifest in archive.manifests(1)] == [2]


def test_a_committed_file_can_be_read_before_it_has_moved(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    file = commit_one(archive, "one")
    staged = archive.staging / file.run / file.path
    staged.parent.mkdir(parents=True)
    (tmp_path / file.path).replace(staged)
    assert archive.place(file) == staged
    with archive.changing():
        assert archive.place(file) == tmp_path / file.path


def test_what_is_not_committed_is_swept(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    with archive.changing():
        stage(archive, archive.new_run(), "one")
    assert list(archive.staging.iterdir()) != []
    with archive.changing() as state:
        assert state.files == {}
        assert list(archive.staging.iterdir()) == []


def test_a_step_can_replace_files_and_all_earlier_manifests(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    gap = Gap(*A, 1, 3, 2)
    old = commit_one(archive, "old", gaps=(gap,))
    kept = commit_one(archive, "kept")
    new = commit_one(archive, "new", removed=(old.path,), files=(old, kept), gaps=(gap,))
    assert not (tmp_path / old.path).exists()
    state = archive.load()
    assert set(state.files) == {kept.path, new.path}
    assert (state.sequence, state.gaps, len(archive.manifests(0))) == (3, [gap], 1)


def test_one_process_changes_an_archive_at_a_time(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    with (
        archive.changing(),
        pytest.raises(StoreLocked, match="another process is changing it"),
        Archive(tmp_path).changing(),
    ):
        pass
    with archive.changing() as state:
        assert state.sequence == 0


def test_a_step_that_somebody_else_has_made_is_not_made_again(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    commit_one(archive, "one")
    with archive.changing() as state:
        run = archive.new_run()
        state.sequence = 0
        manifest = Manifest(archive="id", sequence=1, run=run, created_ms=7, offsets={})
        with pytest.raises(StoreLocked, match=r"0001\.json: another process has made this step"):
            archive.commit(state, manifest)
    assert archive.load().offsets == {A: 1}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"{", "is not the manifest of an archive"),
        (b'{"format": 1}', "is not the manifest of an archive"),
        (
            b'{"format":9,"archive":"","sequence":2,"run":"","createdMs":1,"offsets":{}}',
            "has format 9, but only format 1 can be read",
        ),
        (
            b'{"format":1,"archive":"","sequence":3,"run":"","createdMs":1,"offsets":{}}',
            "manifest 2 is missing, but there is 3",
        ),
    ],
)
def test_damaged_manifests_are_refused(tmp_path: Path, text: bytes, complaint: str) -> None:
    archive = Archive(tmp_path)
    commit_one(archive, "one")
    (archive.home / "manifests" / f"{2:020}.json").write_bytes(text)
    with pytest.raises(CorruptStore, match=complaint):
        archive.load()


def test_a_committed_file_that_is_gone_is_told(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    file = commit_one(archive, "one")
    (tmp_path / file.path).unlink()
    with pytest.raises(CorruptStore, match=r"one\.parquet is missing"), archive.changing():
        pass


def test_an_archive_is_a_directory() -> None:
    with pytest.raises(ConfigError, match=r"^archive 's3://b/x': must be a directory on a mounted"):
        Archive("s3://b/x")
