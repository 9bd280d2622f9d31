"""A session that ``configure`` made can do what the sources need."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from firearrow.errors import ConfigError
from firearrow.spark.session import SETTINGS, configure


def test_what_is_needed_is_set(spark: SparkSession) -> None:
    assert {key: spark.conf.get(key) for key in SETTINGS} == SETTINGS


def test_workers_run_the_python_of_the_driver(spark: SparkSession) -> None:
    (executable,) = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert executable == sys.executable


def test_without_java_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"^Spark needs Java 17 or 21, but JAVA_HOME=.* has neither"
    ):
        configure(SparkSession.Builder())
