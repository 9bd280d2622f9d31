"""Clusters of a console: the clusters of the contexts, or one that the command line names.

A cluster is opened when a page of it is wanted first, and stays open: its sampler keeps the history of an hour.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from firearrow.cli.cluster.contexts import load_contexts
from firearrow.cli.cluster.options import ClusterOptions, Target
from firearrow.client.admin import Admin
from firearrow.client.diagnosis import checks, clusterfacts
from firearrow.client.diagnosis.findings import Finding, Level, by_gravity, worst
from firearrow.clock import Clock, processor_seconds
from firearrow.console.alerts import Alerts
from firearrow.console.operations import OpenCluster
from firearrow.console.prometheus import Prometheus
from firearrow.console.sampler import Sampler
from firearrow.console.tails import Tails
from firearrow.console.webhook import Webhook
from firearrow.errors import ConfigError, FirearrowError
from firearrow.files import name_of_file
from firearrow.net.access import Access
from firearrow.net.client import Client
from firearrow.wire.signature import Credentials

GIVEN: Final = "cluster"
"""Name of a cluster that is no context."""
UNUSED_SECONDS: Final = 3600.0
"""Time without a page after which the cluster of a user is closed."""
HEALTH_SECONDS: Final = 60.0
HEALTH_COST_MAX: Final = 0.05
"""Share of a processor that checks may take; those of large clusters run less often, not those of slow ones."""


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
    partial: Admin
    """Administrator of the brokers that answer."""
    clock: Clock
    sampler: Sampler
    alerts: Alerts
    lake: str | None = None
    """Directory or URI of typed tables."""
    announces: bool = False
    """Its findings are those of the cluster's alerts: the view of a user may lack some."""
    webhook: Webhook | None = None
    prometheus: Prometheus | None = None
    health: Health = field(default_factory=Health)
    tails: Tails = field(default_factory=Tails)
    used: float = 0.0
    """Monotonic time of the last page, in seconds."""

    def touch(self) -> None:
        """Note that somebody looks at it."""
        self.used = self.clock.monotonic()

    @property
    def without_silent(self) -> Cluster:
        """Cluster without the brokers that do not answer."""
        return replace(self, admin=self.partial)

    @property
    def options(self) -> OpenCluster:
        """Cluster as commands take it."""
        return OpenCluster(opened=self.admin, where=self.target, lake=self.lake)

    async def check_health(self) -> None:
        """Examine the cluster now, and announce changes in the findings."""
        now_ms = self.clock.now_ms()
        await self._examine(now_ms)
        if self.announces:
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
            began, computed = self.clock.monotonic(), processor_seconds()
            await self.check_health()
            took, cost = self.clock.monotonic() - began, processor_seconds() - computed
            await asyncio.sleep(max(HEALTH_SECONDS - took, cost / HEALTH_COST_MAX))


class Clusters:
    """Clusters by their names, each once for every user. `running` opens and closes them.

    ``needs_users`` makes all of them need a sign-in, not only the contexts that have a user. Without ``watches``, no
    samples are taken; for agents. ``lake`` has typed tables. Alerts go to ``webhook``; limits and silences are kept in
    the directory ``state``, or in memory without one. ``prometheus`` has a longer history.
    """

    def __init__(
        self,
        options: ClusterOptions,
        clock: Clock,
        *,
        needs_users: bool = False,
        watches: bool = True,
        lake: str | None = None,
        webhook: Webhook | None = None,
        state: Path | None = None,
        prometheus: Prometheus | None = None,
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
        self._webhook: Final = webhook
        self._state: Final = state
        self._prometheus: Final = prometheus
        self._alerts: dict[str, Alerts] = {}
        self._open: dict[tuple[str, Credentials | None], tuple[Cluster, AsyncExitStack]] = {}
        self._opening = asyncio.Lock()
        if self.first not in self._targets:
            raise ConfigError(f"there is no context {self.first!r}: the contexts are {', '.join(self.names)}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the first cluster for an ``async with`` block unless it needs a sign-in; others when a page needs them.

        With a webhook, all are opened with the users of their contexts, because nobody else looks at them.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(_running(self._close_unused()))
            stack.push_async_callback(self._close)
            if self._webhook is not None:
                await stack.enter_async_context(_running(self._webhook.run()))
                for name in self.names:
                    await self.get(name, self.target(name).credentials)
            elif not self.needs_user(self.first):
                await self.get(self.first)
            yield

    async def _close(self) -> None:
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
        target = self.target(name).changed(credentials=user)
        async with self._opening:
            if (name, user) not in self._open:
                self._open[name, user] = await self._opened(name, target)
        cluster, _ = self._open[name, user]
        cluster.touch()
        return cluster

    async def _opened(self, name: str, target: Target) -> tuple[Cluster, AsyncExitStack]:
        stack = AsyncExitStack()
        client = Client(access=Access(target.credentials, target.tls))
        stack.push_async_callback(client.close)
        sampler = Sampler(Admin(client, target.name_servers), self._clock)
        if name not in self._alerts:
            file = f"alerts-{name_of_file(name)}.json"
            self._alerts[name] = Alerts(self._state / file if self._state is not None else None)
        cluster = Cluster(
            name,
            target,
            Admin(client, target.name_servers, sampler.silent),
            Admin(client, target.name_servers, sampler.silent, omits_silent=True),
            self._clock,
            sampler,
            self._alerts[name],
            lake=self._lake,
            announces=self._is_watcher(name, target.credentials),
            webhook=self._webhook,
            prometheus=self._prometheus,
        )
        if self._watches:
            await stack.enter_async_context(_running(cluster.sampler.run(), cluster.watch_health()))
            stack.push_async_callback(cluster.tails.close)
        return cluster, stack

    def _is_watcher(self, name: str, user: Credentials | None) -> bool:
        """Tell whether this user's view announces alerts. With a webhook, only the view of the context's user does."""
        return user == (self.target(name).credentials if self._webhook is not None else None)

    async def _close_unused(self) -> None:
        """Close views that users have left, since each view takes its own samples."""
        while True:
            await asyncio.sleep(UNUSED_SECONDS / 10)
            then = self._clock.monotonic() - UNUSED_SECONDS
            unused = [key for key, (cluster, _) in self._open.items() if not cluster.announces and cluster.used < then]
            for key in unused:
                _, stack = self._open.pop(key)
                await stack.aclose()


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
