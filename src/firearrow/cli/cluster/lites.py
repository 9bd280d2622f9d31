"""`firearrow lite`: lite topics with their parents, quotas, subscribers and lags."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Final, NamedTuple, TypeVar

from firearrow.cli.cluster.masters import masters_in
from firearrow.cli.cluster.options import ANY, ClusterOptions, Group, Topic
from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import sentence
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table, as_moment
from firearrow.cli.parameters import Parameter, count, valued
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker
from firearrow.client.diagnosis.findings import counted
from firearrow.errors import FirearrowError
from firearrow.message.names import lite_parts
from firearrow.wire.admin_bodies import LiteBrokerInfo, LiteGroupInfo, LiteLag, LiteParentInfo

LIST: Final = ("topic", "broker", "liteTopics", "expiryMinutes", "groups")
QUOTAS: Final = (
    "broker", "storeType", "liteTopics", "limit", "share", "subscriptions", "clients", "state", "reason",
)  # fmt: skip
LAG: Final = ("group", "topic", "liteTopic", "broker", "lag", "storedAt")
SHOW: Final = (
    "topic",
    "liteTopic",
    "broker",
    "minOffset",
    "maxOffset",
    "messages",
    "lastStoredAt",
    "group",
    "clientId",
)
CLIENT: Final = ("topic", "group", "clientId", "broker", "liteTopic", "lastAccessAt", "lastConsumeAt")
TOP: Final = 100

T = TypeVar("T")

LiteTopic = Annotated[str, valued("LITE-TOPIC", "name of the lite topic")]

app: Final = CommandGroup()


class _Answer(NamedTuple):
    """Answer of a broker, or the reason why there is none."""

    broker: str
    address: str
    info: LiteBrokerInfo | None
    reason: str = ""


async def _brokers(admin: Admin) -> list[_Answer]:
    async def ask(master: RegisteredBroker) -> _Answer:
        try:
            return _Answer(master.broker, master.address, await admin.lite.broker(master.address))
        except (OSError, FirearrowError) as error:
            return _Answer(master.broker, master.address, None, sentence(error))

    return await concurrently(masters_in(await admin.cluster()), ask)


async def _everywhere(admin: Admin, ask: Callable[[str], Awaitable[T]]) -> list[tuple[str, T]]:
    """Ask all masters; leave out those that refuse, unless all do."""
    refused: list[Exception] = []

    async def one(master: RegisteredBroker) -> list[tuple[str, T]]:
        try:
            return [(master.broker, await ask(master.address))]
        except (OSError, FirearrowError) as error:
            refused.append(error)
            return []

    found = [it for part in await concurrently(masters_in(await admin.cluster()), one) for it in part]
    if not found:
        raise refused[0]
    return found


@app.command("list")
async def list_parents(*, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """List topics with lite topics, their counts, and the groups that consume them."""
    async with cluster.admin() as admin:
        places = [
            (it, topic) for it in await _brokers(admin) for topic in (it.info.topic_meta if it.info is not None else ())
        ]

        async def ask(place: tuple[_Answer, str]) -> LiteParentInfo | None:
            try:
                return await admin.lite.parent(place[0].address, place[1])
            except (OSError, FirearrowError):  # the row has no count then
                return None

        found = await concurrently(places, ask)
    rows: list[list[Cell]] = []
    for (it, topic), info in zip(places, found, strict=True):
        assert it.info is not None, "a broker without an answer has no topic"
        groups = ", ".join(sorted(it.info.group_meta.get(topic, ())))
        counted = None if info is None else info.lite_topic_count
        rows.append([topic, it.broker, counted, it.info.topic_meta[topic], groups])
    output.show(Table("Lite topics", LIST, sorted(rows, key=lambda row: (str(row[0]), str(row[1])))))


@app.command("quotas")
async def list_quotas(*, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """Show the count of lite topics on each broker, and its limit."""
    async with cluster.admin() as admin:
        answers = await _brokers(admin)
    output.show(Table("Quotas", QUOTAS, [_quota(it) for it in answers]))


def _quota(it: _Answer) -> list[Cell]:
    if it.info is None:
        return [it.broker, *[None] * 6, "failed", it.reason]
    limit, now = it.info.max_lmq_num, it.info.current_lmq_num
    share = now / limit if limit > 0 else None
    counts: list[Cell] = [now, limit, share, it.info.lite_subscription_count, it.info.event_map_size]
    return [it.broker, it.info.store_type, *counts, "warning" if share is not None and share > 0.9 else "ok", ""]


@app.command("lag")
async def show_lag(
    group: Group,
    /,
    *,
    top: Annotated[int, valued("N", f"lite topics with the largest lags (default: {TOP})", count)] = TOP,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Show the lag of a group in the lite topics that it has begun, the largest first."""
    async with cluster.admin() as admin:
        found = await _everywhere(admin, lambda it: admin.lite.group(it, group, top=top))
    rows = [_lag(group, broker, info, lag) for broker, info in found for lag in info.lag_count_top_k or ()]
    rows.sort(key=lambda row: -int(str(row[4])))
    total = sum(max(0, info.total_lag_count) for _, info in found)
    table = Table("Lag", LAG, rows, f"The whole lag is {counted(total, 'message')}.").at_most(top)
    shown = sum(int(str(row[4])) for row in table.rows)
    output.show(table.changed(more=table.more or shown < total))


def _lag(group: str, broker: str, info: LiteGroupInfo, lag: LiteLag) -> list[Cell]:
    stored = as_moment(lag.earliest_unconsumed_timestamp)
    return [group, info.parent_topic, lag.lite_topic, broker, lag.lag_count, stored]


@app.command("show")
async def show_lite_topic(
    topic: Topic, lite_topic: LiteTopic, /, *, cluster: ClusterOptions = ANY, output: Output = PLAIN
) -> None:
    """Show the messages and the subscribers of a lite topic."""
    async with cluster.admin() as admin:
        found = await _everywhere(admin, lambda it: admin.lite.topic(it, topic, lite_topic))
    rows: list[list[Cell]] = []
    for broker, info in found:
        end = info.topic_offset
        ends: list[Cell] = [end.min_offset, end.max_offset, max(0, end.max_offset - end.min_offset)]
        place = [topic, lite_topic, broker, *ends, as_moment(end.last_update_timestamp)]
        clients: list[tuple[str | None, str | None]] = [(it.group, it.client_id) for it in info.subscriber]
        rows += [[*place, *client] for client in clients or [(None, None)]]
    output.show(Table("Lite topic", SHOW, rows))


@app.command("client")
async def show_client(
    topic: Topic,
    group: Group,
    client: Annotated[str, Parameter("the client's id")],
    /,
    *,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """List the lite topics of a client, and its last signs of life."""
    async with cluster.admin() as admin:
        found = await _everywhere(admin, lambda it: admin.lite.client(it, topic, group, client))
    rows: list[list[Cell]] = []
    for broker, info in found:
        times: list[Cell] = [as_moment(info.last_access_time), as_moment(info.last_consume_time)]
        lites: list[str | None] = [*sorted(map(_lite_name, info.lite_topic_set or ()))]
        rows += [[topic, group, client, broker, lite, *times] for lite in lites or [None]]
    output.show(Table("Client", CLIENT, rows))


def _lite_name(queue: str) -> str:
    parts = lite_parts(queue)
    return queue if parts is None else parts[1]
