"""Commands that look up messages by id, key, unique key, place or trace, and the text of messages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from firearrow.cli.mqadmin.invocation import Invocation, or_none
from firearrow.cli.mqadmin.javatext import moment, second, shown, text_order
from firearrow.cli.mqadmin.sending import CommandProducer
from firearrow.client.admin.cluster import UNIQUE_KEYS_MAX, Track
from firearrow.client.admin.messages import LAST_MS, Pulled, PullStatus
from firearrow.client.queues import Queue
from firearrow.client.tracing.records import TraceStep, steps_in
from firearrow.clock import HOUR_MS
from firearrow.errors import ConfigError
from firearrow.files import for_the_user_alone, make_own_directory, name_of_file
from firearrow.message import properties as keys_of
from firearrow.message.model import MessageView, NewMessage
from firearrow.message.names import TRACE_TOPIC
from firearrow.wire.client_bodies import DirectResult
from firearrow.wire.codes import BY_KEY, BY_TAG, BY_UNIQUE_KEY

AROUND_MS: Final = 36 * HOUR_MS
RESENDING_GROUP: Final = "ReSendMsgById"
BODIES: Final = Path("/tmp/rocketmq/msgbodys")
PROPERTIES_TABLE: Final = 128  # buckets of the map of a message's properties
_FOUND: Final = "{:<50} {:>4} {:>40} {:<200}"
_STEP: Final = "{:<10} {:<20} {:<20} {:<20} {:<10} {:<10}"


async def by_id(run: Invocation) -> None:
    """Show messages, push them to a consumer, or send them again."""
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
    """Print a message and its fate in each group, and write its body into a file."""
    path = write_body(message)
    run.line(f"{'OffsetID:':<20} {message.offset_message_id}")
    run.write(fields_text(message, path, more))
    if charset is not None:
        run.line(f"{'Message Body:':<20} {body_text(message, charset)}")
    await print_tracks(run, message, "\n")


async def _push(run: Invocation, group: str, client_id: str, topic: str, one: str, cluster: str | None) -> None:
    with run.noting():
        info = await run.admin.running_info(group, client_id)
        if not info.is_push:
            run.fail(f"this {client_id} client is not push consumer ,not support direct push \n")
            return
        message = await run.admin.message(topic, one, run.clock.now_ms(), cluster)
        result = await run.admin.consume_directly(group, client_id, topic, message)
        run.write(_result_text(result))


def _result_text(result: DirectResult) -> str:
    return (
        f"ConsumeMessageDirectlyResult [order={shown(result.order)}, "
        f"autoCommit={shown(result.auto_commit)}, consumeResult={shown(result.consume_result)}, "
        f"remark={shown(result.remark)}, spentTimeMills={result.spent_time_mills}]"
    )


async def _send_again(run: Invocation, topic: str, one: str, cluster: str | None) -> None:
    with run.noting():
        message = await run.admin.message(topic, one, run.clock.now_ms(), cluster)
        run.write(f"prepare resend msg. originalMsgId={one}")
        again = NewMessage(message.topic, message.body_decompressed(), message.properties, message.flag)
        run.write(str(await CommandProducer(run, RESENDING_GROUP).send(again)))


async def by_key(run: Invocation) -> None:
    """List messages by key or tag."""
    topic, key, kind = run.text("t"), run.text("k"), run.get("p") or BY_KEY
    if kind not in (BY_KEY, BY_TAG) or run.get("p") == "":
        run.fail("index type error, just support K for keys or T for tags")
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
    run.line(_FOUND.format("#Message ID", "#QID", "#Offset", "#IndexKey"))
    for message in found:
        stored = message.store_timestamp_ms
        hour = stored // HOUR_MS * HOUR_MS if stored > 0 else stored
        own = message_id(message)
        place = f"{hour}@{topic}@{kind}@{key}@{own}@{message.physical_offset}"
        run.line(_FOUND.format(own, message.queue_id, message.queue_offset, place))


async def by_unique_key(run: Invocation) -> None:
    """Show messages by the id that their producer gave, or push one to a consumer."""
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
    info = await or_none(run.admin.running_info(group, client_id))
    if info is None:
        run.fail(f"get consumer runtime info for {client_id} client failed \n")
    if info is None or not info.is_push:
        run.fail(
            f"get consumer info failed or this {client_id} client is not push consumer, not support direct push \n"
        )
        return
    message = await run.admin.message(topic, one, run.clock.now_ms())
    run.write(_result_text(await run.admin.consume_directly(group, client_id, topic, message)))


async def by_offset(run: Invocation) -> None:
    """Show the message at an offset of a queue; nothing if there is none."""
    topic, broker = run.text("t"), run.text("b")
    address = await broker_address(run, run.get("r") or topic, broker)
    queue = Queue(topic, broker, run.number("i"))
    pulled = await run.admin.messages.pull(address, queue, run.number("o"), 1)
    if pulled.status is PullStatus.FOUND:
        message = pulled.messages[0]
        await print_message(run, message, run.get("f"), added_by_client(pulled))


async def trace(run: Invocation) -> None:
    """Show the sender of a message and the groups that consumed it, from the traces of clients."""
    message_id = run.text("i")
    traces = await run.admin.find(
        run.get("t") or TRACE_TOPIC,
        message_id,
        count=run.number("c", 64),
        since_ms=run.number("b", 0),
        until_ms=run.number("e", LAST_MS),
    )
    steps = [step for found in traces for step in steps_in(found, message_id)]
    for step in steps:
        if step.kind == "Pub":
            run.line(_head("#ProducerGroup", "#SendTime"))
            run.line(f"{_step(step)}\n")
    groups = dict.fromkeys(shown(step.group) for step in steps if step.kind == "Sub")
    for group in text_order(groups):
        run.line(_head("#ConsumerGroup", "#ConsumerTime"))
        for step in steps:
            if step.kind == "Sub" and shown(step.group) == group:
                run.line(_step(step))
        run.line()


def _head(group: str, time: str) -> str:
    return _STEP.format("#Type", group, "#ClientHost", time, "#CostTimes", "#Status")


def _step(step: TraceStep) -> str:
    status = "success" if step.succeeded else "failed"
    return _STEP.format(step.kind, shown(step.group), step.host, second(step.time_ms), f"{step.cost_ms}ms", status)


# --- places and texts of messages ---


async def broker_address(run: Invocation, topic: str, broker: str) -> str:
    """Give an address of a broker; ConfigError if the route of the topic does not name it."""
    for data in (await run.admin.topics.route(topic)).broker_datas:
        if data.broker_name == broker:
            return data.address
    raise ConfigError(f"topic {topic!r} is not on broker {broker!r}")


def added_by_client(pulled: Pulled) -> dict[str, str]:
    """Give the properties that a client adds to pulled messages."""
    return {"MIN_OFFSET": str(pulled.earliest), "MAX_OFFSET": str(pulled.latest)}


def message_id(message: MessageView) -> str:
    """Give the id that applications see: the unique id of the producer, or the offset message id."""
    return message.unique_key or message.offset_message_id


def body_text(message: MessageView, charset: str) -> str:
    """Decode a body; bytes outside the character set are replaced."""
    try:
        return message.body_decompressed().decode(charset, "replace")
    except LookupError:
        raise ConfigError(f"unknown character set {charset!r}") from None


def properties_text(message: MessageView, more: Mapping[str, str] | None = None) -> str:
    """Write the properties of a message, with ``more`` that a client adds to pulled messages."""
    found = {**message.properties, **(more or {})}
    return shown({name: found[name] for name in text_order(found, PROPERTIES_TABLE)})


def pulled_text(message: MessageView, broker: str, more: Mapping[str, str]) -> str:
    """Write a pulled message with all its fields; the body is a list of numbers."""
    numbers = ", ".join(str(byte - 256 * (byte > 127)) for byte in message.body_decompressed())
    transaction = f"'{message.unique_key}'" if message.transaction_type == 4 else "'null'"
    inner = (
        f"Message{{topic='{message.topic}', flag={message.flag}, "
        f"properties={properties_text(message, more)}, body=[{numbers}], "
        f"transactionId={transaction}}}"
    )
    return (
        f"MessageExt [brokerName={broker}, queueId={message.queue_id}, "
        f"storeSize={message.store_size}, queueOffset={message.queue_offset}, "
        f"sysFlag={message.sys_flag}, bornTimestamp={message.born_timestamp_ms}, "
        f"bornHost=/{message.born_host}, storeTimestamp={message.store_timestamp_ms}, "
        f"storeHost=/{message.store_host}, msgId={message.offset_message_id}, "
        f"commitLogOffset={message.physical_offset}, bodyCRC={message.body_crc}, "
        f"reconsumeTimes={message.reconsume_times}, "
        f"preparedTransactionOffset={message.prepared_transaction_offset}, toString()={inner}]"
    )


def write_body(message: MessageView, suffix: str = "") -> Path:
    """Write a body into the directory of RocketMQ's tools, and give the file.

    The producer chooses the id, so unsafe characters in it are replaced.
    """
    make_own_directory(BODIES)
    path = BODIES / f"{name_of_file(message_id(message))}{suffix}"
    with open(path, "wb", opener=for_the_user_alone) as file:
        file.write(message.body_decompressed())
    return path


def fields_text(message: MessageView, path: Path, more: Mapping[str, str] | None = None) -> str:
    """Write the fields of a message, one a line."""
    keys = message.properties.get(keys_of.KEYS)
    fields = (
        ("Topic:", message.topic),
        ("Tags:", f"[{shown(message.tags)}]"),
        ("Keys:", f"[{shown(keys)}]"),
        ("Queue ID:", str(message.queue_id)),
        ("Queue Offset:", str(message.queue_offset)),
        ("CommitLog Offset:", str(message.physical_offset)),
        ("Reconsume Times:", str(message.reconsume_times)),
        ("Born Timestamp:", moment(message.born_timestamp_ms)),
        ("Store Timestamp:", moment(message.store_timestamp_ms)),
        ("Born Host:", str(message.born_host)),
        ("Store Host:", str(message.store_host)),
        ("System Flag:", str(message.sys_flag)),
        ("Properties:", properties_text(message, more)),
        ("Message Body Path:", str(path)),
    )
    return "".join(f"{name:<20} {text}\n" for name, text in fields)


def track_text(track: Track) -> str:
    """Write the fate of a message in a group."""
    return f"MessageTrack [consumerGroup={track.group}, trackType={track.kind}, exceptionDesc={shown(track.why)}]"


async def print_tracks(run: Invocation, message: MessageView, end: str) -> None:
    """Print the fate of a message in each group, each with ``end`` after it."""
    tracks: list[Track] | None = None
    with run.noting():
        tracks = await run.admin.tracks(message)
    if tracks is not None:
        run.write("\n\n" if tracks else "\n\nWARN: No Consumer")
        run.write("".join(f"{track_text(track)}{end}" for track in tracks))
