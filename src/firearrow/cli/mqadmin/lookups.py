"""The commands that look messages up: by id, key, unique key or place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import shown
from firearrow.cli.mqadmin.messagetext import body_text, fields_text, message_id, print_tracks, write_body
from firearrow.cli.mqadmin.reading import added_by_client, broker_address
from firearrow.cli.mqadmin.sending import Sending
from firearrow.client.admin.cluster import UNIQUE_KEYS_MAX
from firearrow.client.admin.messages import BY_KEY, BY_TAG, BY_UNIQUE_KEY, LAST_MS, PullStatus
from firearrow.client.queues import Queue
from firearrow.clock import HOUR_MS
from firearrow.errors import FirearrowError
from firearrow.message.model import Message, MessageView
from firearrow.wire.client_bodies import DirectResult

AROUND_MS: Final = 36 * HOUR_MS
RESENDING_GROUP: Final = "ReSendMsgById"


async def by_id(run: Invocation) -> None:
    """Show messages, have them consumed by a client, or send them again."""
    topic, cluster = run.text("t"), run.get("c")
    ids = [part.strip() for part in run.text("i").split(",") if part.strip()]
    group, client_id = run.get("g"), run.get("d")
    for one in ids:
        if group and client_id:
            await _push(run, group, client_id, topic, one, cluster)
        elif run.has("s"):
            if run.flag("s", False):
                await _send_again(run, topic, one, cluster)
        else:
            message = await run.admin.message(topic, one, run.clock.now_ms(), cluster)
            await print_message(run, message, run.get("f"))


async def print_message(
    run: Invocation, message: MessageView, charset: str | None, more: Mapping[str, str] | None = None
) -> None:
    """Print a message and what became of it; its body goes into a file."""
    path = write_body(message)
    run.line(f"{'OffsetID:':<20} {message.offset_message_id}")
    run.write(fields_text(message, path, more))
    if charset is not None:
        run.line(f"{'Message Body:':<20} {body_text(message, charset)}")
    await print_tracks(run, message, "\n")


async def _push(run: Invocation, group: str, client_id: str, topic: str, one: str, cluster: str | None) -> None:
    try:
        info = await run.admin.running_info(group, client_id)
        if not info.is_push:
            run.line(f"this {client_id} client is not push consumer ,not support direct push ")
            return
        message = await run.admin.message(topic, one, run.clock.now_ms(), cluster)
        result = await run.admin.consume_directly(group, client_id, topic, message)
        run.write(_result_text(result))
    except (OSError, FirearrowError) as error:
        run.note(error)


def _result_text(result: DirectResult) -> str:
    return (
        f"ConsumeMessageDirectlyResult [order={shown(result.order)}, "
        f"autoCommit={shown(result.auto_commit)}, consumeResult={shown(result.consume_result)}, "
        f"remark={shown(result.remark)}, spentTimeMills={result.spent_time_mills}]"
    )


async def _send_again(run: Invocation, topic: str, one: str, cluster: str | None) -> None:
    try:
        message = await run.admin.message(topic, one, run.clock.now_ms(), cluster)
        run.write(f"prepare resend msg. originalMsgId={one}")
        again = Message(message.topic, message.body_decompressed(), message.properties, message.flag)
        sending = Sending(run, RESENDING_GROUP)
        run.write(str(await sending.send(again)))
    except (OSError, FirearrowError) as error:
        run.note(error)


async def by_key(run: Invocation) -> None:
    """List messages by key or tag."""
    topic, key, kind = run.text("t"), run.text("k"), run.get("p") or BY_KEY
    if kind not in (BY_KEY, BY_TAG) or run.get("p") == "":
        run.write("index type error, just support K for keys or T for tags")
        return
    found = await run.admin.find(
        topic,
        key,
        by=kind,
        count=run.number("m", 64),
        since_ms=run.number("b", 0),
        until_ms=run.number("e", LAST_MS),
        last_key=run.get("l"),
        cluster=run.get("c"),
    )
    run.line(f"{'#Message ID':<50} {'#QID':>4} {'#Offset':>40} {'#IndexKey':<200}")
    for message in found:
        stored = message.store_timestamp_ms
        hour = stored // HOUR_MS * HOUR_MS if stored > 0 else stored
        own = message_id(message)
        place = f"{hour}@{topic}@{kind}@{key}@{own}@{message.physical_offset}"
        run.line(f"{own:<50} {message.queue_id:>4} {message.queue_offset:>40} {place:<200}")


async def by_unique_key(run: Invocation) -> None:
    """Show messages by the id that their client gave, or have them consumed by a client."""
    topic, one = run.text("t"), run.text("i")
    group, client_id = run.get("g"), run.get("d")
    if group and client_id:
        await _push_by_unique_key(run, group, client_id, topic, one)
        return
    now = run.clock.now_ms()
    since, until = now - AROUND_MS, now + AROUND_MS
    if run.get("s") and run.get("e"):
        since, until = run.number("s"), run.number("e")
    found = await run.admin.find(
        topic, one, by=BY_UNIQUE_KEY, count=UNIQUE_KEYS_MAX, since_ms=since, until_ms=until, cluster=run.get("c")
    )
    found.sort(key=lambda message: message.store_timestamp_ms)
    for at, message in enumerate(found if run.has("a") else found[:1]):
        run.write(fields_text(message, write_body(message, f"_{at}" if at else "")))
        await print_tracks(run, message, "")


async def _push_by_unique_key(run: Invocation, group: str, client_id: str, topic: str, one: str) -> None:
    is_push = False
    try:
        is_push = (await run.admin.running_info(group, client_id)).is_push
    except (OSError, FirearrowError):  # as upstream: it says only that
        run.line(f"get consumer runtime info for {client_id} client failed ")
    if not is_push:
        run.line(f"get consumer info failed or this {client_id} client is not push consumer, not support direct push ")
        return
    message = await run.admin.message(topic, one, run.clock.now_ms())
    run.write(_result_text(await run.admin.consume_directly(group, client_id, topic, message)))


async def by_offset(run: Invocation) -> None:
    """Show a message by its place; nothing if none is there."""
    topic, broker = run.text("t"), run.text("b")
    address = await broker_address(run, run.get("r") or topic, broker)
    queue = Queue(topic, broker, run.number("i"))
    pulled = await run.admin.messages.pull(address, queue, run.number("o"), 1)
    if pulled.status is PullStatus.FOUND:
        message = pulled.messages[0]
        await print_message(run, message, run.get("f"), added_by_client(pulled))
