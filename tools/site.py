"""Build the documentation as a site: `docs/` with the pages about the project beside it.

In the repository, pages link to each other by relative paths. The site has the pages of the root beside those of
`docs/`, so this module changes links between the two. Links to other files (source, results) become plain text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SITE = ROOT / "build" / "site"
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")


def pages() -> dict[Path, str]:
    """Return every page of the repository that is on the site, with its path there."""
    project = {path: path.name for path in ROOT.glob("*.md")}
    project[ROOT / "README.md"] = "about.md"
    return project | _below_docs("*.md")


def pictures() -> dict[Path, str]:
    """Return every picture of the documentation, with its path on the site."""
    return _below_docs("*.svg") | _below_docs("*.png")


def _below_docs(pattern: str) -> dict[Path, str]:
    docs = ROOT / "docs"
    return {path: path.relative_to(docs).as_posix() for path in docs.rglob(pattern)}


def on_the_site(page: Path) -> str:
    """Return the text of a page with links that are valid on the site."""
    names = pages() | pictures()
    here = Path(names[page]).parent

    def changed(link: re.Match[str]) -> str:
        text, target, fragment = link.groups()
        name = names.get(Path(os.path.normpath(page.parent / target)))
        return f"[{text}]({os.path.relpath(name, here)}{fragment or ''})" if name else text

    return _LINK.sub(changed, page.read_text(encoding="utf-8"))


def main() -> int:
    """Build the site below ``build/site``."""
    shutil.rmtree(SITE, ignore_errors=True)
    docs = SITE / "docs"
    for page, name in pages().items():
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_text(on_the_site(page), encoding="utf-8")
    for picture, name in pictures().items():
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, docs / name)
    shutil.copy(ROOT / "tools" / "site.css", docs)
    shutil.copy(ROOT / "mkdocs.yml", SITE)
    zensical = Path(sys.executable).parent / "zensical"
    return subprocess.run([zensical, "build", "--strict"], cwd=SITE, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
