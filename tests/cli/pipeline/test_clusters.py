"""The files that executors of a cluster get are checked before Spark starts, and become settings of Spark."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from firearrow.cli.main import main
from firearrow.cli.pipeline.clusters import is_cluster, marked, needs_of, settings_for
from firearrow.cli.pipeline.options import ArchiveJob, Replay

CLUSTER = ("--master", "spark://127.0.0.1:1")


def wheel(path: Path, *, is_pure: bool) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x-1.dist-info/WHEEL", f"Root-Is-Purelib: {str(is_pure).lower()}\n")
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files that executors could get, and an empty store."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.tar.gz").touch()
    wheel(tmp_path / "pure.whl", is_pure=True)
    wheel(tmp_path / "compiled.whl", is_pure=False)
    (tmp_path / "no.whl").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["--archives", "env.tar.gz"], "--archives is for the executors of a cluster: --master spark://..., yarn or"),
        ([*CLUSTER, "--archives", "env.gz"], "--archives env.gz: must end with .tar.gz, .tgz, .tar, and have"),
        (
            [*CLUSTER, "--archives", "s3://b/env.tar"],
            "--archives s3://b/env.tar: must end with .tar.gz, .tgz, and have",
        ),
        ([*CLUSTER, "--archives", "other.tar"], "--archives other.tar: there is no such file"),
        ([*CLUSTER, "--archives", "env.tar.gz#a/b"], "--archives env.tar.gz#a/b: the name behind # is that of a"),
        ([*CLUSTER, "--py-files", "no.whl"], "--py-files no.whl: is not a wheel on this host"),
        ([*CLUSTER, "--py-files", "compiled.whl"], "--py-files compiled.whl: has compiled code, so it must be"),
        ([*CLUSTER, "--py-files", "pure.whl", "--archives", "env.tar.gz"], "there is no such store|nowhere"),
    ],
)
def test_wrong_files_are_one_sentence(
    here: Path, given: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "accounting", "--path", "nowhere", *given]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert any(part in said for part in reason.split("|"))
    if "--master" not in given:
        assert main(["store", "verify", "nowhere", "--spark", "local", *given]) == 2
        assert "--archives is for the executors of a cluster: --spark spark://" in capsys.readouterr().err


def test_a_watch_on_a_cluster_needs_a_place_for_its_state(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "watch", "--path", "nowhere", "--alert", "messages > 1", *CLUSTER]) == 1
    assert capsys.readouterr().err.startswith("firearrow: watch on a cluster needs --checkpoint: its executors")


def test_files_become_settings_with_paths_that_do_not_depend_on_the_directory(here: Path) -> None:
    (copies := here / "copies").mkdir()
    found = settings_for("env.tar.gz", ["pure.whl", "s3://bucket/more.zip", "single.py"], copies)
    assert found == {
        "spark.archives": f"{here}/env.tar.gz#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.submit.pyFiles": f"{copies}/pure.zip,s3://bucket/more.zip,{here}/single.py",
        "spark.executorEnv.PYTHONPATH": ".:./pure.zip:./more.zip",
    }
    assert (copies / "pure.zip").read_bytes() == (here / "pure.whl").read_bytes()
    named = settings_for("hdfs://host/env.tgz#py", [], copies)
    assert named == {"spark.archives": "hdfs://host/env.tgz#py", "spark.pyspark.python": "./py/bin/python"}
    assert settings_for(None, [], copies) == {}


def test_a_job_needs_the_places_that_it_reads_and_writes(tmp_path: Path) -> None:
    needs = needs_of(ArchiveJob(path=("s3a://bucket/store",), to=str(tmp_path / "lake")))
    assert (needs.uris, needs.directories, needs.marks) == (("s3a://bucket/store",), (), (f"{tmp_path}/lake",))
    replay = Replay(archive=str(tmp_path), job="job", to_name_server="a:1")
    needs = needs_of(replay)
    assert (needs.directories, needs.marks, needs.servers) == (
        (str(tmp_path),),
        (str(Path("job").absolute()),),
        ("a:1",),
    )
    with marked([str(tmp_path), str(tmp_path / "a/b")]) as marks:
        assert [Path(mark).parent for mark in marks] == [tmp_path, tmp_path]
        assert all(Path(mark).exists() for mark in marks)
    assert list(tmp_path.iterdir()) == []


def test_masters_with_executors_elsewhere() -> None:
    masters = ("spark://a:1", "yarn", "k8s://https://a", "local-cluster[2,1,1024]", "local", "local[2]", "local[*]")
    assert [is_cluster(master) for master in masters] == [True] * 4 + [False] * 3
