"""Photograph the console for its documentation: `python -m tools.consolepictures`.

A cluster on free ports has the traffic of a made-up shop (`tools.shoptraffic`) for some minutes. Chromium of the
interop tests opens pages of a console in front of it, and each picture goes to ``docs/pictures``. Its colours are made
256, so that it stays small.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from playwright.async_api import Page, async_playwright

from firearrow.cli.cluster.options import ClusterOptions
from firearrow.clock import SystemClock
from firearrow.console.app import Console
from firearrow.console.changes import ChangeLog
from firearrow.console.clusters import Clusters
from tests.console.conftest import served
from tests.interop.toolchain import browser
from tools.palettepng import with_palette
from tools.shoptraffic import open_shop

PICTURES: Final = Path(__file__).parent.parent / "docs" / "pictures"
OPTIONS: Final = ("--no-sandbox", "--no-zygote", "--headless=shell", "--disable-gpu")
WIDTH: Final = 1280
HEIGHT: Final = 900
BYTES_MAX: Final = 120_000
QUERY: Final = """\
SELECT body->>'$.customer' AS customer, count(*) AS orders, sum((body->>'$.cents')::int) / 100 AS total
FROM orders GROUP BY customer ORDER BY total DESC"""


@asynccontextmanager
async def shop_with_console(state: Path) -> AsyncIterator[str]:
    """Run cluster, shop and console; yield the console's address."""
    clock = SystemClock()
    async with open_shop() as name_server:
        clusters = Clusters(ClusterOptions(name_server=name_server), clock, state=state)
        async with served(Console(clusters, ChangeLog(state, clock), "key", clock)) as address:
            yield address


class Picture(NamedTuple):
    """A picture by the name of its file: a page of the cluster, and the links and buttons to press on it."""

    name: str
    path: str
    links: Sequence[str] = ()
    button: str = ""
    height: int = HEIGHT


SEEK: Final = "/do/offset-reset?group=audit&topic=orders&to=latest"
ALL: Final = (
    Picture("overview", "/"),
    Picture("topics", "/topics", height=640),
    Picture("messages", "/topics/orders/messages?tags=paid&having=region%3Deu", height=760),
    Picture("message", "/groups/mailer/dead-letters", ("a[href*='/queues/']", "a:text('Its origin')")),
    Picture("group", "/groups/audit"),
    Picture("dead-letters", "/groups/mailer/dead-letters", height=760),
    Picture("pending", "/pending?every=60"),
    Picture("preview", SEEK, button="Show what would change", height=640),
    Picture("sql", f"/sql?query={quote(QUERY)}", height=760),
    Picture("configuration", "/brokers/broker-a/config?q=flush"),
)


async def photograph(page: Page, address: str, picture: Picture) -> bytes:
    """Open a page, go where the picture is, and give its bytes."""
    await page.set_viewport_size({"width": WIDTH, "height": picture.height})
    await page.goto(f"{address}/cluster{picture.path}")
    for link in picture.links:
        await page.locator(f"main {link}").first.click()
    if picture.button:
        await page.get_by_role("button", name=picture.button).click()
    await page.wait_for_load_state("load")
    await page.wait_for_timeout(1000)  # charts are drawn after the page
    await page.evaluate("document.activeElement.blur()")
    return await page.screenshot()


async def photograph_all(seconds: float, names: Sequence[str]) -> dict[str, bytes]:
    """Give the pictures by their names, after some time of traffic."""
    files = browser()
    libraries = f"{files / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    with tempfile.TemporaryDirectory() as state:
        async with shop_with_console(Path(state)) as address, async_playwright() as playwright:
            await asyncio.sleep(seconds)
            chromium = await playwright.chromium.launch(
                executable_path=files / "chromium", args=list(OPTIONS), env={**os.environ, "LD_LIBRARY_PATH": libraries}
            )
            page = await chromium.new_page(locale="en-GB", color_scheme="light")
            chosen = [it for it in ALL if not names or it.name in names]
            taken = {picture.name: await photograph(page, address, picture) for picture in chosen}
            await chromium.close()
            return taken


def main() -> int:
    """Photograph the console."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="pictures to take (default: all)")
    parser.add_argument("--seconds", type=float, default=240, help="duration of the traffic before (default: 240)")
    parser.add_argument("--directory", type=Path, default=PICTURES, help="directory of the pictures")
    given = parser.parse_args()
    logging.disable()  # letters fail on purpose
    given.directory.mkdir(exist_ok=True)
    for name, png in asyncio.run(photograph_all(given.seconds, given.names)).items():
        content = with_palette(png)
        assert len(content) <= BYTES_MAX, f"{name} has {len(content):,} bytes"
        (given.directory / f"{name}.png").write_bytes(content)
        print(f"{name} {len(content):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
