"""What the benchmark needs of the machine: Java, RocketMQ's jars, and the load generator.

Jars and the built generator are kept in `$FIREARROW_CACHE`, or `~/.cache/firearrow`, so that only
the first run downloads and compiles.
"""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.errors import BenchmarkError, MissingTool

HERE = Path(__file__).resolve().parent
ROCKETMQ_VERSION = "5.5.0"
BUILD_TIMEOUT_S = 900  # the first Maven run downloads about 150 jars


@dataclass(frozen=True)
class Tools:
    """Paths of what a run uses; `java` and `jars` are None if only Firearrow is measured."""

    generator: Path
    java: Path | None = None
    jars: Path | None = None


def prepare(*, rocketmq: bool) -> Tools:
    """Find, download and build all that a run needs.

    Raises MissingTool, which names the program and what it is needed for.
    """
    cargo = find("cargo", "build the load generator (Debian: apt install cargo)")
    if not rocketmq:
        return Tools(build_generator(cargo))
    java = find("java", "run RocketMQ (Debian: apt install openjdk-17-jdk-headless)")
    maven = find("mvn", "download RocketMQ (Debian: apt install maven)")
    return Tools(build_generator(cargo), java, fetch_jars(maven))


def find(program: str, purpose: str) -> Path:
    """Give the path of a program on PATH, or raise MissingTool."""
    found = shutil.which(program)
    if found is None:
        raise MissingTool(f"{program} is not installed; it is needed to {purpose}")
    return Path(found)


def cache_dir() -> Path:
    """Give the directory that survives runs, made if it is not there."""
    given = os.environ.get("FIREARROW_CACHE")
    path = Path(given) if given else Path.home() / ".cache" / "firearrow"
    path.mkdir(parents=True, exist_ok=True)
    return path


def build_generator(cargo: Path) -> Path:
    """Compile `benchmarks/load`; a moment if nothing changed."""
    target = cache_dir() / "load"
    manifest = HERE / "load" / "Cargo.toml"
    command: list[str | Path] = [cargo, "build", "--release", "--quiet", "--locked"]
    command += ["--manifest-path", manifest, "--target-dir", target]
    output(command)
    return target / "release" / "firearrow-load"


def fetch_jars(maven: Path, pom: Path | None = None, name: str = f"rocketmq-{ROCKETMQ_VERSION}-benchmark") -> Path:
    """Copy the jars that a pom names (RocketMQ's) into the cache, unless they are there already."""
    pom = pom or HERE / "pom.xml"
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()
    jars = cache_dir() / name
    stamp = jars / "complete"
    if stamp.exists() and stamp.read_text() == digest:
        return jars
    shutil.rmtree(jars, ignore_errors=True)
    goal = "dependency:copy-dependencies"
    output([maven, "-q", "-B", "-f", pom, goal, f"-DoutputDirectory={jars}"])
    stamp.write_text(digest)
    return jars


def go_program(go: Path, module: str) -> Path:
    """Build a program of Go, ``module@version``, into the cache, unless it is there already."""
    place = cache_dir() / module.replace("/", "-")
    name = re.sub(r"/v\d+$", "", module.partition("@")[0]).rpartition("/")[2]
    if not (place / name).exists():
        output([go, "install", module], environment={"GOBIN": str(place)})
    return place / name


def output(
    command: list[str | Path], seconds: float = BUILD_TIMEOUT_S, environment: Mapping[str, str] | None = None
) -> str:
    """Run a program and give its output; BenchmarkError if it fails or takes too long."""
    what = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env={**os.environ, **(environment or {})},
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"{what}: no result within {seconds} s") from error
    if done.returncode != 0:
        raise BenchmarkError(f"{what}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout + done.stderr
