"""`firearrow dlq`: list, inspect and resend dead letters."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Final, NamedTuple

from firearrow.cli.cluster.masters import Apply, Pattern, matches
from firearrow.cli.cluster.options import ANY, ClusterOptions, Group
from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import FAILED, NothingFound
from firearrow.cli.messages.reading import FoundMessage, Place, places, read, span
from firearrow.cli.messages.resending import Resend, resend_all
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.messagerows import as_text
from firearrow.cli.output.reports import Cell, Table, as_moment, cut
from firearrow.cli.parameters import TIMES, WrongOptions, moment, switch, valued
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.diagnosis.findings import counted
from firearrow.clock import SystemClock
from firearrow.errors import BrokerError, FirearrowError, TopicNotFound
from firearrow.message import names
from firearrow.message import properties as keys_of
from firearrow.message.model import MessageView
from firearrow.wire.client_bodies import MessageQueue, TopicOffset

LIST: Final = ("group", "letters", "lastHour", "lastAt")
INSPECT: Final = (
    "deadAt", "messageId", "originTopic", "tag", "keys", "retries", "producer", "place", "body", "error",
)  # fmt: skip
HOUR_MS: Final = 3_600_000
BODY_CHARACTERS: Final = 200
SELECTED_MAX: Final = 1_000_000
"""Messages that brokers search for copies by SQL92."""
READ_MAX: Final = 20_000
"""Messages that are read to find copies, where brokers do not filter by properties."""
_ERROR: Final = re.compile(r"error|exception|failure", re.IGNORECASE)

Limit = Annotated[int, valued("N", "largest number of letters, the newest; 0 for all (default: 100)")]
Since = Annotated[int | None, valued("TIME", f"dead letters since this time; {TIMES}", moment)]

app: Final = CommandGroup()


@app.command("list")
async def list_groups(pattern: Pattern = None, /, *, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """List the groups with dead letters."""

    async def row(topic: str) -> list[Cell]:
        stats = (await admin.topic_stats(topic)).offset_table
        letters = sum(ends.max_offset - ends.min_offset for ends in stats.values())
        last = max((ends.last_update_timestamp for ends in stats.values()), default=0)
        late = await _since(admin, topic, stats, now_ms - HOUR_MS) if letters and last >= now_ms - HOUR_MS else 0
        return [names.group_of(topic), letters, late, as_moment(last) if letters else None]

    now_ms = SystemClock().now_ms()

    async with cluster.admin() as admin:
        topics = [it for it in await admin.topics.names() if names.is_dlq(it)]
        wanted = sorted(it for it in topics if matches(names.group_of(it) or "", pattern))
        rows = await concurrently(wanted, row)
    output.show(Table("Dead letters", LIST, [row for row in rows if row[1]]))


async def _since(admin: Admin, topic: str, ends: Mapping[MessageQueue, TopicOffset], since_ms: int) -> int:
    """Count the letters of a topic since a time."""

    async def one(place: Place) -> int:
        return max(
            ends[place.at_broker].max_offset - await admin.offsets.at_time(place.address, place.at_broker, since_ms), 0
        )

    return sum(await concurrently([it for it in await places(admin, topic) if it.at_broker in ends], one))


@app.command("inspect")
async def inspect(
    group: Group,
    /,
    *,
    since: Since = None,
    limit: Limit = 100,
    resent: Annotated[
        bool, switch("also look for copies that were sent again, in the topics that letters come from")
    ] = False,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Show the dead letters of a group, with the topic that each comes from."""
    async with cluster.admin() as admin:
        letters = await _inspected(admin, group, since, limit)
        copies, note = await _resent(admin, letters) if resent else ({}, "")
    rows = [[*it.row, *([as_moment(copies.get(it.mark, 0))] if resent else [])] for it in letters]
    columns = (*INSPECT, "resentAt") if resent else INSPECT
    output.show(Table("Dead letters", columns, rows, note, more=0 < limit == len(rows)))


class Letter(NamedTuple):
    """A dead letter without its body."""

    stored_ms: int
    mark: str
    origin: str | None
    row: list[Cell]


async def _inspected(admin: Admin, group: str, since: int | None, limit: int) -> list[Letter]:
    found: list[Letter] = []
    async with aclosing(_all_letters(admin, group, since, limit)) as letters:
        async for it in letters:
            found.append(_letter(it))  # noqa: PERF401 - bodies are large: each message goes before the next comes
    return sorted(found)[-limit:]


def _letter(it: FoundMessage) -> Letter:
    message, mark, origin = it.message, mark_of(it), origin_of(it.message)
    row: list[Cell] = [
        as_moment(message.store_timestamp_ms),
        message.unique_key,
        origin,
        message.tags,
        " ".join(message.keys) or None,
        message.reconsume_times,
        str(message.born_host),
        mark,
        _text(message),
        error_of(message),
    ]
    return Letter(message.store_timestamp_ms, mark, origin, row)


@app.command("resend")
async def resend(
    group: Group,
    /,
    *,
    ids: Annotated[tuple[str, ...], valued("ID", "with this id; may be repeated", name="--id")] = (),
    key: Annotated[tuple[str, ...], valued("WORD", "with this key; may be repeated")] = (),
    tag: Annotated[tuple[str, ...], valued(None, "with this tag; may be repeated")] = (),
    containing: Annotated[str | None, valued("TEXT", "with this text in the body")] = None,
    all_letters: Annotated[bool, switch("all dead letters of the group", name="--all")] = False,
    since: Since = None,
    to: Annotated[
        str | None, valued("TOPIC", "topic to send them to (default: the topic that each comes from)")
    ] = None,
    apply: Apply = False,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Send dead letters of a group again; a dead letter stays where it is."""
    if not (ids or key or tag or containing or all_letters):
        raise WrongOptions("one of --id, --key, --tag, --containing and --all is required")

    def is_chosen(message: MessageView) -> bool:
        return (
            (not ids or bool({message.unique_key, message.offset_message_id} & {*ids}))
            and (not key or bool({*message.keys} & {*key}))
            and (not tag or message.tags in tag)
            and (not containing or containing.encode() in message.body_decompressed())
        )

    async with cluster.admin() as admin, aclosing(_all_letters(admin, group, since, 0)) as found:
        letters = sorted([it async for it in found], key=lambda it: (it.message.store_timestamp_ms, mark_of(it)))
    chosen: list[Resend] = []
    for it in letters:
        if is_chosen(it.message):
            target = to or origin_of(it.message)
            if target is None:
                raise NothingFound(f"{mark_of(it)} does not say where it comes from: give --to")
            chosen.append(Resend(it.message, mark_of(it), target))
    if not chosen:
        raise NothingFound(f"no dead letter of group {group!r} matches")
    table = await resend_all(cluster.target(), chosen, apply=apply)
    output.show(table)
    return FAILED if "failed" in table.values("state") else 0


async def _resent(admin: Admin, letters: Sequence[Letter]) -> tuple[dict[str, int], str]:
    """Give the times of copies by the marks of their letters, and a note on the search."""
    found: dict[str, int] = {}
    notes: list[str] = []
    firsts: dict[str, int] = {}
    for it in letters:
        if it.origin is not None:
            firsts[it.origin] = min(firsts.get(it.origin, it.stored_ms), it.stored_ms)
    for topic, since_ms in firsts.items():
        try:
            examined, is_cut = await _copies(admin, topic, since_ms, found)
        except (OSError, FirearrowError) as error:
            notes.append(f"Copies in topic {topic!r} are unknown: {error}.")
            continue
        part = ", the newest ones" if is_cut else ""
        notes.append(f"Searched for copies in topic {topic!r}: {counted(examined, 'message')}{part}.")
    return found, " ".join(notes)


async def _copies(admin: Admin, topic: str, since_ms: int, found: dict[str, int]) -> tuple[int, bool]:
    """Note the copies in a topic since a time; give the count of messages and tell whether some were left out."""
    queues = await places(admin, topic)
    spans = await concurrently(queues, lambda it: span(admin, it, since_ms))

    async def search(sql: str, most: int) -> tuple[int, bool]:
        examined, is_cut = 0, False
        for place, (first, end) in zip(queues, spans, strict=True):
            start = max(first, end - most // len(queues))
            is_cut |= start > first
            examined += end - start
            async for it in read(admin, place, start, end, sql=sql):
                if mark := it.message.properties.get(keys_of.RESENT_ID):
                    found[mark] = max(found.get(mark, 0), it.message.store_timestamp_ms)
        return examined, is_cut

    try:
        return await search(f"{keys_of.RESENT_ID} IS NOT NULL", SELECTED_MAX)
    except BrokerError:  # the brokers do not filter by properties
        return await search("", READ_MAX)


async def _all_letters(admin: Admin, group: str, since: int | None, limit: int) -> AsyncGenerator[FoundMessage, None]:
    try:
        queues = await places(admin, names.dlq_topic(group))
    except TopicNotFound:
        raise NothingFound(f"group {group!r} has no dead letters") from None
    for place in queues:
        start, end = await span(admin, place, since)
        async for letter in read(admin, place, max(start, end - limit) if limit else start, end):
            yield letter


def origin_of(letter: MessageView) -> str | None:
    """Give the subscribed topic that a dead letter comes from; None instead of a retry topic."""
    found = letter.properties
    topic = found.get(keys_of.RETRY_TOPIC) or found.get(keys_of.DLQ_ORIGIN_TOPIC)
    return None if topic is None or names.is_retry(topic) else topic


def error_of(letter: MessageView) -> str | None:
    """Give the text of the first property whose name says that it is an error."""
    found = letter.properties
    return next((found[name] for name in sorted(found) if _ERROR.search(name)), None)


def mark_of(letter: FoundMessage) -> str:
    """Give the permanent, unique mark of a dead letter."""
    message = letter.message
    return f"{letter.broker}/{message.topic}/{message.queue_id}/{message.queue_offset}"


def _text(message: MessageView) -> str:
    body = message.body_decompressed()
    text, is_base64 = as_text(body)
    return f"({len(body)} bytes)" if is_base64 else cut(text, BODY_CHARACTERS)
