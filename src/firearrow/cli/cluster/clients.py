"""`firearrow client`: look at a consumer that is online, by its report about itself, and make it consume a message."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NamedTuple

from firearrow.cli.cluster.masters import PREVIEW, Apply, masters_in
from firearrow.cli.cluster.options import ANY, ClusterOptions, Group
from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import FAILED, NothingFound, sentence
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table, as_moment
from firearrow.cli.parameters import Parameter, valued
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker
from firearrow.errors import BrokerError, FirearrowError
from firearrow.wire.client_bodies import ClientConnection, ConsumerRunningInfo, MessageQueue, SubscriptionData
from firearrow.wire.codes import ResponseCode, version_name

SHOW: Final = ("group", "clientId", "name", "value")
TOPICS: Final = (
    "group", "topic", "expression", "kind", "consumedPerSecond", "failedPerSecond", "failedLastHour",
    "latencyConsumeMs", "pulledPerSecond", "latencyPullMs",
)  # fmt: skip
QUEUES: Final = (
    "group", "topic", "broker", "queueId", "commitOffset", "cached", "cachedFirstOffset", "cachedLastOffset",
    "bytesCached", "waitForAck", "isLocked", "isDropped", "pulledAt", "consumedAt",
)  # fmt: skip
CONSUME: Final = ("group", "clientId", "topic", "messageId", "state", "result", "tookMs", "remark")
NAME_SERVERS: Final = "PROP_NAMESERVER_ADDR"
STARTED: Final = "PROP_CONSUMER_START_TIMESTAMP"
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
MIB: Final = 1024 * 1024
TOOK_PLACE: Final = ("CR_SUCCESS", "CR_COMMIT")

Client = Annotated[str, valued("CLIENT", "the client's id, as `firearrow group clients` lists it")]

app: Final = CommandGroup()


class KnownClient(NamedTuple):
    """A consumer: its connections by broker, its subscriptions as a broker has them, and its report.

    ``reason`` says why the report is missing.
    """

    group: str
    client_id: str
    connections: Mapping[RegisteredBroker, Sequence[ClientConnection]]
    wanted: Sequence[SubscriptionData]
    info: ConsumerRunningInfo | None
    reason: str = ""

    @property
    def access(self) -> str | None:
        """``remoting`` or ``gRPC``: proxies give no name servers in the report. None without a report."""
        if self.info is None:
            return None
        return "remoting" if self.info.properties.get(NAME_SERVERS) else "gRPC"

    @property
    def subscriptions(self) -> Sequence[SubscriptionData]:
        """Subscriptions by the client's report, otherwise as a broker has them."""
        return self.wanted if self.info is None else self.info.subscription_set


async def find_client(admin: Admin, group: str, client_id: str, *, stacks: bool = False) -> KnownClient:
    """Ask the brokers for a client's connections, and the client for its report; NothingFound if it is not online."""
    masters = masters_in(await admin.cluster())
    found = await concurrently(masters, lambda master: _connected(admin, master, group, client_id))
    parts = {master: part for master, part in zip(masters, found, strict=True) if part is not None}
    if not parts:
        raise NothingFound(f"group {group!r} has no client {client_id!r} that is online")
    connections = {master: several for master, (several, _) in parts.items()}
    known = KnownClient(group, client_id, connections, next(iter(parts.values()))[1], None)
    address = next(iter(parts)).address
    try:
        info = await admin.groups.running_info(address, group, client_id, stacks=stacks)
    except (OSError, FirearrowError) as error:
        return known._replace(reason=sentence(error))
    return known._replace(info=info)


async def _connected(
    admin: Admin, master: RegisteredBroker, group: str, client_id: str
) -> tuple[list[ClientConnection], list[SubscriptionData]] | None:
    """Connections of a client to a broker, and the group's subscriptions there; None if it is not connected."""
    try:
        found = await admin.groups.consumers(master.address, group)
    except BrokerError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return None
    mine = [one for one in found.connection_set if one.client_id == client_id]
    return (mine, list(found.subscription_table.values())) if mine else None


@app.command("show")
async def show_client(group: Group, client: Client, /, *, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> int:
    """Show a consumer: its connections, version, language and settings."""
    async with cluster.admin() as admin:
        known = await find_client(admin, group, client)
    output.show(client_table(known))
    return FAILED if known.reason else 0


def client_table(known: KnownClient) -> Table:
    """Give the facts about a client."""
    one = next(iter(known.connections.values()))[0]
    settings = known.info.properties if known.info is not None else {}
    places = [f"{at.client_addr} (to {broker.broker})" for broker, it in known.connections.items() for at in it]
    pairs: list[tuple[str, Cell]] = [
        ("language", one.language),
        ("version", version_name(one.version)),
        ("access", known.access),
        ("addresses", ", ".join(places)),
    ]
    if started := settings.get(STARTED, ""):
        pairs.append(("started", as_moment(int(started)) if _DIGITS.fullmatch(started) else started))
    pairs += [(name, text) for name, text in sorted(settings.items()) if name != STARTED]
    if known.info is not None:
        pairs += sorted(known.info.user_consumer_info.items())
    rows: list[list[Cell]] = [[known.group, known.client_id, *pair] for pair in pairs]
    return Table("Client", SHOW, rows, f"It gives no report: {known.reason}" if known.reason else "")


@app.command("topics")
async def list_topics(group: Group, client: Client, /, *, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> int:
    """List the subscriptions of a consumer, with its rates and times."""
    async with cluster.admin() as admin:
        known = await find_client(admin, group, client)
    output.show(topics_table(known))
    return FAILED if known.reason else 0


def topics_table(known: KnownClient) -> Table:
    """Give the subscriptions of a client with its rates; without a report, as a broker has them."""
    rates = known.info.status_table if known.info is not None else {}
    rows: list[list[Cell]] = []
    for it in sorted(known.subscriptions, key=lambda it: it.topic):
        row: list[Cell] = [known.group, it.topic, it.sub_string, it.expression_type or "TAG"]
        if (rate := rates.get(it.topic)) is None:
            row += [None] * (len(TOPICS) - len(row))
        else:
            row += [rate.consume_ok_tps, rate.consume_failed_tps, rate.consume_failed_msgs, rate.consume_rt]
            row += [rate.pull_tps, rate.pull_rt]
        rows.append(row)
    return Table("Subscriptions", TOPICS, rows)


@app.command("queues")
async def list_queues(group: Group, client: Client, /, *, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> int:
    """List the queues that a consumer has, with the messages that it holds."""
    async with cluster.admin() as admin:
        known = await find_client(admin, group, client)
    output.show(queues_table(known))
    return FAILED if known.reason else 0


def queues_table(known: KnownClient) -> Table:
    """Give the queues that a client pulls or pops."""
    if known.info is None:
        return Table("Queues", QUEUES, [], f"It gives no report: {known.reason}")
    rows: list[list[Cell]] = []
    for queue, held in sorted(known.info.mq_table.items(), key=_place):
        has_some = held.cached_msg_count > 0
        rows.append(
            [
                known.group,
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                held.commit_offset,
                held.cached_msg_count,
                held.cached_msg_min_offset if has_some else None,
                held.cached_msg_max_offset if has_some else None,
                held.cached_msg_size_in_mib * MIB,
                None,
                held.locked,
                held.droped,
                as_moment(held.last_pull_timestamp),
                as_moment(held.last_consume_timestamp),
            ]
        )
    for queue, popped in sorted(known.info.mq_pop_table.items(), key=_place):
        place: list[Cell] = [known.group, queue.topic, queue.broker_name, queue.queue_id]
        state: list[Cell] = [popped.wait_ack_count, None, popped.droped, as_moment(popped.last_pop_timestamp), None]
        rows.append([*place, *[None] * (len(QUEUES) - len(place) - len(state)), *state])
    return Table("Queues", QUEUES, rows)


def _place(item: tuple[MessageQueue, object]) -> tuple[str, str, int]:
    queue, _ = item
    return queue.topic, queue.broker_name, queue.queue_id


@app.command("stacks")
async def show_stacks(group: Group, client: Client, /, *, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> int:
    """Show the stacks of a consumer's threads."""
    async with cluster.admin() as admin:
        known = await find_client(admin, group, client, stacks=True)
    output.show(stacks_table(known))
    return FAILED if known.reason else 0


def stacks_table(known: KnownClient) -> Table:
    """Give the stacks of a client's threads, line by line."""
    text = (known.info.jstack if known.info is not None else None) or ""
    note = f"It gives no report: {known.reason}" if known.reason else "" if text else "It gives no stacks."
    return Table("Stacks", ("line",), [[line] for line in text.splitlines()], note)


@app.command("consume")
async def consume(
    group: Group,
    client: Client,
    message_id: Annotated[str, Parameter("id of the message: the sender's, or that by offset")],
    /,
    *,
    topic: Annotated[str | None, valued("NAME", "topic; not needed with an id by offset", names_of="topics")] = None,
    apply: Apply = False,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Make a consumer consume one message now, whether or not it has consumed it already; offsets stay."""
    from firearrow.cli.messages.commands import message_of

    async with cluster.admin() as admin:
        await find_client(admin, group, client)
        message = await message_of(admin, message_id, topic)
        row: list[Cell] = [group, client, message.topic, message.offset_message_id]
        if not apply:
            output.show(Table("Message", CONSUME, [[*row, "would be consumed", None, None, None]], PREVIEW))
            return 0
        result = await admin.consume_directly(group, client, message.topic, message)
    took = result.consume_result in TOOK_PLACE
    state: list[Cell] = ["consumed" if took else "failed", result.consume_result, result.spent_time_mills]
    output.show(Table("Message", CONSUME, [[*row, *state, result.remark]]))
    return 0 if took else FAILED
