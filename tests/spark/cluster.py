"""A standalone Spark cluster of separate processes on this machine: a master and two workers.

The driver is a process of its own too, since a Python process has one Spark at most. It gets the
package as a user's would: as a zip that Spark hands to the executors.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
SOURCE = Path(__file__).parents[2] / "src"
DRIVER = Path(__file__).with_name("cluster_driver.py")
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # six JVMs, each of them for seconds
START_TIMEOUT_S = 60
DRIVER_TIMEOUT_S = 210

_MASTER_READY = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER_READY = re.compile(r"Successfully registered with master (spark://\S+)")


@contextmanager
def standalone(directory: Path, workers: int) -> Iterator[str]:
    """Run a master and workers of one core each for a ``with`` block; gives the master's URL."""
    directory.mkdir()
    with ExitStack() as stack:
        web = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = stack.enter_context(_daemon(directory / "master.log", _MASTER_READY, "master.Master", *web))
        for number in range(workers):
            home = directory / f"worker-{number}"
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(home))
            log = directory / f"worker-{number}.log"
            stack.enter_context(_daemon(log, _WORKER_READY, "worker.Worker", *web, *size, master))
        yield master


@contextmanager
def _daemon(log: Path, ready: re.Pattern[str], name: str, *arguments: str) -> Iterator[str]:
    command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    environment = os.environ | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_START,
        "SPARK_LAUNCHER_OPTS": QUICK_START,
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "PYSPARK_PYTHON": sys.executable,
    }
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        try:
            yield _wait_for(process, log, ready)
        finally:
            process.terminate()
            _, rest = process.communicate(timeout=START_TIMEOUT_S)
            with log.open("a") as file:
                file.write(rest)


def _wait_for(process: subprocess.Popen[str], log: Path, ready: re.Pattern[str]) -> str:
    assert process.stderr is not None
    with log.open("a") as file:
        for line in process.stderr:
            file.write(line)
            if found := ready.search(line):
                return found[1]
    raise AssertionError(f"{log.name}: ended early:\n{log.read_text()[-3000:]}")


def zip_package(path: Path) -> Path:
    """The package as Spark's ``--py-files`` takes it."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("firearrow", "pyspark_firearrow"):
            for file in sorted((SOURCE / name).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(SOURCE))
    return path


def run_driver(master: str, package: Path, store: Path, made: Path) -> Any:
    """Run ``cluster_driver.py`` on the cluster and return the JSON that it prints."""
    command = [sys.executable, str(DRIVER), master, str(package), str(store), str(made), QUICK_START]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DRIVER_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout)
