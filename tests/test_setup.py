"""`tools/setup.sh` makes `.venv` with the requested interpreter, or with the best one.

All interpreters here are fakes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.test_tidy import ROOT

# Stands for an interpreter and for the one of an environment that was made from it.
INTERPRETER = """#!/bin/sh
case "$*" in
  *version_info*) echo 12 ;;
  *_base_executable*) echo {path} ;;
  "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  "-m pip "*) ;;
  --version) echo "Python 3.12 of {path}" ;;
  *) exit 1 ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Checkout that consists of the files that the script needs."""
    (tmp_path / "project/tools").mkdir(parents=True)
    for name in ("pyproject.toml", "tools/setup.sh", "tools/interpreters.sh"):
        shutil.copy(ROOT / name, tmp_path / "project" / name)
    return tmp_path / "project"


def interpreter(directory: Path, name: str) -> Path:
    path = directory / name
    path.write_text(INTERPRETER.format(path=path))
    path.chmod(0o755)
    return path


def set_up(project: Path, python: Path | None, path: str | None = None, home: str | None = None) -> tuple[int, str]:
    """Run the script; return its exit code and its messages."""
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    environment |= {key: it for key, it in (("PATH", path), ("HOME", home)) if it is not None}
    if python:
        environment["FIREARROW_PYTHON"] = str(python)
    command = [str(project / "tools/setup.sh"), "run"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.stdout == ""
    return ended.returncode, ended.stderr


def made(python: Path) -> tuple[int, str]:
    return 0, f"firearrow: setting up .venv with Python 3.12 of {python}, to run\n"


def test_another_interpreter_makes_the_environment_again(project: Path, tmp_path: Path) -> None:
    one, other = interpreter(tmp_path, "one"), interpreter(tmp_path, "other")
    assert set_up(project, one) == made(one)
    assert set_up(project, other) == made(other)
    assert (project / ".venv/bin/python").read_text() == other.read_text()


def test_the_same_interpreter_or_none_leaves_the_environment(project: Path, tmp_path: Path) -> None:
    one = interpreter(tmp_path, "one")
    set_up(project, one)
    link = tmp_path / "link"
    link.symlink_to(one)
    for python in (one, link, None):
        assert set_up(project, python) == (0, "")


def test_what_is_no_interpreter_leaves_the_environment(project: Path, tmp_path: Path) -> None:
    one, missing = interpreter(tmp_path, "one"), tmp_path / "missing"
    set_up(project, one)
    said = f"firearrow: {missing} is not Python 3.11, 3.12, 3.13 or 3.14.\n"
    assert set_up(project, missing) == (1, said)
    assert (project / ".venv/bin/python").read_text() == one.read_text()


# An interpreter of some version, which lacks a module or not, and whose build is slow or not.
VERSION = """#!/bin/sh
case "$*" in
  *version_info*) echo {minor} ;;
  *machine.py) exit {slow} ;;
  *ensurepip*) exit {bare} ;;
  "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  "-m pip "*) ;;
  --version) echo "Python 3.{minor}" ;;
  *) exit 1 ;;
esac
"""


TOOLS = ("bash", "cat", "cksum", "dirname", "ls", "mkdir", "cp", "rm", "sort", "touch", "tr")
"""Programs that the script needs, without the machine's own interpreters beside them."""


@pytest.mark.parametrize(
    ("slow", "bare", "chosen"),
    [
        ([], [], 13),
        ([13], [], 12),
        ([13, 12], [], 11),
        ([13, 12, 11], [], 13),
        ([13], [12], 11),  # it makes no environment
    ],
)
def test_the_newest_that_is_not_slow_by_its_build_is_chosen(
    project: Path, tmp_path: Path, slow: list[int], bare: list[int], chosen: int
) -> None:
    for minor in (11, 12, 13):
        path = tmp_path / "bin" / f"python3.{minor}"
        path.parent.mkdir(exist_ok=True)
        text = VERSION.format(minor=minor, slow=int(minor in slow), bare=int(minor in bare))
        path.write_text(text)
        path.chmod(0o755)
    for name in TOOLS:
        tool = shutil.which(name)
        assert tool is not None
        (tmp_path / "bin" / name).symlink_to(tool)
    said = set_up(project, None, path=str(tmp_path / "bin"), home=str(tmp_path))
    assert said == (0, f"firearrow: setting up .venv with Python 3.{chosen}, to run\n")
