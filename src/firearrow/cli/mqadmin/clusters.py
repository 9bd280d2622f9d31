"""The command that lists clusters and their brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import fixed, shown, text_order
from firearrow.client.admin.cluster import servers_in
from firearrow.clock import HOUR_MS
from firearrow.errors import FirearrowError
from firearrow.wire.bodies import ClusterInfo

_TOTALS: Final = (
    ("msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning"),
    ("msgGetTotalTodayMorning", "msgGetTotalYesterdayMorning"),
    ("msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
    ("msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
)  # of which the differences are shown


async def list_clusters(run: Invocation) -> None:
    """List clusters and brokers, again and again with an interval."""
    while True:
        info = await run.admin.cluster()
        only = run.get("c")
        clusters = [only] if only else text_order(info.cluster_addr_table)
        if run.has("m"):
            await _print_totals(run, clusters, info)
        else:
            await _print_rates(run, clusters, info)
        if not run.has("i"):
            return
        await run.pause(run.number("i"))


async def _print_totals(run: Invocation, clusters: list[str], info: ClusterInfo) -> None:
    run.line(
        f"{'#Cluster Name':<16}  {'#Broker Name':<32} {'#InTotalYest':>14} "
        f"{'#OutTotalYest':>14} {'#InTotalToday':>14} {'#OutTotalToday':>14}"
    )
    for cluster, name, _, address in servers_in(info, clusters):
        numbers = [0, 0, 0, 0]
        try:
            counted = await run.admin.brokers.runtime(address)
            numbers = [int(counted[now]) - int(counted[before]) for now, before in _TOTALS]
        except (OSError, FirearrowError, KeyError, ValueError):  # as upstream: it counts nothing
            pass
        run.line(f"{cluster:<16}  {name:<32} {' '.join(f'{number:>14}' for number in numbers)}")


async def _print_rates(run: Invocation, clusters: list[str], info: ClusterInfo) -> None:
    run.line(
        f"{'#Cluster Name':<22}  {'#Broker Name':<22}  {'#BID':<4}  {'#Addr':<22} "
        f"{'#Version':<16}  {'#InTPS(LOAD)':>16}  {'#OutTPS(LOAD)':>30}  "
        f"{'#Timer(Progress)':<22}  {'#PCWait(ms)':<11}  {'#Hour':<12}  {'#SPACE':<8}  "
        f"{'#ACTIVATED':<10}"
    )
    for cluster, name, number, address in servers_in(info, clusters):
        counted: dict[str, str] = {}
        try:
            counted = await run.admin.brokers.runtime(address)
        except (OSError, FirearrowError) as error:
            run.note(error)
        run.line(f"{cluster:<22}  {name:<22}  {number:<4}  {address:<22} " + _rates(counted, run.clock.now_ms()))


def _rates(counted: Mapping[str, str], now_ms: int) -> str:
    missing = "null" if counted else ""

    def said(name: str, otherwise: str = missing) -> str:
        return counted.get(name, otherwise)

    rate_in = fixed(_first(said("putTps")), 2)
    rate_out = fixed(_first(said("getTransferredTps")), 2)
    send, pull = (
        f"{said(f'{kind}ThreadPoolQueueSize')},{said(f'{kind}ThreadPoolQueueHeadWaitTimeMills')}ms"
        for kind in ("send", "pull")
    )
    unknown = "N" if counted else ""
    ack = f"{said('ackThreadPoolQueueSize', unknown)},{said('ackThreadPoolQueueHeadWaitTimeMills', unknown)}ms"
    earliest, space = counted.get("earliestMessageTimeStamp"), counted.get("commitLogDiskRatio")
    hours = (now_ms - int(earliest)) / HOUR_MS if earliest else 0.0
    return (
        f"{said('brokerVersionDesc'):<16}  {f'{rate_in:>9}({send})':>16}  "
        f"{f'{rate_out:>9}({pull}|{ack})':>30}  {_timer(counted):<22}  "
        f"{said('pageCacheLockTimeMills'):>11}  {fixed(hours, 2):<12}  "
        f"{fixed(float(space) if space else 0.0, 4):<8}  "
        f"{shown(counted.get('brokerActive', '').lower() == 'true'):>10}"
    )


def _first(text: str) -> float:
    """The first of several rates."""
    words = text.split()
    return float(words[0]) if words and words[0] != "null" else 0.0


def _timer(counted: Mapping[str, str]) -> str:
    """How far timed messages are: behind in reading and in the log, how many wait, rates."""
    behind, offset, waiting, rate_in, rate_out = (
        counted.get(f"timer{name}", "0")
        for name in ("ReadBehind", "OffsetBehind", "CongestNum", "EnqueueTps", "DequeueTps")
    )
    rates = f"{fixed(float(rate_in), 1)}, {fixed(float(rate_out), 1)}"
    return f"{behind}-{offset}({fixed(int(waiting) / 10_000, 1)}w, {rates})"
