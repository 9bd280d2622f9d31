"""The pace of samples and of checks."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from firearrow.cli.cluster.options import ClusterOptions
from firearrow.client.admin import Admin
from firearrow.clock import SystemClock
from firearrow.console import clusters
from firearrow.console.clusters import Clusters
from firearrow.console.sampler import Sampler


class StallingClock(SystemClock):
    """The clock of a machine that stands still for ten minutes between any two readings."""

    def __init__(self) -> None:
        self._readings = count(0, 600)

    def monotonic(self) -> float:
        """Return a time ten minutes after the last."""
        return next(self._readings)


def test_a_machine_that_stalls_has_samples_as_often_as_another() -> None:
    async def two_samples() -> None:
        async with Admin.of(["127.0.0.1:1"]) as admin:
            sampler = Sampler(admin, StallingClock())
            running = asyncio.create_task(sampler.run())
            async with asyncio.timeout(60):
                assert await sampler.news(await sampler.news(0)) == 2
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(two_samples())


def test_a_slow_look_at_the_health_delays_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "HEALTH_SECONDS", 0.0)

    async def two_looks() -> None:
        opened = Clusters(ClusterOptions(name_server="127.0.0.1:1"), StallingClock())
        async with opened.running(), asyncio.timeout(60):
            cluster = await opened.get(opened.first)
            looks = {id(cluster.health): cluster.health}
            while len(looks) < 3:
                await asyncio.sleep(0.01)
                looks[id(cluster.health)] = cluster.health

    asyncio.run(two_looks())
