"""RocketMQ's own benchmark programs, Producer and Consumer of rocketmq-example, and its clients, as measuring tools.

They print a line a report interval, once ten snapshots a second apart are there:

    Current Time: 2025-01-31 12:00:30,123 | Send TPS: 31742 | Max RT(ms): 214 | ...
    Current Time: 2025-01-31 12:00:30,123 | Consume TPS: 45210 | AVG(B2C) RT(ms): ...

The TPS of a line is the mean of the nine seconds before it, so the last line of a run that is long
enough for the client's own JVM to be warm is the measurement.
"""

import re
import sys
import tempfile
from pathlib import Path

from benchmarks.errors import BenchmarkError
from benchmarks.process import ServerProcess
from benchmarks.servers import Deployment, java_command
from benchmarks.toolchain import HERE, Tools

PACKAGE = "org.apache.rocketmq.example.benchmark"
CLIENT_MEMORY = ("-Xms512m", "-Xmx512m")
TPS = re.compile(r"\b(?:Send|Consume) TPS: (\d+)")
PYTHON_GROUP = "official_python"
PYTHON_RATE = re.compile(r"^(\d[\d.]*) (\d+)$", re.MULTILINE)
CLIENT_MORE_SECONDS = 30  # for its start, its warm-up and its end
FAILED = re.compile(r"\b(?:Send Failed|Response Failed|Consume Fail): (\d+)")


def produce(tools: Tools, deployment: Deployment, topic: str, threads: int, seconds: float) -> str:
    """Run the Producer for so many seconds; give what it printed."""
    words = ["-t", topic, "-w", str(threads), "-s", "128"]
    return _run(tools, deployment, "Producer", words, seconds)


def consume(tools: Tools, deployment: Deployment, topic: str, group: str, seconds: float) -> str:
    """Run the Consumer, as a new group, for so many seconds; give what it printed."""
    return _run(tools, deployment, "Consumer", ["-t", topic, "-g", group], seconds)


def official_python(
    deployment: Deployment,
    what: str,
    endpoint: str,
    topic: str,
    threads: int,
    seconds: float,
    *,
    python: str = sys.executable,
) -> tuple[float, int]:
    """Run the official Python client, which an interpreter has, for so many seconds; give its rate and its failures.
    ``what``: see `officialpython`.
    """
    words: list[str | Path] = [python, HERE / "officialpython.py", what, endpoint, topic, PYTHON_GROUP]
    words += [str(seconds), str(threads)]
    with tempfile.TemporaryDirectory(dir=deployment.directory) as home:  # it writes its log there
        client = ServerProcess.start(words, Path(home) / "client.log", {"HOME": home})
        try:
            ended = client.wait(seconds + CLIENT_MORE_SECONDS)
        finally:
            client.stop(timeout_s=5)
        printed = client.tail()
    deployment.check()
    found = PYTHON_RATE.search(printed) if ended else None
    if found is None:
        raise BenchmarkError(f"{deployment.side}: the official Python client fails:\n{printed}")
    return float(found[1]), int(found[2])


def last_tps(output: str) -> int:
    """Read the last rate that a client printed, or raise BenchmarkError."""
    found = TPS.findall(output)
    if not found:
        raise BenchmarkError(f"the client printed no TPS:\n{output[-2000:]}")
    return int(found[-1])


def failures(output: str) -> int:
    """Add up the failures of the last line that a client printed."""
    lines = [line for line in output.splitlines() if TPS.search(line)]
    return sum(int(count) for count in FAILED.findall(lines[-1])) if lines else 0


def _run(tools: Tools, deployment: Deployment, main: str, words: list[str], seconds: float) -> str:
    if tools.java is None or tools.jars is None:
        raise BenchmarkError(f"RocketMQ's {main} needs Java and RocketMQ's jars")
    with tempfile.TemporaryDirectory(dir=deployment.directory) as home:
        common = ["-n", deployment.namesrv, "-ri", "1000"]
        command = java_command(tools.java, tools.jars, Path(home), CLIENT_MEMORY, f"{PACKAGE}.{main}", *common, *words)
        client = ServerProcess.start(command, Path(home) / f"{main}.log", {"ROCKETMQ_HOME": home})
        try:
            if client.wait(seconds):
                client.check()
        finally:
            client.stop(timeout_s=5)
        deployment.check()
        return client.log.read_text(errors="replace")
