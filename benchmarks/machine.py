"""Facts about the machine that a number is worth nothing without."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from benchmarks.toolchain import HERE, ROCKETMQ_VERSION, Tools
from tools.python_speed import python_message_ns

BUSY_LOAD = 0.5


def facts(tools: Tools) -> dict[str, str | int | float]:
    """Gather what the report states; nothing in it names the machine or its user."""
    found: dict[str, str | int | float] = {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _field("/proc/cpuinfo", "model name"),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "python_message_ns": python_message_ns(),
        "uvloop": _installed("uvloop"),
        "firearrow": commit(),
    }
    if tools.java:
        found["java"] = java_version(_output([tools.java, "-version"]))
        found["rocketmq"] = ROCKETMQ_VERSION
    return found


def java_version(output: str) -> str:
    """Read the runtime's name from `java -version`, whose second line holds it."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[1] if len(lines) > 1 else "unknown"


def commit() -> str:
    """Give the commit that is measured, marked if the tree differs from it."""
    text = _output(["git", "-C", HERE, "describe", "--always", "--dirty", "--abbrev=12"])
    return text.strip() or "unknown"


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return "unknown"


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _output(command: list[str | Path]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""
