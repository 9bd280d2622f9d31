"""`firearrow pop`: pops of a group, as far as brokers and members report them.

Brokers do not report which messages are invisible and until when. They report the pops that wait for messages, and how
far they are with giving messages back.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from firearrow.cli.cluster.masters import masters_in
from firearrow.cli.cluster.options import ANY, ClusterOptions, Group
from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import sentence
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table, as_moment
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker
from firearrow.client.diagnosis import groupfacts
from firearrow.clock import SystemClock
from firearrow.errors import FirearrowError, NotFound
from firearrow.message.names import REVIVE_GROUP

SHOW: Final = ("group", "topic", "broker", "popsWaiting", "notAcknowledged", "lastPopAt")
REVIVE: Final = ("broker", "topic", "lag", "queues", "state", "reason")
NOT_TOLD: Final = (
    "Brokers do not report which messages are invisible, nor until when; their metric "
    "rocketmq_consumer_inflight_messages counts them. Members by gRPC do not report them either."
)

app = CommandGroup()


@app.command("show")
async def show_pops(group: Group, /, *, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """Show the waiting pops of a group, and the messages that its members have not acknowledged."""
    async with cluster.admin() as admin:
        facts = await groupfacts.collect(admin, group, SystemClock().now_ms())
        places = [(topic, master) for topic in facts.topics for master in masters_in(await admin.cluster())]
        waiting = await concurrently(places, lambda place: _waiting(admin, group, *place))
    held: Counter[tuple[str, str]] = Counter()
    popped: dict[tuple[str, str], int] = {}
    for client in facts.clients:
        for queue, it in client.info.mq_pop_table.items() if client.info is not None else ():
            place = queue.topic, queue.broker_name
            held[place] += it.wait_ack_count
            popped[place] = max(popped.get(place, 0), it.last_pop_timestamp)
    rows: list[list[Cell]] = []
    for (topic, master), count in zip(places, waiting, strict=True):
        place = topic, master.broker
        not_acknowledged = held[place] if place in popped else None
        rows.append([group, *place, count, not_acknowledged, as_moment(popped.get(place, 0))])
    output.show(Table("Pops", SHOW, rows, NOT_TOLD))


async def _waiting(admin: Admin, group: str, topic: str, master: RegisteredBroker) -> int | None:
    """Count of waiting pops; None if the broker does not report it."""
    try:
        return await admin.groups.pops_waiting(master.address, group, topic)
    except (OSError, FirearrowError):
        return None


@app.command("revive")
async def show_revive(*, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """Show how far each broker is with giving back messages that were not acknowledged in time."""
    async with cluster.admin() as admin:
        masters = masters_in(await admin.cluster())
        parts = await concurrently(masters, lambda master: _revive(admin, master))
    output.show(Table("Messages to give back", REVIVE, [row for part in parts for row in part]))


async def _revive(admin: Admin, master: RegisteredBroker) -> list[list[Cell]]:
    try:
        stats = await admin.offsets.progress(master.address, REVIVE_GROUP)
    except NotFound:
        return [[master.broker, None, 0, 0, "ok", "nothing was popped yet"]]
    except (OSError, FirearrowError) as error:
        return [[master.broker, None, None, None, "failed", sentence(error)]]
    lags: Counter[str] = Counter()
    queues: Counter[str] = Counter()
    for queue, at in stats.offset_table.items():
        lags[queue.topic] += at.lag
        queues[queue.topic] += 1
    if not queues:
        return [[master.broker, None, 0, 0, "ok", "nothing was popped yet"]]
    return [[master.broker, topic, lags[topic], queues[topic], "ok", ""] for topic in sorted(queues)]
