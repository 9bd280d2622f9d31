"""Build the site of the documentation: `docs/` with README as its first page and the pages about
the project beside it.

In the repository the pages lead to each other by relative paths. The site has no `docs/` and puts README's page
and the others of the project beside the rest, so links change. A link to a file that is no page there (source,
results) becomes its text.
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
    """Give every page of the repository that is one of the site, and its name there."""
    project = {path: path.name for path in ROOT.glob("*.md")}
    project[ROOT / "README.md"] = "index.md"
    docs = ROOT / "docs"
    return project | {path: path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}


def on_the_site(page: Path) -> str:
    """Give the text of a page with links that lead to where the others are on the site."""
    names = pages()
    directory = Path(names[page]).parent

    def changed(link: re.Match[str]) -> str:
        text, target, fragment = link.groups()
        name = names.get(Path(os.path.normpath(page.parent / target)))
        return f"[{text}]({os.path.relpath(name, directory)}{fragment or ''})" if name else text

    return _LINK.sub(changed, page.read_text(encoding="utf-8"))


def main() -> int:
    """Build the site, below ``build/site``."""
    shutil.rmtree(SITE, ignore_errors=True)
    docs = SITE / "docs"
    docs.mkdir(parents=True)
    for page, name in pages().items():
        (docs / name).parent.mkdir(exist_ok=True)
        (docs / name).write_text(on_the_site(page), encoding="utf-8")
    shutil.copy(ROOT / "tools" / "site.css", docs)
    shutil.copy(ROOT / "mkdocs.yml", SITE)
    zensical = Path(sys.executable).parent / "zensical"
    return subprocess.run([zensical, "build", "--strict"], cwd=SITE, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
