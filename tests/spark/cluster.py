"""A standalone Spark cluster of separate processes on this machine: a master and two workers, which share no directory.

The driver is a process of its own too, since a Python process has one Spark at most. Executors get Python and the
package as a user's would: as a packed environment and a wheel that Spark hands to them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark

from tests.interop.toolchain import yarn_command
from tests.spark.javaoptions import FAST_START, java_options

SPARK_HOME = Path(pyspark.__file__).parent
SOURCE = Path(__file__).parents[2] / "src"
DRIVER = Path(__file__).with_name("cluster_driver.py")
START_TIMEOUT_S = 60

_MASTER_READY = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER_READY = re.compile(r"Successfully registered with master (spark://\S+)")
_OF_DRIVER = ("PYTHON", "PYSPARK", "AWS_", "VIRTUAL_ENV")  # variables that a worker's host does not have


@contextmanager
def standalone(directory: Path, workers: int) -> Iterator[str]:
    """Run a master and workers of one core each for a ``with`` block; gives the master's URL."""
    directory.mkdir()
    with ExitStack() as stack:
        web = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = stack.enter_context(_daemon(directory / "master", _MASTER_READY, "master.Master", *web))
        for number in range(workers):
            home = directory / f"worker-{number}"
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(home / "work"))
            stack.enter_context(_daemon(home, _WORKER_READY, "worker.Worker", *web, *size, master))
        yield master


@contextmanager
def yarn(directory: Path) -> Iterator[dict[str, str]]:
    """Run YARN with two nodes for a ``with`` block; gives the variables of a driver."""
    clients = directory / "clients"
    clients.mkdir(parents=True)
    java = Path(shutil.which("java") or "java").resolve()
    variables = {"JAVA_HOME": str(java.parents[1])}
    with (
        (directory / "log").open("w") as log,
        subprocess.Popen(
            yarn_command(clients), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=directory,
            env=_of_hosts() | variables,
        ) as process,
    ):  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line == "ready\n":
                    break
            else:
                raise AssertionError(f"YARN ended early:\n{(directory / 'log').read_text()[-3000:]}")
            yield variables | {"HADOOP_CONF_DIR": str(clients)}
        finally:
            process.stdin.close()
            process.wait(START_TIMEOUT_S)


def _of_hosts() -> dict[str, str]:
    """Variables of a host, which has none of those of the driver."""
    return {key: value for key, value in os.environ.items() if not key.startswith(_OF_DRIVER)}


@contextmanager
def _daemon(home: Path, ready: re.Pattern[str], name: str, *arguments: str) -> Iterator[str]:
    home.mkdir()
    command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    environment = _of_hosts() | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_DIRS": str(home / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": java_options(killed=True),
        "SPARK_LAUNCHER_OPTS": FAST_START,  # its class path is another
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    }
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, text=True, cwd=home
    ) as process:
        try:
            yield _wait_for(process, home / "log", ready)
        finally:
            process.terminate()
            _, rest = process.communicate(timeout=START_TIMEOUT_S)
            with (home / "log").open("a") as file:
                file.write(rest)


def _wait_for(process: subprocess.Popen[str], log: Path, ready: re.Pattern[str]) -> str:
    assert process.stderr is not None
    with log.open("a") as file:
        for line in process.stderr:
            file.write(line)
            if found := ready.search(line):
                return found[1]
    raise AssertionError(f"{log.name}: ended early:\n{log.read_text()[-3000:]}")


# --- what executors get ---


def wheel(directory: Path) -> Path:
    """The package, as ``pip wheel`` builds it."""
    path = directory / "firearrow-0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("firearrow", "pyspark_firearrow"):
            for file in sorted((SOURCE / name).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(SOURCE))
        archive.writestr("firearrow-0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
    return path


def packed_environment(directory: Path) -> Path:
    """An environment in the layout of venv-pack, with links to the packages of this one.

    It has no pandas, as Firearrow's extra ``spark`` has none. PyArrow would import pandas in each worker.
    """
    root = directory / "environment"
    packages = root / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    packages.mkdir(parents=True)
    (root / "bin").mkdir()
    python = Path(sys._base_executable)  # type: ignore[attr-defined]
    (root / "bin" / "python").symlink_to(python)
    (root / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for package in Path(place).iterdir():
            if package.suffix != ".pth" and package.name != "pandas":
                (packages / package.name).symlink_to(package)
    path = directory / "packed.tar"  # the command compresses it
    with tarfile.open(path, "w") as archive:
        for part in sorted(root.iterdir()):
            archive.add(part, part.name)
    return path


# --- the driver ---


class Driver:
    """A process that runs jobs on the cluster, one Spark application for all of them."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def run(self, job: str, **arguments: object) -> Any:
        """Run a function of ``cluster_driver.py``, and return its result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([job, arguments]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the driver has ended:\n{self._log.read_text()[-5000:]}"
        return json.loads(answer)


@contextmanager
def driver(home: Path, variables: Mapping[str, str], *options: str) -> Iterator[Driver]:
    """Run a driver in a directory for a ``with`` block; ``options`` are those of ``firearrow pipeline``."""
    home.mkdir()
    log = home / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, str(DRIVER), *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=home,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(SOURCE.parent)]), **variables},
        ) as process,
    ):  # fmt: skip
        try:
            yield Driver(process, log)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(START_TIMEOUT_S)
            finally:
                process.kill()
