"""What is wrong is a sentence, and the sentence comes first, whoever asked Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from firearrow.cli.failures import sentence
from firearrow.errors import ConfigError, CorruptStore, FirearrowError
from firearrow.spark.jobs.workers import SparkWorkers
from firearrow.spark.workererrors import end_quietly, short_errors, with_short_errors
from tests.spark import logs

CHARACTERS_MAX = 400  # with what Spark puts around it; a traceback has thousands


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process look like one that PySpark has started."""
    spec = SimpleNamespace(name="pyspark.daemon")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec, raising=False)
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # so that it is as before in the end
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK")
    monkeypatch.setattr(sys, "stderr", sys.stderr)


@with_short_errors
class Reading:
    """Fails in all the ways that a reader can."""

    def plan(self, error: Exception) -> None:
        raise error

    def read(self, error: Exception) -> Iterator[int]:
        yield 1
        raise error

    def give(self) -> list[int]:
        return [1]


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("error", [ConfigError("x"), ConnectionError("x"), TimeoutError("x")])
@pytest.mark.parametrize("name", ["plan", "read"])
def test_an_error_that_ends_a_worker_has_no_traceback(error: Exception, name: str) -> None:
    with pytest.raises(type(error)):
        list(getattr(Reading(), name)(error))
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"
    assert Reading().give() == [1]


@pytest.mark.usefixtures("worker")
def test_what_nobody_foresaw_keeps_its_traceback() -> None:
    with pytest.raises(KeyError):
        Reading().plan(KeyError("x"))
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


def test_other_processes_stay_as_they_are() -> None:
    before = sys.stderr
    with pytest.raises(FirearrowError), short_errors():
        raise FirearrowError("x")
    end_quietly()
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
    assert sys.stderr is before


@pytest.mark.usefixtures("worker")
def test_a_worker_that_nobody_listens_to_says_nothing() -> None:
    end_quietly()
    assert sys.stderr.name == os.devnull
    sys.stderr.close()


def fail(_: int) -> int:
    raise CorruptStore("a file is damaged")


def test_python_and_sql_are_told_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "s"
    logs.write(root, [logs.Sent(), logs.Sent()])
    log = root / "commitlog" / f"{0:020d}"

    def read(path: Path = root, **options: str) -> DataFrame:
        return spark.read.format("rocketmq").options(**options).load(str(path))

    def told(ask: Callable[[], object], cause: str) -> None:
        with pytest.raises(PySparkException) as error:
            ask()
        said = str(error.value)
        assert (cause in said, "Traceback" in said) == (True, False), said
        assert len(said) < CHARACTERS_MAX
        assert sentence(error.value).startswith(cause), sentence(error.value)

    told(lambda: read(subcribe="T"), "option subcribe='T': there is no such option; did you mean")
    told(lambda: read(tmp_path / "nowhere").count(), f"option path='{tmp_path}/nowhere': the direct")
    told(lambda: SparkWorkers(spark).run(fail, [1]), "a file is damaged")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW m USING rocketmq OPTIONS (path '{root}')")
    log.write_bytes(bytes(10) + log.read_bytes()[10:])
    told(lambda: spark.sql("SELECT * FROM m").collect(), f"{log}: at 0 of the log is not the mess")
    told(lambda: read().collect(), f"{log}: at 0 of the log is not the message 0")
