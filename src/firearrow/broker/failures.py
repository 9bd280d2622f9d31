"""What becomes of a message that a consumer group failed to consume: a copy of it that comes again.

The copy says of which topic the message was at first (``RETRY_TOPIC``) and which offset message id
it had there (``ORIGIN_MESSAGE_ID``); its sender waits for it no more (``WAIT``).

Nearly all copies are *plain*: their properties are those of the message with a few bytes in other
places, so they are cut out and joined. To read them all and to write them again takes as long as
all the rest that the broker does about it. What is plain is said by `plain_copy`: a message that
fails for the first time and was sent as clients do, or one whose properties end as those of a copy
that was plain itself. For all others there is `copy_of`, which gives the same for those, too.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import msgspec

from firearrow.broker.puts import Draft, asks_nothing, draft_of_content
from firearrow.message import properties
from firearrow.message.hosts import unpack_host
from firearrow.message.ids import encode_offset_id
from firearrow.message.record import Content
from firearrow.message.sysflag import TRANSACTION_PREPARED

_WAIT: Final = b"WAIT\x01"
_WAITS: Final = b"\x02WAIT\x01true\x02"
_WAITS_NOT: Final = b"\x02WAIT\x01false\x02"
_NO_MORE: Final = b"WAIT\x01false\x02"
_NOTED: Final = (b"RETRY_TOPIC\x01", b"ORIGIN_MESSAGE_ID\x01", b"TRAN_MSG\x01")
# What nearly every message has. All that is looked for has an underscore, too, or is DELAY.
_USUAL: Final = b"UNIQ_KEY\x01", b"MSG_REGION\x01", b"TRACE_ON\x01"
_PAIR_END: Final = b"\x02"
_OFFSET_DIGITS: Final = 16

_RETRY_TOPIC: Final = b"\x02RETRY_TOPIC\x01"
# How the properties of a copy end that has waited, as `plain_copy` and the delay write them.
_NOTES: Final = re.compile(
    rb"(RETRY_TOPIC\x01([^\x01\x02]+)\x02ORIGIN_MESSAGE_ID\x01[0-9A-F]+\x02)"
    rb"DELAY\x01[0-9]+\x02REAL_TOPIC\x01[^\x01\x02]+\x02REAL_QID\x01[0-9]+\x02"
)


class PlainCopy(msgspec.Struct, gc=False):
    """The properties of a copy, as they are stored, but for those about its delay; ``origin`` is
    the topic of which the message was at first."""

    stored: bytes
    origin: str


def plain_copy(content: Content) -> PlainCopy | None:
    """Give a failed message as the plain copy that it becomes; None if it may become another."""
    if content.sys_flag & TRANSACTION_PREPARED:  # or rolled back: such a one is not delayed
        return None
    stored = _closed(content.properties)
    kept = _left_unread(stored)
    if kept is not None:  # and so no RETRY_TOPIC
        topic = content.topic
        notes = _first_notes(topic, content.store_host)
        return PlainCopy(b"%b%b%016X\x02" % (kept, notes, content.physical_offset), topic)
    at = stored.rfind(_RETRY_TOPIC) + 1
    again = _NOTES.fullmatch(stored, at) if at else None
    kept = stored[:at]
    if (
        again is None
        or kept.count(_WAIT) != 1
        or kept.find(_WAITS_NOT) < 0
        or not _asks_nothing(kept)
    ):
        return None
    return PlainCopy(kept + again[1], str(again[2], "utf-8", "replace"))


def copy_of(content: Content) -> Draft:
    """Give a failed message as it comes again, but for where it goes."""
    stored, found = _left_unread(_closed(content.properties)), {}
    if stored is None:
        stored, found = b"", properties.parse(content.properties)
        found[properties.WAIT_STORE] = "false"
    found.setdefault(properties.RETRY_TOPIC, content.topic)
    if not found.get(properties.ORIGIN_MESSAGE_ID, "").strip():
        host = unpack_host(content.store_host)
        found[properties.ORIGIN_MESSAGE_ID] = encode_offset_id(host, content.physical_offset)
    draft = draft_of_content(content, stored, found)
    draft.reconsume_times += 1
    return draft


def _left_unread(stored: bytes) -> bytes | None:
    """Properties of a message that fails for the first time, as its copy has them; None if they
    have to be read for that. Clients other than Java's may not say whether they wait."""
    said = stored.count(_WAIT)  # `in` takes seven times as long: it first tries a number
    kept = stored.replace(_WAITS, _WAITS_NOT) if said else stored + _NO_MORE
    if said > 1 or len(kept) == len(stored):
        return None
    return kept if _asks_nothing(stored) else None


def _asks_nothing(stored: bytes) -> bool:
    """Whether properties have nothing of what is looked at when a copy is made or put. That is
    found in half of the time where no other name than three has an underscore."""
    others = stored.count(b"_")
    if others:
        for name in _USUAL:
            if stored.find(name) >= 0:
                others -= 1
    if not others and stored.find(b"DELAY") < 0:
        return True
    return asks_nothing(stored) and properties.lacks(stored, _NOTED)


def _closed(stored: bytes) -> bytes:
    """Properties that others may follow. Those of a batch's member end without a separator."""
    return stored if stored.endswith(_PAIR_END) or not stored else stored + _PAIR_END


@lru_cache(maxsize=1024)  # topics, usually of one broker
def _first_notes(topic: str, store_host: bytes) -> bytes:
    """What a copy says of a message of a topic that fails for the first time; the offset, with
    which the id of the message ends, is to follow."""
    prefix = encode_offset_id(unpack_host(store_host), 0)[:-_OFFSET_DIGITS]
    return f"RETRY_TOPIC\x01{topic}\x02ORIGIN_MESSAGE_ID\x01{prefix}".encode()
