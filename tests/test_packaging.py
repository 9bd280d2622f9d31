"""The published packages are complete.

The sdist has every file that its tests need. The wheel built from it works far from a checkout, in an
environment with only the wheel's own dependencies.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.metadata import Metadata
from packaging.utils import canonicalize_name

from firearrow import __version__
from firearrow.console.vendored import VENDORED
from tests.archives import unpack
from tests.pages import README, hello, printed_by
from tests.test_docs import LINK
from tests.test_tidy import ROOT, files
from tools import release, sbom
from tools.release import build

IMPORT_SECONDS_MAX = 0.15
KNOWN = (
    "import argparse, asyncio, decimal, doctest, http.server, imaplib, logging.config, pdb, smtplib"
    ", sqlite3, statistics, tarfile, unittest.mock, urllib.request, xml.dom.minidom, zipfile"
)
CLIENT = "from firearrow.client import Producer, PushConsumer, PullConsumer, SimpleConsumer"


ADDRESSED = {
    *(".github/ISSUE_TEMPLATE/config.yml", "CODE_OF_CONDUCT.md", "Containerfile", "SECURITY.md"),
    *("packaging/helm/firearrow/Chart.yaml", "packaging/helm/firearrow/values.yaml"),
    *("pyproject.toml", "tests/test_packaging.py"),
}
"""Files that name the project's home."""


class Installed:
    """Environment with the installed wheel, and an empty directory to work in."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.bin = home / "venv" / "bin"
        self.here = home / "elsewhere"
        self.variables = {"PATH": f"{self.bin}:{os.defpath}", "HOME": str(self.here)}
        self.here.mkdir()

    def bring(self, extra: str) -> None:
        """Add the packages of an extra of the wheel; the core's have the name ``""``."""
        (packages,) = self.bin.parent.glob("lib/python*/site-packages")
        for name in sbom.installed(sbom.requirements()[extra]):
            for path in top_level(name):
                (packages / path.name).symlink_to(path)

    def run(self, command: str, *arguments: str | Path) -> str:
        """Return the output of a command of the environment; it must succeed without complaint."""
        done = subprocess.run(
            [self.bin / command, *arguments],
            cwd=self.here, env=self.variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout


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
    found = Installed(home)
    found.bring("")
    # Without an index pip takes what is there, and fails if the wheel asks for anything else.
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", found.bin / "python"]
    subprocess.run([*pip, "install", "--quiet", "--no-index", wheel], check=True)
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
    assert names >= {f"{metadata}{name}" for name in ("entry_points.txt", "licenses/LICENSE", "licenses/NOTICE")}


def test_a_rebuild_from_the_files_alone_gives_the_same_bytes(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    """Copy the files with other times and permissions, and without git."""
    copy = tmp_path / "copy"
    for path in files():
        to = copy / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
        to.chmod(0o700 if path.stat().st_mode & stat.S_IXUSR else 0o600)
        os.utime(to, (86400, 86400))
    for kind, first in (("sdist", sdist), ("wheel", wheel)):
        (tmp_path / kind).mkdir()
        again = build(kind, copy, tmp_path / kind)
        assert again.name == first.name
        assert sha256(again.read_bytes()).hexdigest() == sha256(first.read_bytes()).hexdigest(), kind


def test_the_package_index_takes_the_packages(sdist: Path, wheel: Path) -> None:
    command: list[str | Path] = [sys.executable, "-m", "twine", "--no-color", "check", "--strict", sdist, wheel]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    said = checked.stdout + checked.stderr
    assert checked.stdout.count("PASSED") == 2, said  # a long path breaks the line before it


def test_links_of_the_readme_lead_to_files_from_the_package_index(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"firearrow-{__version__}.dist-info/METADATA").decode()
    metadata = Metadata.from_email(text)
    assert metadata.description
    assert LINK.findall(metadata.description) == []
    assert metadata.project_urls
    places = {
        f"{metadata.project_urls['Homepage']}/blob/v{__version__}/",
        f"https://raw.githubusercontent.com/firearrow/firearrow/v{__version__}/",
    }
    links = re.findall(r"\]\(([^)#\s]+)", metadata.description)
    found = {(place, link.removeprefix(place)) for link in links for place in places if link.startswith(place)}
    assert {place for place, _ in found} == places
    assert [path for _, path in found if not (ROOT / path).is_file()] == []
    relative = set(re.findall(LINK, README.read_text(encoding="utf-8")))
    assert {path for _, path in found} == relative


def test_the_project_has_one_address() -> None:
    """A move of the project changes these files alone."""
    found = {path.relative_to(ROOT).as_posix() for path in files() if b"firearrow/firearrow" in path.read_bytes()}
    assert found == ADDRESSED


def test_a_release_has_the_version_of_its_tag_and_a_section_of_changes() -> None:
    changes = f"# Changelog\n\n## {__version__} (2026-12-01)\n"
    assert release.fault(f"v{__version__}", changes) is None
    assert release.fault(f"v{__version__}", "## Unreleased\n") == (
        f"CHANGELOG.md has no section `## {__version__} (DATE)`"
    )
    assert release.fault("v9.9.9", changes) == (
        f"the tag is v9.9.9, but src/firearrow/__init__.py has the version {__version__}"
    )


def test_the_chart_has_the_version_of_the_packages() -> None:
    chart = yaml.safe_load((ROOT / "packaging/helm/firearrow/Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_bill_of_materials_has_what_each_extra_brings() -> None:
    text = sbom.bill()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert sbom.bill() == text
    bill = json.loads(text)
    extras = {it["name"]: {own["value"] for own in it.get("properties", ())} for it in bill["components"]}
    for extra, asked in sbom.requirements().items():
        applicable = [it for it in asked if it.marker is None or it.marker.evaluate({"extra": ""})]
        assert [it.name for it in applicable if extra not in extras[canonicalize_name(it.name)]] == []
    assert {it.package for it in VENDORED} <= extras.keys()
    refs = {it["bom-ref"] for it in (*bill["components"], bill["metadata"]["component"])}
    assert {it["ref"] for it in bill["dependencies"]} == refs


def test_commands_run(installed: Installed) -> None:
    assert installed.run("firearrow", "--version") == f"firearrow {__version__}\n"
    assert installed.run("python", "-m", "firearrow", "--version") == f"firearrow {__version__}\n"
    assert "updateTopic" in installed.run("mqadmin")


def test_what_the_client_offers_needs_no_extra(installed: Installed) -> None:
    code = "import firearrow.client as it; print(*(name for name in it.__all__ if getattr(it, name) is not None))"
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
    """Address of the name server of `firearrow serve --ephemeral`, which needs the extra ``server``."""
    installed.bring("server")
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
