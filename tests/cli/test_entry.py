"""Ctrl-C while a command is still being imported is one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.test_tidy import ROOT

# In place of a module of the standard library: the import stops in the middle of it, in a class
# statement, where older versions of Python make another error of an exception.
BLOCKING = """
import os, sys
class Field:
    def __set_name__(self, owner, name):
        os.write(1, b"importing")
        os.read(0, 1)
class Importing:
    field = Field()
"""


def script() -> str:
    """What pip writes for the command."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, function = project["scripts"]["firearrow"].split(":")
    return f"import sys; from {module} import {function}; sys.exit({function}())"


@pytest.mark.parametrize("how", [["-m", "firearrow"], ["-c", script()]], ids=["module", "script"])
@pytest.mark.parametrize(
    ("command", "module"), [("errors 1", "argparse"), ("store verify .", "shutil"), ("serve", "asyncio")]
)
def test_ctrl_c_in_the_middle_of_an_import_is_one_line(
    how: list[str], command: str, module: str, tmp_path: Path
) -> None:
    (tmp_path / f"{module}.py").write_text(BLOCKING)
    with subprocess.Popen(
        [sys.executable, *how, *command.split()],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 9) == b"importing"
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1] == b"firearrow: interrupted\n"
    assert process.returncode == 130
