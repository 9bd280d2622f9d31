"""The published packages are complete.

The sdist has every file that its tests need. The wheel built from it works far from a checkout, in an
environment with only the wheel's own dependencies.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from firearrow import __version__
from tests.archives import unpack
from tests.pages import README, hello, printed_by
from tests.test_tidy import ROOT, files

IMPORT_SECONDS_MAX = 0.15
KNOWN = (
    "import argparse, asyncio, decimal, doctest, http.server, imaplib, logging.config, pdb, smtplib"
    ", sqlite3, statistics, tarfile, unittest.mock, urllib.request, xml.dom.minidom, zipfile"
)
CLIENT = "from firearrow.client import Producer, PushConsumer, PullConsumer, SimpleConsumer"


class Installed:
    """Environment with the installed wheel, and an empty directory to work in."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.bin = home / "venv" / "bin"
        self.here = home / "elsewhere"
        self.variables = {"PATH": f"{self.bin}:{os.defpath}", "HOME": str(self.here)}
        self.here.mkdir()

    def run(self, command: str, *arguments: str | Path) -> str:
        """Return the output of a command of the environment; it must succeed without complaint."""
        done = subprocess.run(
            [self.bin / command, *arguments],
            cwd=self.here, env=self.variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout


def build(kind: str, source: Path, directory: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(directory)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (made,) = directory.iterdir()
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel built from the sdist, as pip does if there is no wheel."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    unpack(sdist, unpacked)
    (source,) = unpacked.iterdir()
    return build("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    home = tmp_path_factory.mktemp("installed")
    venv.create(home / "venv", symlinks=True)
    (packages,) = (home / "venv").glob("lib/python*/site-packages")
    for name in dependencies():
        for path in top_level(name):
            (packages / path.name).symlink_to(path)
    found = Installed(home)
    # Without an index pip takes what is there, and fails if the wheel asks for anything else.
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", found.bin / "python"]
    subprocess.run([*pip, "install", "--quiet", "--no-index", wheel], check=True)
    return found


def dependencies() -> set[str]:
    """Return the names of the wheel's dependencies here, without extras, and of theirs in turn."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [Requirement(text) for text in project["dependencies"]]
    found: set[str] = set()
    while asked:
        it = asked.pop()
        if it.name not in found and (it.marker is None or it.marker.evaluate({"extra": ""})):
            found.add(it.name)
            asked += map(Requirement, distribution(it.name).requires or ())
    return found


def top_level(name: str) -> set[Path]:
    """Return the directories and files of a package in ``site-packages``, its metadata among them."""
    found = distribution(name)
    firsts = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
    return {Path(str(found.locate_file(first))) for first in firsts}


def test_sdist_has_every_file_of_the_checkout(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {path.relative_to(ROOT).as_posix() for path in files()}
    assert expected - names == set()
    assert names - expected <= {"PKG-INFO"}


def test_wheel_has_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    metadata = f"firearrow-{__version__}.dist-info/"
    source = ROOT / "src"
    expected = {path.relative_to(source).as_posix() for path in files() if source in path.parents}
    assert {name for name in names if not name.startswith(metadata)} == expected
    assert expected >= {"firearrow/py.typed", "pyspark_firearrow/__init__.py"}
    assert names >= {f"{metadata}{name}" for name in ("entry_points.txt", "licenses/LICENSE")}


def test_commands_run(installed: Installed) -> None:
    assert installed.run("firearrow", "--version") == f"firearrow {__version__}\n"
    assert installed.run("python", "-m", "firearrow", "--version") == f"firearrow {__version__}\n"
    assert "updateTopic" in installed.run("mqadmin")


def test_what_the_client_offers_needs_no_extra(installed: Installed) -> None:
    code = "import firearrow.client as it; print(*(getattr(it, n).__name__ for n in it.__all__))"
    assert "PushConsumer" in installed.run("python", "-c", code).split()
    where = "import firearrow.client.blocking as it; print(it.__file__)"
    assert installed.run("python", "-c", where).startswith(str(installed.bin.parent))


def test_the_client_is_imported_in_no_time(installed: Installed) -> None:
    """Measure processor time beyond that of an empty program; a busy machine may take twice the limit.

    On a machine that is slower still, an import of some of the standard library is the measure.
    """
    empty, whole, known = (min(seconds(installed, code) for _ in range(5)) for code in ("pass", CLIENT, KNOWN))
    assert 0 < whole - empty < 2 * max(IMPORT_SECONDS_MAX, known - empty)


def seconds(installed: Installed, code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    installed.run("python", "-c", code)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.fixture(scope="module")
def name_server(installed: Installed) -> Iterator[str]:
    """Address of the name server of `firearrow serve --ephemeral`."""
    command = [str(installed.bin / "firearrow"), "serve", "--ephemeral", "--until-stdin-closes"]
    with subprocess.Popen(
        command, cwd=installed.here, env=installed.variables, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as servers:  # fmt: skip
        assert servers.stdout is not None
        ready, name_server, _ = servers.stdout.readline().split()
        assert ready == "ready"
        yield name_server.removeprefix("namesrv=")
        servers.communicate()
    assert servers.returncode == 0
    assert not list(installed.here.iterdir())


def test_five_minutes_with_the_readme(installed: Installed, name_server: str) -> None:
    program = installed.home / "hello.py"
    program.write_text(hello(README, "python", name_server), encoding="utf-8")
    command: list[str | Path] = [installed.bin / "python", "-u", program]
    printed = printed_by(command, cwd=installed.here, env=installed.variables)
    assert printed == ["SEND_OK", "received hello"]
