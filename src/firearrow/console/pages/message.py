"""One message: its way, its properties in words, its body in a view that suits it, and its bytes as files."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import urlencode

from starlette.responses import Response

from firearrow.cli.messages.bodyviews import HEX, TEXT, VIEWS, Undecodable, body_of, guess, shown
from firearrow.cli.messages.commands import message_of
from firearrow.cli.messages.schemas import REGISTRY, BySchema, by_schema
from firearrow.cli.output.reports import as_moment, in_bytes
from firearrow.cli.output.reports import shown as cell_text
from firearrow.console.page import Declared, Page, View
from firearrow.console.pages.way import picture
from firearrow.console.propertywords import table_of
from firearrow.errors import FirearrowError
from firearrow.message import names
from firearrow.message import properties as keys_of
from firearrow.message.compress import compression_of
from firearrow.message.model import MessageView
from firearrow.message.recall import RecallHandle

SCHEMA: Final = "schema"
PART: Final = 64 << 10
"""Characters of a body on its page, and bytes of one in text or hex."""
THREAD_BYTES: Final = 64 << 10
"""Size from which a body is decoded in a thread: other pages must not wait."""
TITLES: Final = {"json": "JSON", "messagepack": "MessagePack", "protobuf": "Protobuf", "text": "Text", "hex": "Hex"}


async def found_message(view: View) -> MessageView:
    """Find the message that an address names."""
    topic = view.request.path_params.get("topic")
    return await message_of(view.cluster.admin, view.part("id"), topic)


async def message(view: View) -> Page:
    """Show a message."""
    found = await found_message(view)
    way = (await view.run("message-way", message_id=found.offset_message_id)).table
    body, trouble = await asyncio.to_thread(body_of, found)
    schema, schema_note = await _by_schema(view, found, body)
    chosen, text, note = await _decoded(body, view.query.get("view", ""), schema)
    place = await _place(view, found)
    return Page(
        "message.html",
        found.unique_key or found.offset_message_id,
        {
            "message": found,
            "facts": _facts(view, found, len(body)),
            "way": view.table(way, "way-", ["state", "messageId"]),
            "way_note": way.note,
            "picture": picture(way),
            "properties": view.table(table_of(found), "properties-"),
            "tabs": [*([(SCHEMA, schema.schema)] if schema else []), *((name, TITLES[name]) for name in VIEWS)],
            "view": chosen,
            "body": text,
            "notes": [it for it in (trouble, schema_note, note) if it],
            "size": in_bytes(len(body)),
            "links": place,
            "address_of_message": view.href("topics", found.topic, "messages", found.offset_message_id),
            "is_text": guess(body[:PART]) != HEX,
            "origin": _origin(view, found),
            "waits": _change_of_waiting(view, found),
        },
        trail=[
            ("Topics", view.href("topics")),
            (found.topic, view.href("topics", found.topic)),
            ("Messages", view.href("topics", found.topic, "messages")),
        ],
    )


async def _by_schema(view: View, found: MessageView, body: bytes) -> tuple[BySchema | None, str]:
    """Give a body by its schema, if one is known, and a note."""
    topic = found.properties.get(keys_of.RETRY_TOPIC, found.topic)
    attributes: Mapping[str, str] = {}
    with suppress(OSError, FirearrowError):  # without them, the body is shown as it is
        attributes = (await view.cluster.admin.topics.config(str(found.store_host), topic)).attributes
    try:
        return await asyncio.to_thread(by_schema, body, topic, attributes, os.environ.get(REGISTRY, "")), ""
    except Undecodable as error:
        return None, str(error)


async def _decoded(body: bytes, view: str, schema: BySchema | None) -> tuple[str, str, str]:
    """Give the name of a view, the body in it or its beginning, and a note."""

    def decode() -> tuple[str, str, str]:
        if schema is not None and (view == SCHEMA or view not in VIEWS):
            return SCHEMA, schema.text, ""
        name = view if view in VIEWS else guess(body)
        note = ""
        try:
            text = shown(body[:PART] if name in (TEXT, HEX) else body, name)
        except Undecodable as error:
            name, text, note = HEX, shown(body[:PART], HEX), str(error)
        return name, text, note

    name, text, note = await asyncio.to_thread(decode) if len(body) > THREAD_BYTES else decode()
    is_part = len(body) > PART if name in (TEXT, HEX) else len(text) > PART
    if is_part:
        note = f"{note} Only the beginning is shown; the download has all {in_bytes(len(body))}.".strip()
        text = text if name == HEX else text[:PART]
    return name, text, note


def _facts(view: View, found: MessageView, size: int) -> list[tuple[str, str, str | None]]:
    """Give the fields of the record: title, text, address."""
    packed = compression_of(found.sys_flag)
    stored = f", stored as {in_bytes(len(found.body))} of {packed.name}" if packed is not None else ""
    times = cell_text("", as_moment(found.store_timestamp_ms))
    facts: list[tuple[str, str, str | None]] = [
        ("Topic", found.topic, view.href("topics", found.topic)),
        ("Place", f"queue {found.queue_id}, offset {found.queue_offset}", None),
        ("Stored", f"{times} by {found.store_host}", None),
        ("Sent", f"{cell_text('', as_moment(found.born_timestamp_ms))} from {found.born_host}", None),
        ("Tag", found.tags or "–", None),
        ("Keys", " ".join(found.keys) or "–", None),
        ("Body", f"{in_bytes(size)}{stored}", None),
        ("Id", found.unique_key or "–", None),
        ("Id by offset", found.offset_message_id, None),
    ]
    if found.reconsume_times:
        facts.append(("Failed tries", str(found.reconsume_times), None))
    return facts


async def _place(view: View, found: MessageView) -> list[tuple[str, str]]:
    """Give the links to the neighbours in the queue."""
    info = await view.cluster.admin.cluster()
    broker = next(
        (
            name
            for name, data in info.broker_addr_table.items()
            if str(found.store_host) in map(str, data.broker_addrs.values())
        ),
        None,
    )
    if broker is None:
        return []
    before = [("Previous", found.queue_offset - 1)] if found.queue_offset else []
    return [
        (title, view.href("topics", found.topic, "queues", broker, found.queue_id, offset))
        for title, offset in (*before, ("Next", found.queue_offset + 1))
    ]


def _origin(view: View, found: MessageView) -> str | None:
    """Give the address of the message that a retry, a dead letter or a resent copy comes from."""
    properties = found.properties
    topic, message_id = properties.get(keys_of.RETRY_TOPIC), properties.get(keys_of.ORIGIN_MESSAGE_ID)
    if topic and message_id:
        return view.href("topics", topic, "messages", message_id)
    parts = properties.get(keys_of.RESENT_ID, "").split("/")
    if len(parts) == 4 and parts[2].isdecimal() and parts[3].isdecimal():
        return view.href("topics", parts[1], "queues", parts[0], parts[2], parts[3])
    return None


def _change_of_waiting(view: View, found: MessageView) -> tuple[str, str] | None:
    """Give title and address of the operation on a message that waits: for its time, or for a decision."""
    if found.topic in (names.TRANS_HALF_TOPIC, names.TRANS_CHECK_MAX_TIME_TOPIC):
        return "Check again", f"{view.href('do', 'transaction-resume')}?{urlencode({'ids': found.offset_message_id})}"
    topic = found.properties.get(keys_of.REAL_TOPIC, "")
    due = found.properties.get(keys_of.TIMER_OUT_MS, "")
    if found.topic != names.TIMER_TOPIC or not found.unique_key or names.is_retry(topic) or not due.isdecimal():
        return None
    broker = next((it.name for it in view.cluster.sampler.seen.facts if it.address == str(found.store_host)), None)
    if broker is None or int(due) <= view.cluster.clock.now_ms():
        return None
    handle = RecallHandle(topic, broker, int(due) + 1, found.unique_key).encode()
    return "Recall", f"{view.href('do', 'message-recall')}?{urlencode({'topic': topic, 'handle': handle})}"


async def body(view: View) -> Response:
    """Give the whole body as a file, as its sender saw it."""
    found = await found_message(view)
    return _file(view, (await asyncio.to_thread(body_of, found))[0], "body")


async def record(view: View) -> Response:
    """Give the whole record as a file, as the broker stores it."""
    found = await found_message(view)
    return _file(view, await view.cluster.admin.messages.record(found.offset_message_id), "record")


def _file(view: View, content: bytes, kind: str) -> Response:
    name = re.sub(r"[^A-Za-z0-9]", "", view.part("id"))[:64] or "message"
    headers = {"Content-Disposition": f'attachment; filename="{name}.{kind}"', "Cache-Control": "no-store"}
    return Response(content, media_type="application/octet-stream", headers=headers)


PAGES: Final = tuple(
    Declared(f"{before}/messages/{{id}}{behind}", make)
    for before in ("/topics/{topic}", "")
    for behind, make in (("", message), ("/body", body), ("/record", record))
)
