"""Build the documentation as a site: `docs/`, README as its first page, and the project's other pages.

In the repository the pages link to each other by relative paths. The site has no `docs/`: README's page and the
project's other pages are beside the rest, so the links change. A link to anything but a page (source, results)
becomes plain text.
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
    """Return every page of the repository that is on the site, with its name there."""
    project = {path: path.name for path in ROOT.glob("*.md")}
    project[ROOT / "README.md"] = "index.md"
    docs = ROOT / "docs"
    return project | {path: path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}


def on_the_site(page: Path) -> str:
    """Return the text of a page with links that are valid on the site."""
    names = pages()
    directory = Path(names[page]).parent

    def changed(link: re.Match[str]) -> str:
        text, target, fragment = link.groups()
        name = names.get(Path(os.path.normpath(page.parent / target)))
        return f"[{text}]({os.path.relpath(name, directory)}{fragment or ''})" if name else text

    return _LINK.sub(changed, page.read_text(encoding="utf-8"))


def main() -> int:
    """Build the site below ``build/site``."""
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
