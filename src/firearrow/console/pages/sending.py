"""Form that sends a message; its address with values is a template to keep."""

from __future__ import annotations

from typing import Final

from firearrow.cli.messages.bodyviews import body_of
from firearrow.cli.messages.commands import message_of
from firearrow.console.page import Declared, Page, View
from firearrow.console.pages.find import topics_of
from firearrow.message import properties as keys_of

FIELDS: Final = ("topic", "body", "tag", "delay", "deliver_at", "sharding_key", "broker", "queue")
SPARE: Final = 2
"""Empty inputs behind those of keys and properties."""


async def send(view: View) -> Page:
    """Show the form, filled in from the address or like a message."""
    query = view.request.query_params
    given = {name: query.get(name, "") for name in FIELDS}
    keys, properties = query.getlist("key"), query.getlist("properties")
    note = ""
    if like := query.get("like"):
        message = await message_of(view.cluster.admin, like, query.get("topic"))
        copy = message.copy(message.properties.get(keys_of.RETRY_TOPIC, message.topic))
        given |= {"topic": copy.topic, "tag": copy.tags or ""}
        keys = copy.keys
        kept = {name: value for name, value in copy.properties.items() if name not in (keys_of.TAGS, keys_of.KEYS)}
        given["sharding_key"] = kept.pop(keys_of.SHARDING_KEY, "")
        properties = [f"{name}={value}" for name, value in kept.items()]
        try:
            given["body"] = body_of(message)[0].decode()
        except UnicodeDecodeError:
            note = "The body of that message is not text, so it is not here. “Resend” on its page sends it unchanged."
    context = {
        "given": given,
        "keys": [*filter(None, keys), *[""] * SPARE],
        "properties": [*filter(None, properties), *[""] * SPARE],
        "topics": topics_of(view),
        "note": note,
    }
    return Page("send.html", "Send a message", context)


PAGES: Final = (Declared("/send", send),)
