"""Chromium, and people with it in front of a console."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from tests.interop.toolchain import browser as browser_files

OPTIONS = ("--no-sandbox", "--no-zygote", "--headless=shell", "--disable-gpu")
SERIOUS = ("serious", "critical")
expect.set_options(timeout=30_000)
LOCALE = "en-GB"
AXE = """async () => (await axe.run({resultTypes: ["violations"]})).violations
    .map(it => [it.impact, it.id, it.nodes[0].html])"""


def command(*words: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Run a command in a process of its own, as Playwright's loop runs in this thread; give what it prints."""
    program = [sys.executable, "-m", "firearrow", *words]
    known = {**os.environ, **(environment or {})}
    return subprocess.run(program, check=True, capture_output=True, text=True, cwd=cwd, env=known).stdout


def rows(*words: str, environment: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Run a command that prints a table, or an object a line; give its rows."""
    text = command(*words, "--json", environment=environment)
    found: list[dict[str, Any]] = json.loads(text) if text.startswith("[") else [*map(json.loads, text.splitlines())]
    return found


@contextmanager
def started_chromium() -> Iterator[Browser]:
    """Run Chromium for a ``with`` block."""
    files = browser_files()
    libraries = f"{files / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=files / "chromium", args=list(OPTIONS), env={**os.environ, "LD_LIBRARY_PATH": libraries}
        )
        yield started
        started.close()


class Visitor:
    """A person with a browser in front of a console."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.faults: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        page.on("console", lambda line: self.faults.append(line.text) if line.type == "error" else None)
        page.on("request", self._requested)
        self.clicks = 0
        page.expose_function("clicked", self._clicked)
        page.add_init_script("addEventListener('click', () => clicked(), true)")

    def _clicked(self) -> None:
        self.clicks += 1

    def _requested(self, request: Request) -> None:
        if not request.url.startswith((self.address, "data:")):
            self.faults.append(f"requested from elsewhere: {request.url}")

    def goes(self, *links: str) -> Page:
        """Begin at the first page, and follow links."""
        self.page.goto(self.address)
        self.clicks = 0
        for link in links:
            self.page.get_by_role("link", name=link, exact=True).first.click()
        return self.page

    def applies(self, preview: str) -> Page:
        """Read in the preview what would change, check the page, and carry the change out."""
        expect(self.page.locator("#outcome")).to_contain_text(preview)
        self.check()
        self.page.get_by_role("button", name="Apply").click()
        expect(self.page.get_by_text("done", exact=True)).to_be_visible()
        return self.page

    def check(self) -> None:
        """Assert that the page has no fault."""
        self.page.evaluate((browser_files() / "axe.min.js").read_text())
        found = self.page.evaluate(AXE)
        assert [it for it in found if it[0] in SERIOUS] == []
        assert self.faults == []


@contextmanager
def visiting(chromium: Browser, address: str) -> Iterator[Visitor]:
    """Open a browser of its own for a ``with`` block; its visitor has done nothing wrong at the end."""
    with chromium.new_context(locale=LOCALE) as context:
        person = Visitor(context.new_page(), address)
        yield person
        person.check()
