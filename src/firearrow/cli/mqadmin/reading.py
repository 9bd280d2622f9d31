"""Commands that read queues: their messages, and their entries."""

from __future__ import annotations

from collections import Counter
from typing import Final

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import moment_of, shown, text_order
from firearrow.cli.mqadmin.messages import added_by_client, body_text, broker_address, message_id, pulled_text
from firearrow.cli.mqadmin.topics import readable_queues
from firearrow.client.admin.messages import TOOLS_GROUP, Pulled, PullStatus
from firearrow.client.queues import Queue
from firearrow.errors import FirearrowError
from firearrow.message.model import MessageView
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import QueueEntryData
from firearrow.wire.client_bodies import MessageQueue

BATCH: Final = 32
CONSUMED: Final = 128
ALL: Final = "*"
RULE: Final = "======================================"
DONE: Final = (PullStatus.NO_NEW_MSG, PullStatus.OFFSET_ILLEGAL)


def _wanted(messages: list[MessageView], expression: str) -> list[MessageView]:
    """List the messages with one of the tags. A broker compares only the hashes of tags."""
    if expression == ALL:
        return messages
    tags = {tag.strip() for tag in expression.split("||")}
    return [message for message in messages if message.tags in tags]


def _print(run: Invocation, broker: str, pulled: Pulled, expression: str, charset: str, *, body: bool) -> None:
    more = added_by_client(pulled)
    for message in _wanted(pulled.messages, expression):
        text = body_text(message, charset) if body else "NOT PRINT BODY"
        run.line(f"MSGID: {message_id(message)} {pulled_text(message, broker, more)} BODY: {text}")


async def _range(run: Invocation, address: str, queue: MessageQueue, since: str, until: str) -> tuple[int, int]:
    """Give the first and last offsets of a queue, or the offsets at the times in two options."""
    offsets = run.admin.offsets
    start = await offsets.earliest(address, queue)
    end = await offsets.latest(address, queue)
    if since_text := run.get(since):
        start = await offsets.at_time(address, queue, moment_of(since_text))
    if until_text := run.get(until):
        end = await offsets.at_time(address, queue, moment_of(until_text))
    return start, end


async def print_topic(run: Invocation) -> None:
    """Print the messages of a topic, queue after queue."""
    topic, parent = run.text("t"), run.get("l")
    charset, expression = run.get("c") or "UTF-8", run.get("s") or ALL
    route = await run.admin.topics.route(parent or topic)
    for queue in readable_queues(parent or topic, route):
        own = MessageQueue(topic, queue.broker_name, queue.queue_id)
        address = await broker_address(run, parent or topic, queue.broker_name)
        start, end = await _range(run, address, own, "b", "e")
        run.line(f"minOffset={start}, maxOffset={end}, {own.text}")
        while start < end:
            pulled = await _pull(run, address, own, start, BATCH, expression)
            if pulled is None:
                break
            start = pulled.next_offset
            where = f"status={pulled.status.name}, offset={start}"
            if pulled.status is PullStatus.FOUND:
                body = run.flag("d", True)
                _print(run, own.broker_name, pulled, expression, charset, body=body)
            elif pulled.status in DONE:
                run.line(f"{own.text} print msg finished. {where}")
                break
            else:
                run.line(f"{own.text} no matched msg. {where}")
        run.line("-" * 56)


async def _pull(
    run: Invocation, address: str, queue: MessageQueue, offset: int, count: int, expression: str
) -> Pulled | None:
    """Pull messages; for an error note it on standard error and give None."""
    place = Queue(queue.topic, queue.broker_name, queue.queue_id)
    group = run.get("g") or TOOLS_GROUP
    try:
        return await run.admin.messages.pull(address, place, offset, count, group=group, tags=expression)
    except (OSError, FirearrowError) as error:
        run.note(error)
        return None


async def print_queue(run: Invocation) -> None:
    """Print the messages of a queue, or count their tags."""
    queue = MessageQueue(run.text("t"), run.text("a"), run.number("i"))
    charset, expression = run.get("c") or "UTF-8", run.get("s") or ALL
    address = await broker_address(run, queue.topic, queue.broker_name)
    start, end = await _range(run, address, queue, "b", "e")
    tags: Counter[str] = Counter()
    while start < end:
        pulled = await _pull(run, address, queue, start, BATCH, expression)
        if pulled is None or pulled.status is not PullStatus.FOUND:
            break
        start = pulled.next_offset
        found = _wanted(pulled.messages, expression)
        tags.update(message.tags for message in found if message.tags and message.tags.strip())
        if run.flag("p", False):
            body = run.flag("d", False)
            _print(run, queue.broker_name, pulled, expression, charset, body=body)
    if run.flag("f", False):
        for tag in sorted(text_order(tags), key=lambda tag: -tags[tag]):
            run.line(f"Tag: {tag:<30} Count: {tags[tag]}")


async def consume(run: Invocation) -> None:
    """Print messages of a topic or a queue; no offset is committed."""
    count = run.number("c", CONSUMED)
    refusal = _refusal(run, count)
    if refusal:
        run.fail(refusal)
        return
    topic = run.text("t")
    if run.has("i"):
        queue = MessageQueue(topic, run.text("b"), run.number("i"))
        await _consume_queue(run, queue, count)
        return
    route = await run.admin.topics.route(topic)
    for queue in readable_queues(topic, route):
        if count == 0:
            return
        address = await broker_address(run, topic, queue.broker_name)
        start, end = await _range(run, address, queue, "s", "e")
        if end - start > count:
            run.line(f"The older {count} message of the {queue.queue_id} queue will be provided")
            end, count = start + count - 1, 0
        else:
            count -= end - start + 1  # as in RocketMQ, the end counts, which is behind the last message
        await _print_range(run, address, queue, start, end)


def _refusal(run: Invocation, count: int) -> str:
    """Name the fault in the options, in RocketMQ's words; blank if there is none."""
    now = run.clock.now_ms()
    since, until = moment_of(run.get("s") or "0"), moment_of(run.get("e") or "0")
    if count <= 0:
        return "Please input a positive messageNumber!"
    if run.has("i") and not run.has("b"):
        return "Please set the brokerName before queueId!"
    if run.has("o") and not run.has("i"):
        return "Please set queueId before offset!"
    if since > now:
        return "Please set the beginTimestamp before now!"
    if until > now:
        return "Please set the endTimestamp before now!"
    if run.has("e") and since > until:
        return "Please make sure that the beginTimestamp is less than or equal to the endTimestamp"
    return ""


async def _consume_queue(run: Invocation, queue: MessageQueue, count: int) -> None:
    address = await broker_address(run, queue.topic, queue.broker_name)
    start, end = await _range(run, address, queue, "s", "e")
    offset = run.number("o", 0)
    if offset > end:
        run.line(f"{queue.text} no matched msg, offset={offset}")
        return
    start = max(start, offset)
    if end - start > count:
        run.line(f"The oldler {count} message will be provided")
        end = start + count - 1
    await _print_range(run, address, queue, start, end)


async def _print_range(run: Invocation, address: str, queue: MessageQueue, start: int, end: int) -> None:
    while start <= end:
        pulled = await _pull(run, address, queue, start, end - start + 1, ALL)
        if pulled is None:
            return
        start = pulled.next_offset
        where = f"status={pulled.status.name}, offset={start}"
        if pulled.status is PullStatus.FOUND:
            run.line("Consume ok")
            _print(run, queue.broker_name, pulled, ALL, "UTF-8", body=True)
        elif pulled.status in DONE:
            run.line(f"{queue.text} print msg finished. {where}")
            return
        else:
            run.line(f"{queue.text} no matched msg. {where}")


async def queue_entries(run: Invocation) -> None:
    """Show entries of a queue, and a group's subscription to the topic."""
    topic, index = run.text("t"), run.number("i")
    address = run.get("b")
    if not address:
        address = (await run.admin.topics.route(topic)).broker_datas[0].address
    found = await run.admin.brokers.entries(address, topic, run.number("q"), index, run.number("c", 10), run.get("g"))
    if found.subscription_data is not None:
        text = fastjson.dumps(found.subscription_data, pretty=True).decode()
        text = text.replace(":[]", ":[\n\t\t\n\t]")  # they are sets: see `fastjson.dumps`
        run.line(f"Subscription data: \n{text}\n{RULE}")
    if found.filter_data is not None:
        run.line(f"Filter data: \n{found.filter_data}\n{RULE}")
    run.line(f"Queue data: \nmax: {found.max_queue_index}, min: {found.min_queue_index}\n{RULE}")
    for at, entry in enumerate(found.queue_data or [], index):
        run.line(f"idx: {at}\n{_entry_text(entry)}\n{RULE}")


def _entry_text(entry: QueueEntryData) -> str:
    return (
        f"ConsumeQueueData{{physicOffset={entry.physic_offset}, physicSize={entry.physic_size}, "
        f"tagsCode={entry.tags_code}, extendDataJson='{shown(entry.extend_data_json)}', "
        f"bitMap='{shown(entry.bit_map)}', eval={shown(entry.is_wanted)}, "
        f"msg='{shown(entry.msg)}'}}"
    )
