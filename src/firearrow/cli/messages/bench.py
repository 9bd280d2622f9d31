"""`firearrow bench`: the same load on any cluster, to compare clusters."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Final

from firearrow.cli.cluster.options import ANY, ClusterOptions
from firearrow.cli.commands import CommandGroup
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table, visible
from firearrow.cli.parameters import Options, positive, valued
from firearrow.cli.parameters import count as whole
from firearrow.client.admin import Admin
from firearrow.client.loads import loads
from firearrow.client.loads.pacing import LoadPlan, LoadResult
from firearrow.client.session.session import Session

TOPIC: Final = "firearrow-bench"
SHARES: Final = {"P50": 0.5, "P90": 0.9, "P99": 0.99, "P999": 0.999}
COLUMNS: Final = (
    "load",
    "messages",
    "failed",
    "tookSeconds",
    "messagesPerSecond",
    "bytesPerSecond",
    *(f"latency{name}Ms" for name in SHARES),
    "latencyMaxMs",
)
NOTHING_DONE: Final = 1

app: Final = CommandGroup()


class LoadOptions(Options):
    """Size of the load."""

    topic: Annotated[str, valued("TOPIC", f"topic, created if it is missing (default: {TOPIC})", names_of="topics")] = (
        TOPIC
    )
    seconds: Annotated[float, valued("N", "end after this time in seconds (default: 10)", positive)] = 10.0
    count: Annotated[int | None, valued("N", "end after this number of messages", whole)] = None
    in_flight: Annotated[int, valued("N", "largest number in flight (default: 64)", whole)] = 64

    def plan(self, per_second: float | None = None) -> LoadPlan:
        """Give the plan; ConfigError for impossible values."""
        return LoadPlan(self.seconds, self.count, self.in_flight, per_second)


USUAL: Final = LoadOptions()

Rate = Annotated[
    float | None,
    valued(
        "N",
        "messages per second, each measured from its due time (default: as fast as possible)",
        positive,
        name="--rate",
    ),
]
Size = Annotated[int, valued("BYTES", "size of a body (default: 128)", whole, name="--size")]
Group = Annotated[
    str | None,
    valued("GROUP", "consumer group (default: a new group, deleted at the end)", name="--group", names_of="groups"),
]


@asynccontextmanager
async def _opened(cluster: ClusterOptions, topic: str) -> AsyncIterator[tuple[Admin, Session]]:
    target = cluster.target()
    async with (
        cluster.admin() as admin,
        Session(target.name_servers, credentials=target.credentials, tls=target.tls or False) as session,
    ):
        await loads.ensure_topic(admin, topic)
        yield admin, session


@asynccontextmanager
async def _consuming(
    cluster: ClusterOptions, topic: str, consumer_group: str | None
) -> AsyncIterator[tuple[Session, str]]:
    """Give a session, and the group that consumes in it."""
    async with _opened(cluster, topic) as (admin, session), loads.own_group(admin, topic, consumer_group) as name:
        yield session, name


@app.command("produce")
async def produce(
    *,
    load: LoadOptions = USUAL,
    rate: Rate = None,
    size: Size = 128,
    batch: Annotated[int, valued("N", "messages per send (default: 1)", whole)] = 1,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Send messages; the latency ends with the broker's answer."""
    async with _opened(cluster, load.topic) as (_, session):
        measured = await loads.produce(session, load.topic, load.plan(rate), size, batch)
    return _show("produce", measured, output)


@app.command("consume")
async def consume(
    *, load: LoadOptions = USUAL, consumer_group: Group = None, cluster: ClusterOptions = ANY, output: Output = PLAIN
) -> int:
    """Consume a topic from its first message; the latency is the age of each message."""
    async with _consuming(cluster, load.topic, consumer_group) as (session, name):
        measured = await loads.consume(session, load.topic, name, load.plan())
    return _show("consume", measured, output)


@app.command("pop")
async def pop(
    *, load: LoadOptions = USUAL, consumer_group: Group = None, cluster: ClusterOptions = ANY, output: Output = PLAIN
) -> int:
    """Pop and acknowledge; the latency is from a request until all its messages are acknowledged."""
    async with _consuming(cluster, load.topic, consumer_group) as (session, name):
        measured = await loads.pop(session, load.topic, name, load.plan())
    return _show("pop", measured, output)


@app.command("round-trip")
async def round_trip(
    *,
    load: LoadOptions = USUAL,
    rate: Rate = None,
    size: Size = 128,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Send messages and consume them; the latency is from the send until the consumer has the message."""
    async with _consuming(cluster, load.topic, None) as (session, name):
        measured = await loads.round_trip(session, load.topic, name, load.plan(rate), size)
    return _show("round-trip", measured, output)


@app.command("transaction")
async def transaction(
    *,
    load: LoadOptions = USUAL,
    rate: Rate = None,
    size: Size = 128,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Send transactions and commit them; the latency ends with the commit request."""
    async with _opened(cluster, load.topic) as (_, session):
        measured = await loads.transaction(session, load.topic, load.plan(rate), size)
    return _show("transaction", measured, output)


def _show(load: str, measured: LoadResult, output: Output) -> int:
    output.show(table_of(load, measured))
    for reason, count in measured.reasons.items():
        print(f"firearrow: {count} times: {visible(reason)}", file=sys.stderr)
    return 0 if measured.messages else NOTHING_DONE


def table_of(load: str, measured: LoadResult) -> Table:
    """Give the measured values as one row."""
    seconds = measured.seconds or 1e-9
    row: list[Cell] = [
        load,
        measured.messages,
        measured.failed,
        measured.seconds,
        measured.messages / seconds,
        measured.bytes / seconds,
        *(measured.took.at(share) / 1000 for share in SHARES.values()),
        measured.took.max / 1000,
    ]
    return Table("", COLUMNS, [row])
