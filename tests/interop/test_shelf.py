"""Tools of others accept what is beside the code: workflows."""

from __future__ import annotations

import subprocess

import pytest

from tests.interop.toolchain import go_tool
from tests.pages import ROOT

pytestmark = pytest.mark.interop


def accepted(*command: object) -> str:
    """Run a tool that must have nothing to say against something; return its output."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_actionlint_accepts_the_workflows() -> None:
    assert accepted(go_tool("actionlint"), "-shellcheck=", "-no-color") == ""
