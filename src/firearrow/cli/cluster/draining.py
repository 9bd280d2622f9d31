"""Takes a broker out of use, so that it can be stopped without a send that fails, and back.

First name servers take its write permission away (request 205). RocketMQ's clients ask for routes
each 30 s, so a while later nobody sends to it any more. Consumers go on reading. It is drained when
it has got nothing since the last look, and no group that is online has anything to read there.
Groups without consumers are not waited for: their messages are there when the broker is.

Whatever has a broker registered anew undoes that for some topics: so it is said again at each look.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Final, NamedTuple

from firearrow.cli.cluster.brokers import runtime_or_none
from firearrow.cli.cluster.masters import masters_in
from firearrow.cli.cluster.progress import ALL_SECONDS
from firearrow.cli.failures import NothingFound
from firearrow.cli.parameters import WrongValue, in_seconds, options, valued
from firearrow.client.admin import Admin
from firearrow.client.admin.cluster import Server
from firearrow.client.routing.queues import MASTER
from firearrow.errors import BrokerError, ConfigError, FirearrowError
from firearrow.message.names import is_system_group
from firearrow.wire.bodies import ClusterInfo

LOOK_SECONDS: Final = 1.0
ROUTE_SECONDS: Final = 35.0
"""How long clients may go by an old route: RocketMQ's ask for it each 30 s."""
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


@options
class DrainOptions:
    """How long is waited, and for what."""

    deadline: Annotated[
        float, valued("SECONDS", "wait no longer than this for what there is to read (default: 120)", _seconds)
    ] = DEADLINE_SECONDS
    route_seconds: Annotated[
        float,
        valued(
            "SECONDS",
            "how long clients may not notice that they are to send elsewhere (default: 35; RocketMQ's look each 30 s)",
            _seconds,
        ),
    ] = ROUTE_SECONDS


USUAL: Final = DrainOptions()


class Left(NamedTuple):
    """What keeps a broker from being drained: groups that are online with what they have to read
    there, and whether it still gets messages."""

    lags: dict[str, int]
    gets_messages: bool

    @property
    def nothing(self) -> bool:
        """Tell whether it is drained."""
        return not self.lags and not self.gets_messages

    def __str__(self) -> str:
        parts = [f"{group} has {lag} to read" for group, lag in sorted(self.lags.items())]
        return ", ".join([*parts, *(["it still gets messages"] if self.gets_messages else [])])


def check_others(info: ClusterInfo, master: Server) -> None:
    """Raise ConfigError where no other master could take what is sent."""
    others = [it for it in masters_in(info, master.cluster) if it.broker != master.broker]
    if not others:
        raise ConfigError(f"{master.broker} is the only master of {master.cluster}: without it nobody can send")


def one_master(servers: Sequence[Server]) -> Server:
    """Give the master among the servers of a broker; NothingFound if there is none."""
    for server in servers:
        if server.number == MASTER:
            return server
    raise NothingFound(f"{servers[0].broker} has no master: there is nothing to drain")


async def drain(admin: Admin, master: Server, how: DrainOptions, tell: Tell) -> Left:
    """Have nobody send to a broker, and wait until what is there is read, or as long as is asked;
    give what is left then."""
    time = asyncio.get_running_loop().time
    began, puts, told = time(), "", ""
    while True:
        for name_server in admin.name_servers.addresses:
            await admin.name_servers.wipe_write_perm(name_server, master.broker)
        before, puts = puts, await _puts(admin, master)
        left = Left(await _lags(admin, master), puts != before)
        waited = time() - began
        if waited >= how.route_seconds and (left.nothing or waited >= how.route_seconds + how.deadline):
            return left
        if str(left) != told and not left.nothing:
            told = str(left)
            tell(f"{master.broker}: {told}")
        await asyncio.sleep(min(LOOK_SECONDS, max(how.route_seconds - waited, 0.05)))


async def fill(admin: Admin, broker: str) -> None:
    """Have clients send to a broker again; a name server that fails is told when all were asked."""
    servers = admin.name_servers
    answers = await asyncio.gather(
        *(servers.add_write_perm(address, broker) for address in servers.addresses), return_exceptions=True
    )
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer


@asynccontextmanager
async def filled_if_it_fails(admin: Admin, broker: str) -> AsyncIterator[None]:
    """Have clients send to a broker again where a block does not come to its end."""
    try:
        yield
    except BaseException:
        await asyncio.shield(fill(admin, broker))
        raise


async def _puts(admin: Admin, master: Server) -> str:
    """How many messages a broker has got."""
    return (await admin.brokers.runtime(master.address)).get("msgPutTotalTodayNow", "")


async def _lags(admin: Admin, master: Server) -> dict[str, int]:
    """What groups that are online have to read on a broker."""
    progress = await admin.offsets.all_progress(master.address, ordered=False, seconds=ALL_SECONDS)
    lags: dict[str, int] = {}
    for groups in progress.consume_stats_list:
        for group, parts in groups.items():
            ends = (at for stats in parts for at in stats.offset_table.values())
            lag = sum(max(at.broker_offset - max(at.consumer_offset, 0), 0) for at in ends)
            if lag and not is_system_group(group):
                lags[group] = lags.get(group, 0) + lag
    return {group: lag for group, lag in lags.items() if await _is_online(admin, master, group)}


async def _is_online(admin: Admin, master: Server, group: str) -> bool:
    try:
        return bool((await admin.groups.consumers(master.address, group)).connection_set)
    except BrokerError:  # 206: it has no consumers
        return False


async def boot(admin: Admin, server: Server) -> str | None:
    """When a broker was started, as it says itself; None if it does not answer, or is not known to
    every name server."""
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
