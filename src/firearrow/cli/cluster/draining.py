"""Draining of a broker: taking it out of use, so that a stop fails no send, and giving it back.

First the name servers remove its write permission (request 205). RocketMQ's clients refresh routes every 30 s, so sends
stop a while later. Consumers go on reading. A broker is drained when no message has arrived since the last check, and
no online group has anything to read there. Groups without consumers do not count: their messages stay on the broker.

A new registration of the broker restores the permission of some topics. So each check removes the permission again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Final, NamedTuple

from firearrow.cli.cluster.brokers import runtime_or_none
from firearrow.cli.cluster.masters import masters_in
from firearrow.cli.cluster.progress import ALL_SECONDS
from firearrow.cli.failures import NothingFound
from firearrow.cli.parameters import Options, WrongValue, in_seconds, valued
from firearrow.client.admin import Admin
from firearrow.client.admin.cluster import RegisteredBroker
from firearrow.errors import BrokerError, ConfigError, FirearrowError
from firearrow.message.names import SELF_TEST_TOPIC, is_system_group
from firearrow.wire.bodies import MASTER_ID, PERM_WRITE, ClusterInfo

LOOK_SECONDS: Final = 1.0
ROUTE_SECONDS: Final = 35.0
"""Longest time that clients use an old route: RocketMQ's refresh it every 30 s."""
DEADLINE_SECONDS: Final = 120.0

Tell = Callable[[str], None]


def _seconds(text: str) -> float:
    try:
        value = float(in_seconds(text))
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise WrongValue(f"{text!r} is not a number of 0 or more")
    return value


class DrainOptions(Options):
    """Limits of a drain."""

    deadline: Annotated[float, valued("SECONDS", "longest wait for unread messages (default: 120)", _seconds)] = (
        DEADLINE_SECONDS
    )
    route_seconds: Annotated[
        float,
        valued(
            "SECONDS",
            "longest time that clients use an old route (default: 35; RocketMQ's clients refresh it every 30 s)",
            _seconds,
        ),
    ] = ROUTE_SECONDS


USUAL: Final = DrainOptions()


class Left(NamedTuple):
    """Reasons why a broker is not drained yet: the lag of online groups, and arriving messages."""

    lags: dict[str, int]
    gets_messages: bool

    @property
    def nothing(self) -> bool:
        """Tell whether the broker is drained."""
        return not self.lags and not self.gets_messages

    def __str__(self) -> str:
        parts = [f"{group} has {lag} to read" for group, lag in sorted(self.lags.items())]
        return ", ".join([*parts, *(["it still gets messages"] if self.gets_messages else [])])


def check_others(info: ClusterInfo, master: RegisteredBroker) -> None:
    """Raise ConfigError if no other master could take the sends."""
    others = [it for it in masters_in(info, master.cluster) if it.broker != master.broker]
    if not others:
        raise ConfigError(f"{master.broker} is the only master of {master.cluster}: without it nobody can send")


def one_master(servers: Sequence[RegisteredBroker]) -> RegisteredBroker:
    """Give the master among the servers of a broker; NothingFound if there is none."""
    for server in servers:
        if server.number == MASTER_ID:
            return server
    raise NothingFound(f"{servers[0].broker} has no master: there is nothing to drain")


async def drain(admin: Admin, master: RegisteredBroker, how: DrainOptions, tell: Tell) -> Left:
    """Stop sends to a broker, and wait until its messages are read or the time limit ends; give the rest."""
    time = asyncio.get_running_loop().time
    began, puts, told = time(), "", ""
    while True:
        await empty(admin, master.broker)
        before, puts = puts, await _puts(admin, master)
        left = Left(await _lags(admin, master), puts != before)
        waited = time() - began
        if waited >= how.route_seconds and (left.nothing or waited >= how.route_seconds + how.deadline):
            return left
        if str(left) != told and not left.nothing:
            told = str(left)
            tell(f"{master.broker}: {told}")
        await asyncio.sleep(min(LOOK_SECONDS, max(how.route_seconds - waited, 0.05)))


async def is_drained(admin: Admin, broker: str) -> bool:
    """Tell whether a name server has taken the write permission of a broker, whose every topic loses it."""
    for name_server in admin.name_servers.addresses:
        queues = await admin.topics.queues_at(name_server, SELF_TEST_TOPIC)
        if any(it.broker_name == broker and not it.perm & PERM_WRITE for it in queues):
            return True
    return False


async def empty(admin: Admin, broker: str) -> None:
    """Stop sends to a broker, without a wait."""
    for name_server in admin.name_servers.addresses:
        await admin.name_servers.wipe_write_perm(name_server, broker)


async def fill(admin: Admin, broker: str) -> None:
    """Let clients send to a broker again. All name servers are asked before an error is raised."""
    servers = admin.name_servers
    answers = await asyncio.gather(
        *(servers.add_write_perm(address, broker) for address in servers.addresses), return_exceptions=True
    )
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer


@asynccontextmanager
async def filled_if_it_fails(admin: Admin, broker: str) -> AsyncIterator[None]:
    """Let clients send to a broker again if a block fails."""
    try:
        yield
    except BaseException:
        await asyncio.shield(fill(admin, broker))
        raise


async def _puts(admin: Admin, master: RegisteredBroker) -> str:
    """Number of messages that a broker has received."""
    return (await admin.brokers.runtime(master.address)).get("msgPutTotalTodayNow", "")


async def _lags(admin: Admin, master: RegisteredBroker) -> dict[str, int]:
    """Lag of online groups on a broker, by group."""
    lags: Counter[str] = Counter()
    for group, _, at in await admin.offsets.positions(master.address, ALL_SECONDS):
        if not is_system_group(group):
            lags[group] += at.lag
    return {group: lag for group, lag in lags.items() if lag and await _is_online(admin, master, group)}


async def _is_online(admin: Admin, master: RegisteredBroker, group: str) -> bool:
    try:
        return bool((await admin.groups.consumers(master.address, group)).connection_set)
    except BrokerError:  # 206: no consumers
        return False


async def boot(admin: Admin, server: RegisteredBroker) -> str | None:
    """Start time of a broker, by its own clock; None if it does not answer, or a name server does not know it."""
    facts = await runtime_or_none(admin, server)
    if facts is None:
        return None
    for name_server in admin.name_servers.addresses:
        try:
            info = await admin.name_servers.cluster_at(name_server)
        except (OSError, FirearrowError):
            return None
        known = info.broker_addr_table.get(server.broker)
        if known is None or known.broker_addrs.get(server.number) != server.address:
            return None
    return facts.get("bootTimestamp")
