"""`tools/setup.sh` makes `.venv` with the interpreter that is asked for, or that does best.

All of them are fakes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.test_tidy import ROOT
from tools.python_speed import choice

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
    """A checkout that consists of what the script needs."""
    (tmp_path / "project/tools").mkdir(parents=True)
    for name in ("pyproject.toml", "tools/setup.sh", "tools/interpreters.sh"):
        shutil.copy(ROOT / name, tmp_path / "project" / name)
    return tmp_path / "project"


def interpreter(directory: Path, name: str) -> Path:
    path = directory / name
    path.write_text(INTERPRETER.format(path=path))
    path.chmod(0o755)
    return path


def set_up(project: Path, python: Path | None) -> tuple[int, str]:
    """Run the script; its exit code, and what it says."""
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
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


# Takes so many nanoseconds for a message, and lacks a module, or not.
MEASURED = """#!/bin/sh
case "$1" in
  -c) exit {missing} ;;
  *) echo {ns} ;;
esac
"""


@pytest.mark.parametrize(
    ("speeds", "chosen"),
    [
        ([800], 0),
        ([800, 700, 690], 0),
        ([800, 900, 500, 520], 2),
        ([800, 500, 400], 2),
    ],
)
def test_the_first_is_chosen_or_one_that_is_clearly_faster(
    tmp_path: Path, speeds: list[int], chosen: int
) -> None:
    pythons = [measured(tmp_path / f"python{at}", ns) for at, ns in enumerate(speeds)]
    assert choice(pythons) == pythons[chosen]
    assert choice([*pythons, pythons[0]]) == pythons[chosen]


def test_a_faster_one_that_makes_no_environment_is_not_chosen(tmp_path: Path) -> None:
    slow, fast = measured(tmp_path / "slow", 800), measured(tmp_path / "fast", 400, missing=1)
    assert choice([slow, fast]) == slow
    assert choice([fast, slow]) == fast


def measured(path: Path, ns: int, missing: int = 0) -> str:
    path.write_text(MEASURED.format(ns=ns, missing=missing))
    path.chmod(0o755)
    return str(path)
