"""A session that ``configure`` made can do what the sources need."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from firearrow.errors import ConfigError
from firearrow.spark.session import SETTINGS, VERSIONS, configure


def test_what_is_needed_is_set(spark: SparkSession) -> None:
    assert {key: spark.conf.get(key) for key in SETTINGS} == SETTINGS


def test_workers_run_the_python_of_the_driver(spark: SparkSession) -> None:
    (executable,) = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert executable == sys.executable


def test_without_java_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^Spark needs Java 17 or 21, but JAVA_HOME=.* has neither"):
        configure(SparkSession.Builder())


def test_another_pyspark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    extra = asked["project"]["optional-dependencies"]["spark"][0]
    assert extra == f"pyspark>={VERSIONS[0]},<4.4"
    assert VERSIONS[-1] == "4.3"
    monkeypatch.setattr("pyspark.__version__", "3.5.1")
    with pytest.raises(ConfigError, match=r"^Firearrow needs PySpark 4\.2 or 4\.3, but 3\.5\.1 is"):
        configure(SparkSession.Builder())
