"""The command that shows rates and counts of all topics and groups."""

from __future__ import annotations

from typing import NamedTuple

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import fixed, front, text_order
from firearrow.client.diagnosis.clusterfacts import behind
from firearrow.client.routing.queues import MASTER
from firearrow.errors import FirearrowError
from firearrow.message.names import is_dlq, is_retry
from firearrow.wire.bodies import Route
from firearrow.wire.client_bodies import BrokerStatsData

PUT = "TOPIC_PUT_NUMS"
GET = "GROUP_GET_NUMS"


class Counted(NamedTuple):
    """A rate of the last minute and a sum of the last day."""

    rate: float
    day: int


def day_sum(counter: BrokerStatsData) -> int:
    """The sum of the last day; of the last hour or minute if there is none yet."""
    return counter.stats_day.sum or counter.stats_hour.sum or counter.stats_minute.sum


async def of_all(run: Invocation) -> None:
    """Show all topics but those of retries and dead letters, or one."""
    run.line(
        f"{'#Topic':<64}  {'#Consumer Group':<64} {'#Accumulation':>12} {'#InTPS':>11} "
        f"{'#OutTPS':>11} {'#InMsg24Hour':>14} {'#OutMsg24Hour':>14}"
    )
    only = run.get("t")
    for topic in text_order(await run.admin.topics.names()):
        if is_retry(topic) or is_dlq(topic) or (only and topic != only):
            continue
        try:
            await _print_topic(run, topic)
        except (OSError, FirearrowError) as error:
            run.note(error)


async def _print_topic(run: Invocation, topic: str) -> None:
    route = await run.admin.topics.route(topic)
    groups = await run.admin.topic_groups(topic)
    put = await _counted(run, route, PUT, topic)
    only_active = run.has("a")
    for group in text_order(groups):
        got = await _counted(run, route, GET, f"{topic}@{group}")
        if not only_active or put.day or got.day:
            waiting = await _waiting(run, group, topic)
            run.line(
                f"{front(topic, 64):<64}  {front(group, 64):<64} {waiting:>12} "
                f"{fixed(put.rate, 2):>11} {fixed(got.rate, 2):>11} {put.day:>14} {got.day:>14}"
            )
    if not groups and (not only_active or put.day):
        run.line(
            f"{front(topic, 64):<64}  {'':<64} {0:>12} {fixed(put.rate, 2):>11} {'':>11} "
            f"{put.day:>14} {'NO_CONSUMER':>14}"
        )


async def _counted(run: Invocation, route: Route, name: str, key: str) -> Counted:
    rate, day = 0.0, 0
    for broker in route.broker_datas:
        master = broker.broker_addrs.get(MASTER)
        if master is None:
            continue
        try:
            counter = await run.admin.brokers.counter(master, name, key)
        except (OSError, FirearrowError):  # it has not counted yet
            continue
        rate += counter.stats_minute.tps
        day += day_sum(counter)
    return Counted(rate, day)


async def _waiting(run: Invocation, group: str, topic: str) -> int:
    try:
        return max(0, behind(await run.admin.progress(group, topic)))
    except (OSError, FirearrowError):  # as upstream: nothing is known to wait
        return 0
