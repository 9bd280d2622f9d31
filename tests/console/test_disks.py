"""The page about disks."""

from __future__ import annotations

import asyncio

import httpx

from firearrow.client.admin import Admin
from firearrow.clock import SystemClock
from firearrow.console.pages.disks import grown, pace
from firearrow.console.sampler import Sampler
from tests.cli.cluster.test_disks import GIB, disk


def test_the_disk_of_each_broker_is_shown(browser: httpx.Client) -> None:
    text = browser.get("/cluster/disk").text
    assert "broker-a, 127.0.0.1:" in text
    assert "the last one always stays" in text
    assert "firearrow store why-not-deleted" in text


def test_the_pace_of_the_last_hour_is_foretold() -> None:
    of = disk(10, 1, 0.1, 90)
    assert pace(of, (GIB, 600.0)).startswith("grows by 1.0 GiB an hour.")
    assert pace(of, (-1.0, 600.0)) == pace(of, None) == ""


def test_growth_comes_from_the_history() -> None:
    async def grow() -> None:
        async with Admin.of(["127.0.0.1:1"]) as admin:
            sampler = Sampler(admin, SystemClock())
            assert grown(sampler, "a:1") is None
            sampler.history.add(1000, {"log a:1": 1e9})
            sampler.history.add(1060, {"log a:1": 1.1e9})
            assert grown(sampler, "a:1") is None, "a minute says little"
            sampler.history.add(1180, {"log a:1": 1.1e9})
            rate, seconds = grown(sampler, "a:1") or (0, 0)
            assert seconds == 180
            assert abs(rate - 2e9) < 1e6

    asyncio.run(grow())
