"""A session that ``configure`` made can do what the sources need."""

from __future__ import annotations

import os
import shutil
import sys
import time
import tomllib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from firearrow.errors import ConfigError
from firearrow.spark import session
from firearrow.spark.session import SETTINGS, VERSIONS, ClassData, configure


def test_what_is_needed_is_set(spark: SparkSession) -> None:
    assert {key: spark.conf.get(key) for key in SETTINGS} == SETTINGS


def test_executors_may_have_another_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/of/the/user")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "jupyter")
    configure(SparkSession.Builder())
    assert (os.environ["PYSPARK_DRIVER_PYTHON"], os.environ["PYSPARK_PYTHON"]) == (sys.executable, "/of/the/user")
    configure(SparkSession.Builder(), "./environment/bin/python")
    assert os.environ["PYSPARK_PYTHON"] == "./environment/bin/python"


def test_workers_run_the_python_of_the_driver(spark: SparkSession) -> None:
    (executable,) = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert executable == sys.executable


def test_without_java_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^Spark needs Java 17 or 21, but JAVA_HOME=.* has neither"):
        configure(SparkSession.Builder())


def test_another_pyspark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert f"pyspark>={VERSIONS[0]},<4.4" in asked["project"]["optional-dependencies"]["spark"]
    assert VERSIONS[-1] == "4.3"
    monkeypatch.setattr("pyspark.__version__", "3.5.1")
    with pytest.raises(ConfigError, match=r"^Firearrow needs PySpark 4\.2 or 4\.3, but 3\.5\.1 is"):
        configure(SparkSession.Builder())


# The file of Spark's classes is used when it is whole, made by one run, and never in the way.


WHOLE = b"\xf0\x0b\xab\xa8 and the classes"
RECORDS = "-XX:ArchiveClassesAtExit="
USES = "-XX:SharedArchiveFile="


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Java, a Spark without a configuration, and a cache of its own."""
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "java").write_bytes(b"")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    return str(tmp_path / "java")


def recorded(tmp_path: Path) -> Path:
    (made,) = (tmp_path / "my cache" / "firearrow").glob("*.new")
    return made


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_the_first_run_records_and_later_ones_use_it(java: str, tmp_path: Path) -> None:
    first = ClassData(java).options()
    made = recorded(tmp_path)
    assert first[0] == f"{RECORDS}'{made}'"  # Spark reads options as a shell does
    assert ClassData(java).options() == []  # it is being made
    made.write_bytes(bytes(4) + WHOLE)  # the first bytes are written at last
    assert ClassData(java).options() == []
    made.write_bytes(WHOLE)
    used = ClassData(java).options()
    assert used[:2] == [f"{USES}'{made.with_suffix('.jsa')}'", "-Xshare:auto"]
    assert not made.exists()
    assert ClassData(java).options() == used


def test_a_jvm_that_will_be_killed_only_uses_the_file(java: str, tmp_path: Path) -> None:
    assert ClassData(java).options(write=False) == []
    assert ClassData(java).options()[0].startswith(RECORDS)
    recorded(tmp_path).write_bytes(WHOLE)
    assert ClassData(java).options(write=False)[0].startswith(USES)


def test_the_file_may_be_at_a_place_of_the_callers(tmp_path: Path) -> None:
    """As the interop tests have it, for the JVM of RocketMQ's classes."""
    path = tmp_path / "interop.Driver.jsa"
    made = path.with_suffix(".new")
    assert ClassData.at(path).options()[0] == f"{RECORDS}{made}"
    made.write_bytes(WHOLE)
    assert ClassData.at(path).options()[:2] == [f"{USES}{path}", "-Xshare:auto"]


def test_what_was_given_up_is_recorded_again(java: str, tmp_path: Path) -> None:
    ClassData(java).options()
    made = recorded(tmp_path)
    made.write_bytes(bytes(8))
    made.chmod(0o444)  # as JVMs make them
    age(made, session.RETRY_SECONDS + 1)
    assert ClassData(java).options()[0].startswith(RECORDS)
    assert made.stat().st_size == 0


def test_another_java_or_spark_has_a_file_of_its_own(java: str, tmp_path: Path) -> None:
    ClassData(java).options()
    made = recorded(tmp_path)
    made.write_bytes(WHOLE)
    (used, *_) = ClassData(java).options()
    Path(java).write_bytes(b"a new version")
    age(tmp_path / "my cache" / "firearrow" / made.with_suffix(".jsa").name, 40 * 86_400)
    assert ClassData(java).options()[0].startswith(RECORDS)
    assert recorded(tmp_path).stem not in used
    assert not made.with_suffix(".jsa").exists()  # nobody has used it for long


def test_a_file_that_keeps_a_jvm_from_starting_is_forgotten(java: str, tmp_path: Path) -> None:
    ClassData(java).options()
    recorded(tmp_path).write_bytes(WHOLE)
    assert ClassData(java).options()[0].startswith(USES)
    ClassData(java).forget()
    assert ClassData(java).options()[0].startswith(RECORDS)


def test_a_class_path_that_jvms_refuse_has_none(java: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert ClassData(java).options() == []
    monkeypatch.delenv("HADOOP_CONF_DIR")
    (tmp_path / "spark" / "conf").mkdir()
    assert ClassData(java).options() == []


def test_nothing_depends_on_a_cache(java: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "FREE_BYTES_MIN", shutil.disk_usage(tmp_path).total + 1)
    assert ClassData(java).options() == []
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert ClassData(java).options() == []
    ClassData(java).forget()
