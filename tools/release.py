"""Build a release in `dist/`: packages below `dist/packages`, a bill of materials and SHA-256 sums beside them.

With a tag, first check that the sources are those of the version that the tag names.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from firearrow import __version__
from tools.sbom import ROOT, bill

DIST: Final = ROOT / "dist"


def build(kind: str, source: Path, directory: Path) -> Path:
    """Build an ``sdist`` or a ``wheel`` into a directory."""
    before = set(directory.glob("*"))
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(directory)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (made,) = set(directory.iterdir()) - before
    return made


def fault(tag: str, changelog: str) -> str | None:
    """Return the reason why a tag can't be released from these sources, if there is one."""
    if tag != f"v{__version__}":
        return f"the tag is {tag}, but src/firearrow/__init__.py has the version {__version__}"
    if not re.search(rf"^## {re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.MULTILINE):
        return f"CHANGELOG.md has no section `## {__version__} (DATE)`"
    return None


def main(words: Sequence[str] | None = None) -> int:
    """Build everything; 1 if the tag does not fit, or if the package index would refuse a package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", help="tag of the release, v and its version")
    tag = parser.parse_args(words).tag
    found = fault(tag, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")) if tag else None
    if found:
        print(found, file=sys.stderr)
        return 1
    shutil.rmtree(DIST, ignore_errors=True)
    (DIST / "packages").mkdir(parents=True)
    made = [build(kind, ROOT, DIST / "packages") for kind in ("sdist", "wheel")]
    made.append(DIST / "firearrow.cdx.json")
    made[-1].write_text(bill(), encoding="utf-8")
    sums = "".join(f"{sha256(it.read_bytes()).hexdigest()}  {it.name}\n" for it in made)
    (DIST / "SHA256SUMS").write_text(sums, encoding="utf-8")
    print(sums, end="")
    return subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *made[:2]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
