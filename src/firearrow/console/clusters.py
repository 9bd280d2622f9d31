"""Clusters of a console: those of the contexts, or one that the command line names.

A cluster is opened when a page of it is wanted first, and stays open: its sampler keeps the history of an hour.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from firearrow.cli.cluster.contexts import load_contexts
from firearrow.cli.cluster.options import ClusterOptions, Target
from firearrow.client.admin import Admin
from firearrow.client.diagnosis import checks, clusterfacts
from firearrow.client.diagnosis.findings import Finding, Level, by_gravity, worst
from firearrow.clock import Clock
from firearrow.console.alerts import Alerts
from firearrow.console.operations import OpenCluster
from firearrow.console.sampler import Sampler
from firearrow.console.webhook import Webhook
from firearrow.errors import ConfigError, FirearrowError
from firearrow.files import name_of_file

GIVEN: Final = "cluster"
"""Name of a cluster that is no context."""
HEALTH_SECONDS: Final = 30.0
HEALTH_COST_MAX: Final = 0.05
"""Share of the time that checks may take; those of large clusters run less often."""


@dataclass(slots=True)
class Health:
    """Findings of the checks at a time in ms, the gravest first; before the first look, none at 0."""

    at_ms: int = 0
    findings: list[Finding] = field(default_factory=list)
    facts: clusterfacts.ClusterFacts = field(default_factory=lambda: clusterfacts.ClusterFacts(0))

    @property
    def level(self) -> Level:
        """Gravest level of a finding."""
        return worst(self.findings)


@dataclass(slots=True)
class Cluster:
    """An open cluster."""

    name: str
    target: Target
    admin: Admin
    clock: Clock
    sampler: Sampler
    alerts: Alerts = field(default_factory=Alerts)
    webhook: Webhook | None = None
    health: Health = field(default_factory=Health)

    @property
    def options(self) -> OpenCluster:
        """Cluster as commands take it."""
        return OpenCluster(opened=self.admin, where=self.target)

    async def check_health(self) -> None:
        """Examine the cluster now, and announce what is new."""
        now_ms = self.clock.now_ms()
        await self._examine(now_ms)
        news = self.alerts.look(self.health.findings, now_ms)
        if self.webhook is not None:
            self.webhook.announce(self.name, news)

    async def _examine(self, now_ms: int) -> None:
        try:
            facts = await clusterfacts.collect(self.admin, now_ms)
        except (OSError, FirearrowError) as error:
            unknown = Finding("asked", Level.UNKNOWN, self.name, str(error))
            self.health = Health(now_ms, [unknown])
            return
        self.health = Health(now_ms, by_gravity(checks.findings(facts, self.alerts.limits)), facts)

    async def watch_health(self) -> None:
        """Examine the cluster again and again until cancelled."""
        while True:
            began = self.clock.monotonic()
            await self.check_health()
            took = self.clock.monotonic() - began
            await asyncio.sleep(max(HEALTH_SECONDS - took, took / HEALTH_COST_MAX))


class Clusters:
    """Clusters by their names. `running` opens and closes them.

    Alerts go to ``webhook``. Limits and silences are kept in the directory ``state``, or in memory without one.
    """

    def __init__(
        self, options: ClusterOptions, clock: Clock, *, webhook: Webhook | None = None, state: Path | None = None
    ) -> None:
        contexts = load_contexts()
        is_given = options.name_server is not None or not contexts.contexts
        self._targets: Final[Mapping[str, ClusterOptions]] = (
            {GIVEN: options} if is_given else {name: ClusterOptions(context=name) for name in sorted(contexts.contexts)}
        )
        chosen = options.context or (None if is_given else contexts.use)
        self.first: Final = chosen or next(iter(self._targets))
        self.names: Final = tuple(self._targets)
        self._clock: Final = clock
        self._webhook: Final = webhook
        self._state: Final = state
        self._open: dict[str, Cluster] = {}
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()
        if self.first not in self._targets:
            raise ConfigError(f"there is no context {self.first!r}: the contexts are {', '.join(self.names)}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the first cluster for an ``async with`` block, and the others when they are wanted.

        With a webhook, all are opened, because nobody else looks at them.
        """
        async with self._stack:
            if self._webhook is not None:
                await self._stack.enter_async_context(_running(self._webhook.run()))
            for name in self.names if self._webhook is not None else (self.first,):
                await self.get(name)
            yield

    async def get(self, name: str) -> Cluster:
        """Give the cluster with a name; KeyError for an unknown name."""
        options = self._targets[name]
        async with self._opening:
            if name not in self._open:
                self._open[name] = await self._opened(name, options.target())
        return self._open[name]

    async def _opened(self, name: str, target: Target) -> Cluster:
        admin = await self._stack.enter_async_context(Admin.of(*target))
        alerts = Alerts(self._state / f"alerts-{name_of_file(name)}.json" if self._state is not None else None)
        cluster = Cluster(name, target, admin, self._clock, Sampler(admin, self._clock), alerts, self._webhook)
        await self._stack.enter_async_context(_running(cluster.sampler.run(), cluster.watch_health()))
        return cluster


@asynccontextmanager
async def _running(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
