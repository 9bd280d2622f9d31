"""Clusters of a console: those of the contexts, or one that the command line names.

A cluster is opened when a page of it is wanted first, and stays open: its sampler keeps the history of an hour.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from firearrow.cli.cluster.contexts import load_contexts
from firearrow.cli.cluster.options import ClusterOptions, Target
from firearrow.client.admin import Admin
from firearrow.client.diagnosis import checks, clusterfacts
from firearrow.client.diagnosis.findings import Finding, Level, by_gravity, worst
from firearrow.clock import Clock
from firearrow.console.operations import OpenCluster
from firearrow.console.sampler import Sampler
from firearrow.console.tails import Tails
from firearrow.errors import ConfigError, FirearrowError
from firearrow.wire.signature import Credentials

GIVEN: Final = "cluster"
"""Name of a cluster that is no context."""
UNUSED_SECONDS: Final = 3600.0
"""Time without a page after which the cluster of a user is closed."""
HEALTH_SECONDS: Final = 60.0
HEALTH_COST_MAX: Final = 0.05
"""Share of the time that checks may take; those of large clusters run less often."""

LIMITS: Final = checks.Thresholds()


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


@dataclass(slots=True, eq=False)
class Cluster:
    """An open cluster."""

    name: str
    target: Target
    admin: Admin
    clock: Clock
    sampler: Sampler
    user: str | None = None
    lake: str | None = None
    """Directory or URI of typed tables."""
    limits: checks.Thresholds = LIMITS
    health: Health = field(default_factory=Health)
    tails: Tails = field(default_factory=Tails)
    used: float = 0.0
    """Monotonic time of the last page, in seconds."""

    def touch(self) -> None:
        """Note that somebody looks at it."""
        self.used = self.clock.monotonic()

    @property
    def options(self) -> OpenCluster:
        """Cluster as commands take it."""
        return OpenCluster(opened=self.admin, where=self.target, lake=self.lake)

    async def check_health(self) -> None:
        """Examine the cluster now."""
        now_ms = self.clock.now_ms()
        try:
            facts = await clusterfacts.collect(self.admin, now_ms)
        except (OSError, FirearrowError) as error:
            unknown = Finding("asked", Level.UNKNOWN, self.name, str(error))
            self.health = Health(now_ms, [unknown])
            return
        self.health = Health(now_ms, by_gravity(checks.findings(facts, self.limits)), facts)

    async def watch_health(self) -> None:
        """Examine the cluster again and again until cancelled."""
        while True:
            began = self.clock.monotonic()
            await self.check_health()
            took = self.clock.monotonic() - began
            await asyncio.sleep(max(HEALTH_SECONDS - took, took / HEALTH_COST_MAX))


class Clusters:
    """Clusters by their names, each once for every user. `running` opens and closes them.

    ``needs_users`` makes all of them need a sign-in, not only the contexts that have a user. Without ``watches``, no
    samples are taken; for agents. ``lake`` has typed tables.
    """

    def __init__(
        self,
        options: ClusterOptions,
        clock: Clock,
        *,
        needs_users: bool = False,
        watches: bool = True,
        lake: str | None = None,
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
        self._needs_users: Final = needs_users
        self._watches: Final = watches
        self._lake: Final = lake
        self._open: dict[tuple[str, Credentials | None], tuple[Cluster, AsyncExitStack]] = {}
        self._opening = asyncio.Lock()
        if self.first not in self._targets:
            raise ConfigError(f"there is no context {self.first!r}: the contexts are {', '.join(self.names)}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the first cluster for an ``async with`` block, if it needs no sign-in; others when a page needs them."""
        closing = asyncio.create_task(self._close_unused())
        try:
            if not self.needs_user(self.first):
                await self.get(self.first)
            yield
        finally:
            closing.cancel()
            for _, stack in self._open.values():
                await stack.aclose()

    def target(self, name: str) -> Target:
        """Give a cluster's name servers, user and encryption; KeyError for an unknown name."""
        return self._targets[name].target()

    def needs_user(self, name: str) -> bool:
        """Tell whether a cluster needs a sign-in; KeyError for an unknown name."""
        return self._needs_users or self.target(name).credentials is not None

    async def get(self, name: str, user: Credentials | None = None) -> Cluster:
        """Give a cluster as a user sees it; KeyError for an unknown name."""
        target = self.target(name)._replace(credentials=user)
        async with self._opening:
            if (name, user) not in self._open:
                self._open[name, user] = await self._opened(name, target)
        cluster, _ = self._open[name, user]
        cluster.touch()
        return cluster

    async def _opened(self, name: str, target: Target) -> tuple[Cluster, AsyncExitStack]:
        stack = AsyncExitStack()
        admin = await stack.enter_async_context(Admin.of(*target))
        user = target.credentials.access_key if target.credentials else None
        cluster = Cluster(name, target, admin, self._clock, Sampler(admin, self._clock), user, self._lake)
        if self._watches:
            await stack.enter_async_context(_in_background(cluster))
        return cluster, stack

    async def _close_unused(self) -> None:
        """Close what users have left: each has samples of its own."""
        while True:
            await asyncio.sleep(UNUSED_SECONDS / 10)
            then = self._clock.monotonic() - UNUSED_SECONDS
            for key in [key for key, (cluster, _) in self._open.items() if key[1] and cluster.used < then]:
                _, stack = self._open.pop(key)
                await stack.aclose()


@asynccontextmanager
async def _in_background(cluster: Cluster) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(cluster.sampler.run()), asyncio.create_task(cluster.watch_health())]
    try:
        yield
    finally:
        tasks += cluster.tails.tasks()
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
