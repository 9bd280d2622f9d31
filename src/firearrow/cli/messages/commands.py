"""`firearrow message`: send, read, find, trace and resend messages."""

from __future__ import annotations

import sys
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from itertools import count as counting
from pathlib import Path
from typing import Annotated, Final, Literal

from firearrow.cli.cluster.masters import PREVIEW, Apply
from firearrow.cli.cluster.options import ANY, ClusterOptions, Topic
from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import FAILED, NothingFound
from firearrow.cli.messages.browsing import QUEUES_MAX, Wanted, edges_of, part, positions_in, tables_of, with_key
from firearrow.cli.messages.pending import COLUMNS as PENDING
from firearrow.cli.messages.pending import by_time, by_topic, waiting
from firearrow.cli.messages.reading import ALL, follow, places, read, span
from firearrow.cli.messages.resending import Resend, resend_all
from firearrow.cli.messages.ways import way_of
from firearrow.cli.output.listing import PLAIN, Output, print_body
from firearrow.cli.output.messagerows import COLUMNS, fields_of, line_of, row_of
from firearrow.cli.output.reports import Cell, Table, as_moment
from firearrow.cli.parameters import (
    STANDARD_INPUT,
    TIMES,
    Options,
    Parameter,
    WrongOptions,
    content_of,
    exclude,
    moment,
    moment_ahead,
    pair,
    require_order,
    seconds,
    switch,
    text_or_input,
    valued,
    whole_seconds,
)
from firearrow.cli.parameters import count as count_of
from firearrow.client.admin import Admin
from firearrow.client.producer.producer import Producer
from firearrow.client.queues import Queue
from firearrow.client.tracing.records import steps_in
from firearrow.clock import SystemClock
from firearrow.errors import MessageError
from firearrow.message.ids import decode_offset_id
from firearrow.message.model import MessageView
from firearrow.message.names import TRACE_TOPIC
from firearrow.message.recall import RecallHandle

PORT_MAX: Final = 65535
SEND_GROUP: Final = "firearrow-cli"
LIST_MAX: Final = 500
SENT: Final = ("topic", "broker", "queueId", "queueOffset", "messageId", "status", "recallHandle")
RECALLED: Final = ("topic", "broker", "dueAt", "messageId", "state")
STRETCHES: Final = 60
TRACE: Final = ("kind", "group", "clientHost", "at", "tookMs", "isSuccess")

Tags = Annotated[str, valued("TAG || ...", "with one of these tags", name="--tag")]
OnBroker = Annotated[str | None, valued("NAME", "on this broker (default: all)")]
InQueue = Annotated[int | None, valued("ID", "in this queue (default: all)")]
Since = Annotated[int | None, valued("TIME", "stored at this time or later", moment)]
Until = Annotated[int | None, valued("TIME", f"stored at this time or before; {TIMES}", moment)]

app: Final = CommandGroup()


class MessageOptions(Options):
    """Options of a message apart from its body."""

    file: Annotated[Path | None, valued("FILE", "file with the body; - is standard input")] = None
    tag: Annotated[str | None, Parameter("tag, for the filters of subscriptions")] = None
    key: Annotated[tuple[str, ...], valued("WORD", "word to find the message by; may be repeated")] = ()
    properties: Annotated[
        tuple[tuple[str, str], ...],
        valued("KEY=VALUE", "property of the message; may be repeated", pair, name="--property"),
    ] = ()
    delay: Annotated[float | None, valued("DURATION", "deliver it after this delay: seconds, or 5m", seconds)] = None
    deliver_at: Annotated[
        int | None, valued("TIME", "deliver it at this time, or after a duration such as 5m", moment_ahead)
    ] = None
    sharding_key: Annotated[str | None, valued("WORD", "messages with the same key keep their order")] = None
    broker: Annotated[str | None, valued("NAME", "to this broker, with --queue")] = None
    queue: Annotated[int | None, valued("ID", "to this queue, with --broker")] = None

    def place(self, topic: str) -> Queue | None:
        """Give the queue to send to; None if the producer chooses one."""
        if (self.broker is None) != (self.queue is None):
            raise WrongOptions("--broker and --queue are only allowed together")
        if self.broker is None or self.queue is None:
            return None
        return Queue(topic, self.broker, self.queue)


NO_OPTIONS: Final = MessageOptions()


@app.command("send")
async def send(
    topic: Topic,
    body: Annotated[
        str | None,
        Parameter("the body; - is standard input (default: from --file, or from standard input)", read=text_or_input),
    ] = None,
    /,
    *,
    options: MessageOptions = NO_OPTIONS,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Send a message."""
    if body is not None and options.file is not None:
        raise WrongOptions("argument --file: not allowed with a body")
    place = options.place(topic)
    at, later = options.deliver_at, options.delay
    target = cluster.target()
    async with Producer(
        target.name_servers, group=SEND_GROUP, credentials=target.credentials, tls=target.tls or False
    ) as producer:
        receipt = await producer.send(
            topic,
            _body(body, options.file),
            key=options.key or None,
            tag=options.tag,
            properties=dict(options.properties) or None,
            delay=None if later is None else timedelta(seconds=later),
            deliver_at=None if at is None else datetime.fromtimestamp(at / 1000, UTC),
            sharding_key=options.sharding_key,
            queue=place,
        )
    row: list[Cell] = [
        topic,
        receipt.queue.broker,
        receipt.queue.queue_id,
        receipt.queue_offset,
        receipt.message_id,
        receipt.status.value,
        receipt.recall_handle,
    ]
    output.show(Table("Sent", SENT, [row]))


def _body(body: str | None, file: Path | None) -> bytes:
    if body is not None:
        return body.encode()
    return content_of(file or Path(STANDARD_INPUT))


@app.command("cat")
async def cat(
    topic: Topic,
    /,
    *,
    tags: Tags = ALL,
    broker: OnBroker = None,
    queue: InQueue = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, valued("N", "largest number of messages; 0 for all (default: 100)")] = 100,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Print messages of a topic, queue after queue; with --json an object per line."""
    require_order(since, until)
    printed = 0
    async with cluster.admin() as admin:
        for place in await places(admin, topic, broker, queue):
            async with aclosing(read(admin, place, *await span(admin, place, since, until), tags)) as messages:
                async for found in messages:
                    _print(output, found.message, found.broker, first=not printed)
                    printed += 1
                    if printed == limit:
                        return


class Filters(Options):
    """Filters of messages, and the place where a part of a topic begins."""

    tags: Tags = ALL
    sql: Annotated[str, valued("SQL92", "with properties that this selects, as far as the brokers allow it")] = ""
    key: Annotated[str | None, valued("WORD", "with this key, by the index")] = None
    having: Annotated[
        str, valued("NAME[=VALUE]", "with this property, and this value if one is given", name="--property")
    ] = ""
    containing: Annotated[str, valued("TEXT", "with this text in the body")] = ""
    broker: OnBroker = None
    queue: InQueue = None
    since: Since = None
    until: Until = None
    offset: Annotated[int | None, valued("N", "at this offset of each queue or later", count_of)] = None
    above: Annotated[str | None, valued("PLACES", "at these places or later: BROKER:QUEUE:OFFSET,...")] = None
    below: Annotated[str | None, valued("PLACES", "before these places")] = None

    def wanted(self) -> Wanted:
        """Give the filters."""
        name, _, value = self.having.partition("=")
        return Wanted(self.tags or ALL, self.sql, name.strip(), value if "=" in self.having else None, self.containing)


NO_FILTERS: Final = Filters()


@app.command("list")
async def list_messages(
    topic: Topic,
    /,
    *,
    filters: Filters = NO_FILTERS,
    oldest: Annotated[bool, switch("the oldest first (default: the newest)")] = False,
    limit: Annotated[int, valued("N", "largest number of messages, up to 500 (default: 50)", count_of)] = 50,
    show_places: Annotated[
        bool, switch("also print the places of each queue where the part begins and ends", name="--places")
    ] = False,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """List messages of all queues in the order of time, a part of the topic at once."""
    require_order(filters.since, filters.until)
    exclude(filters, "above", "below")
    limit = min(max(limit, 1), LIST_MAX)
    async with cluster.admin() as admin:
        if filters.key is not None:
            output.show(await with_key(admin, topic, filters.key, filters.wanted(), limit))
            return
        found = await places(admin, topic, filters.broker, filters.queue)
        if len(found) > QUEUES_MAX:
            raise WrongOptions(f"topic {topic!r} has {len(found):,} queues: choose one, or a broker")
        edges = await edges_of(admin, topic, found, filters.since, filters.until)
        if filters.offset is not None:
            edges = [it._replace(start=min(max(it.start, filters.offset), it.end)) for it in edges]
        text = filters.above or filters.below
        positions = None if text is None else positions_in(text, found)
        back = bool(filters.below) or (not oldest and not filters.above)
        read_part = await part(admin, SystemClock(), edges, filters.wanted(), limit, back=back, positions=positions)
    messages, ends = tables_of(read_part, edges, oldest=oldest)
    output.show(messages)
    if show_places:
        output.show(ends)


@app.command("tail")
async def tail(
    topic: Topic,
    /,
    *,
    tags: Tags = ALL,
    broker: OnBroker = None,
    queue: InQueue = None,
    last: Annotated[int, valued("N", "begin with the last N messages of each queue (default: 0)")] = 0,
    limit: Annotated[int | None, valued("N", "end after this number of messages (default: never)")] = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Print new messages of a topic until interrupted; with --json an object per line."""
    async with cluster.admin() as admin:
        found = await places(admin, topic, broker, queue)
        async with aclosing(follow(admin, found, last, tags)) as messages:
            for printed in counting():
                if printed == limit:
                    return
                message, broker_name = await anext(messages)
                _print(output, message, broker_name, first=not printed)


def _print(output: Output, message: MessageView, broker: str, *, first: bool) -> None:
    output.show_row(COLUMNS, row_of(message, broker), line_of(message, broker), first=first)


@app.command("get")
async def get(
    message_id: Annotated[str | None, valued("ID", "its id: the sender's, or that by offset")] = None,
    /,
    *,
    topic: Annotated[str | None, valued("NAME", "topic; not needed with an id by offset", names_of="topics")] = None,
    key: Annotated[str | None, valued("WORD", "with this key, in --topic")] = None,
    limit: Annotated[int, valued("N", "largest number of messages (default: 64)")] = 64,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Show a message by its id, or the messages with a key."""
    if (message_id is None) == (key is None):
        raise WrongOptions("one of ID and --key is required")
    async with cluster.admin() as admin:
        if key is not None:
            if topic is None:
                raise WrongOptions("--key needs --topic")
            found = await admin.find(topic, key, count=limit)
        else:
            found = [await message_of(admin, str(message_id), topic)]
        brokers = {
            str(address): name
            for name, data in (await admin.cluster()).broker_addr_table.items()
            for address in data.broker_addrs.values()
        }
    rows = [row_of(message, brokers.get(str(message.store_host))) for message in found]
    if output.form not in ("", "table"):
        output.show(Table("Messages", COLUMNS, rows))
        return
    for number, row in enumerate(rows):
        sys.stdout.write("\n" if number else "")
        fields = fields_of(row)
        if sys.stdout.isatty():
            output.show(Table("Message", ("field", "value"), fields[:-1]))
            print_body(dict(zip(COLUMNS, row, strict=True)))
        else:
            output.show(Table("Message", ("field", "value"), fields))


async def message_of(admin: Admin, message_id: str, topic: str | None) -> MessageView:
    """Give the message with an id; WrongOptions if it needs a topic and none is given."""
    if topic is not None:
        return await admin.message(topic, message_id, SystemClock().now_ms())
    if not is_offset_id(message_id):
        raise WrongOptions(f"{message_id!r} is no id by offset: a sender's id needs --topic")
    return await admin.messages.view(message_id)


def is_offset_id(text: str) -> bool:
    """Tell whether a text is an id by offset: a sender's id of that length would have no port."""
    try:
        return 0 < decode_offset_id(text).store_host.port <= PORT_MAX
    except MessageError:
        return False


@app.command("trace")
async def trace(
    message_id: Annotated[str, valued("ID", "the sender's id of the message")],
    /,
    *,
    trace_topic: Annotated[str, valued("NAME", f"topic of traces (default: {TRACE_TOPIC})")] = TRACE_TOPIC,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Show the trace of a message: its producer, and the groups that consumed it."""
    async with cluster.admin() as admin:
        traces = await admin.find(trace_topic, message_id)
    steps = [step for found in traces for step in steps_in(found, message_id)]
    if not steps:
        raise NothingFound(f"no trace tells of message {message_id}")
    rows: list[list[Cell]] = [
        ["sent" if it.kind == "Pub" else "consumed", it.group, it.host, as_moment(it.time_ms), it.cost_ms, it.succeeded]
        for it in sorted(steps, key=lambda it: (it.kind != "Pub", it.time_ms))
    ]
    output.show(Table("Trace", TRACE, rows))


@app.command("way")
async def way(
    message_id: Annotated[str, valued("ID", "its id: the sender's, or that by offset")],
    /,
    *,
    topic: Annotated[str | None, valued("NAME", "topic; not needed with an id by offset", names_of="topics")] = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Show the way of a message: sent, stored, and how far each group is with it."""
    async with cluster.admin() as admin:
        table = await way_of(admin, await message_of(admin, message_id, topic))
    output.show(table)


@app.command("pending")
async def pending(
    topic: Annotated[str | None, Parameter("messages for this topic (default: for all)", names_of="topics")] = None,
    /,
    *,
    by: Annotated[
        Literal["message", "topic", "time"], Parameter("a row for each message (default), topic, or stretch of time")
    ] = "message",
    every: Annotated[int, valued("SECONDS", "length of a stretch, with --by time (default: 60)", whole_seconds)] = 60,
    limit: Annotated[
        int, valued("N", "largest number of messages, the soonest; 0 for all (default: 100)", count_of)
    ] = 100,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Show messages that brokers keep until their time."""
    now_ms = SystemClock().now_ms()
    async with cluster.admin() as admin:
        if by == "topic":
            table = await by_topic(admin)
            output.show(table.changed(rows=[row for row in table.rows if topic in (None, row[0])]))
            return
        found, note = await waiting(admin, topic, now_ms)
    if by == "time":
        output.show(by_time(found, now_ms, max(every, 1), STRETCHES, note))
        return
    shown = found[:limit] if limit else found
    more = f"{len(found):,} messages wait. {note}".strip() if len(shown) < len(found) else note
    output.show(Table("Waiting", PENDING, [it.row for it in shown], more, more=len(shown) < len(found)))


@app.command("recall")
async def recall(
    topic: Topic,
    handle: Annotated[str, valued("HANDLE", "handle that the send has returned, or `firearrow message pending` shows")],
    /,
    *,
    apply: Apply = False,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Recall a message that waits for its time: it is never delivered."""
    told = RecallHandle.decode(handle)
    state, note = "would be recalled", PREVIEW
    if apply:
        target = cluster.target()
        async with Producer(
            target.name_servers, group=SEND_GROUP, credentials=target.credentials, tls=target.tls or False
        ) as producer:
            await producer.recall(topic, handle)
        state, note = "recalled", ""
    row: list[Cell] = [topic, told.broker_name, as_moment(told.time_ms), told.unique_key, state]
    output.show(Table("Recall", RECALLED, [row], note))


@app.command("resend")
async def resend(
    message_id: Annotated[str, valued("ID", "its id: the sender's, or that by offset")],
    /,
    *,
    topic: Annotated[str | None, valued("NAME", "topic; not needed with an id by offset", names_of="topics")] = None,
    to: Annotated[str | None, valued("TOPIC", "topic to send it to (default: its topic)")] = None,
    apply: Apply = False,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Send a copy of a message, with the fields that its producer had set."""
    async with cluster.admin() as admin:
        message = await message_of(admin, message_id, topic)
    chosen = [Resend(message, None, to or message.topic)]
    table = await resend_all(cluster.target(), chosen, apply=apply)
    output.show(table)
    return FAILED if "failed" in table.values("state") else 0
