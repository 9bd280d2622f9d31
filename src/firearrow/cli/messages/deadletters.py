"""`firearrow dlq`: list, inspect and resend dead letters."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Final

from firearrow.cli.cluster.masters import Apply, Pattern, matches
from firearrow.cli.cluster.options import ANY, ClusterOptions, Group
from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import FAILED, NothingFound
from firearrow.cli.messages.reading import FoundMessage, places, read, span
from firearrow.cli.messages.resending import Resend, as_text, resend_all
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table, as_moment, cut
from firearrow.cli.parameters import WrongOptions, moment, switch, valued
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.errors import TopicNotFound
from firearrow.message import names
from firearrow.message import properties as keys_of
from firearrow.message.model import MessageView

LIST: Final = ("group", "letters", "lastAt")
INSPECT: Final = ("deadAt", "messageId", "originTopic", "tag", "keys", "retries", "producer", "place", "body")
BODY_CHARACTERS: Final = 200

Limit = Annotated[int, valued("N", "largest number of letters; 0 for all (default: 100)")]
Since = Annotated[
    int | None, valued("TIME", "dead letters since this time; TIME is ISO 8601 (UTC) or ms since 1970", moment)
]

app = CommandGroup()


@app.command("list")
async def list_groups(pattern: Pattern = None, /, *, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """List the groups with dead letters."""

    async def row(topic: str) -> list[Cell]:
        stats = (await admin.topic_stats(topic)).offset_table.values()
        letters = sum(ends.max_offset - ends.min_offset for ends in stats)
        last = max((ends.last_update_timestamp for ends in stats), default=0)
        return [names.group_of(topic), letters, as_moment(last) if letters else None]

    async with cluster.admin() as admin:
        topics = [it for it in await admin.topics.names() if names.is_dlq(it)]
        wanted = sorted(it for it in topics if matches(names.group_of(it) or "", pattern))
        rows = await concurrently(wanted, row)
    output.show(Table("Dead letters", LIST, [row for row in rows if row[1]]))


@app.command("inspect")
async def inspect(
    group: Group, /, *, since: Since = None, limit: Limit = 100, cluster: ClusterOptions = ANY, output: Output = PLAIN
) -> None:
    """Show the dead letters of a group, with the topic that each comes from."""
    async with cluster.admin() as admin:
        letters = await _letters(admin, group, since, limit)
    rows: list[list[Cell]] = [
        [
            as_moment(it.message.store_timestamp_ms),
            it.message.unique_key,
            origin_of(it.message),
            it.message.tags,
            " ".join(it.message.keys) or None,
            it.message.reconsume_times,
            str(it.message.born_host),
            mark_of(it),
            _text(it.message),
        ]
        for it in letters
    ]
    output.show(Table("Dead letters", INSPECT, rows))


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

    async with cluster.admin() as admin:
        letters = await _letters(admin, group, since, 0)
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


async def _letters(admin: Admin, group: str, since: int | None, limit: int) -> list[FoundMessage]:
    found: list[FoundMessage] = []
    async with aclosing(_all_letters(admin, group, since)) as letters:
        async for letter in letters:
            found.append(letter)
            if len(found) == limit:
                break
    return sorted(found, key=lambda it: (it.message.store_timestamp_ms, mark_of(it)))


async def _all_letters(admin: Admin, group: str, since: int | None) -> AsyncGenerator[FoundMessage, None]:
    try:
        queues = await places(admin, names.dlq_topic(group))
    except TopicNotFound:
        raise NothingFound(f"group {group!r} has no dead letters") from None
    for place in queues:
        start, end = await span(admin, place, since)
        async for letter in read(admin, place, start, end):
            yield letter


def origin_of(letter: MessageView) -> str | None:
    """Give the subscribed topic that a dead letter comes from; None instead of a retry topic."""
    found = letter.properties
    topic = found.get(keys_of.RETRY_TOPIC) or found.get(keys_of.DLQ_ORIGIN_TOPIC)
    return None if topic is None or names.is_retry(topic) else topic


def mark_of(letter: FoundMessage) -> str:
    """Give the permanent, unique mark of a dead letter."""
    message = letter.message
    return f"{letter.broker}/{message.topic}/{message.queue_id}/{message.queue_offset}"


def _text(message: MessageView) -> str:
    body = message.body_decompressed()
    text, is_base64 = as_text(body)
    return f"({len(body)} bytes)" if is_base64 else cut(text, BODY_CHARACTERS)
