"""The source distribution holds all that its tests need."""

import subprocess
import sys
import tarfile
from pathlib import Path

from tests.test_tidy import ROOT, files


def test_sdist_has_every_file_of_the_checkout(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (made,) = tmp_path.iterdir()
    with tarfile.open(made) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    expected = {path.relative_to(ROOT).as_posix() for path in files()}
    assert expected - names == set()
    assert names - expected <= {"PKG-INFO"}
