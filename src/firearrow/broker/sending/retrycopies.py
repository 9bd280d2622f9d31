"""Retry copies: the copy of a message that a consumer group failed to consume, which comes again.

The copy says of which topic the message was at first (``RETRY_TOPIC``) and which offset message id
it had there (``ORIGIN_MESSAGE_ID``); its sender waits for it no more (``WAIT``).

Nearly all copies are *plain*: their properties are those of the message with a few bytes in other
places, so they are cut out and joined. To read them all and to write them again takes as long as
all the rest that the broker does about it. What is plain is said by `plain_copies`: a message that
fails for the first time and was sent as clients do, or one whose properties end as those of a copy
that was plain itself. For all others there is `copy_of`, which gives the same for those, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from firearrow.broker.sending.puts import Draft, asks_nothing, draft_of_content
from firearrow.message import properties
from firearrow.message.hosts import unpack_host
from firearrow.message.ids import encode_offset_id
from firearrow.message.record import Content
from firearrow.message.sysflag import INNER_BATCH, TRANSACTION_PREPARED

_WAIT: Final = b"WAIT\x01"
_WAITS: Final = b"\x02WAIT\x01true\x02"
_WAITS_NOT: Final = b"\x02WAIT\x01false\x02"
_NOTED: Final = (b"RETRY_TOPIC\x01", b"ORIGIN_MESSAGE_ID\x01", b"TRAN_MSG\x01")
# What nearly every message has. All that is looked for has an underscore, too, or is DELAY.
_USUAL: Final = b"UNIQ_KEY\x01", b"MSG_REGION\x01", b"TRACE_ON\x01"
_PAIR_END: Final = b"\x02"
_MARK: Final = b"\x03"
_END: Final = _PAIR_END + _MARK
_NO_MORE: Final = _WAITS_NOT + _MARK
_NEVER_PLAIN: Final = INNER_BATCH | TRANSACTION_PREPARED
"""A batch that is one record can't be sent back; what is prepared, or rolled back, is not delayed.
"""
_OFFSET_DIGITS: Final = 16

_RETRY_TOPIC: Final = b"\x02RETRY_TOPIC\x01"
# How the properties of a copy end that has waited, as `plain_copies` and the delay write them.
_NOTES: Final = re.compile(
    rb"(RETRY_TOPIC\x01([^\x01\x02]+)\x02ORIGIN_MESSAGE_ID\x01[0-9A-F]+)\x02"
    rb"DELAY\x01[0-9]+\x02REAL_TOPIC\x01[^\x01\x02]+\x02REAL_QID\x01[0-9]+\x02"
)


PlainCopy: TypeAlias = tuple[bytes, str]
"""The properties of a copy as they are stored, but for those about its delay, and a separator
before them; and the topic of which the message was at first."""


def plain_copies(contents: Sequence[Content]) -> list[PlainCopy]:
    """Give failed messages as the plain copies that they become, up to the first that may become
    another."""
    copies: list[PlainCopy] = []
    alike = _left_unread([content.properties for content in contents])
    for number, content in enumerate(contents):
        if content.sys_flag & _NEVER_PLAIN:
            break
        kept = alike[number] if alike else next(iter(_left_unread([content.properties])), None)
        if kept is not None:  # and so no RETRY_TOPIC
            topic, offset = content.topic, content.physical_offset
            notes = _first_notes(topic, content.store_host)
            copies.append((b"%b%b%016X" % (kept, notes, offset), topic))
            continue
        again = _again(_closed(content.properties))
        if again is None:
            break
        copies.append(again)
    return copies


def _again(stored: bytes) -> PlainCopy | None:
    """Properties of a copy that was plain itself, as its own copy has them."""
    at = stored.rfind(_RETRY_TOPIC) + 1
    again = _NOTES.fullmatch(stored, at) if at else None
    kept = stored[:at]
    if again is None or kept.count(_WAIT) != 1 or kept.find(_WAITS_NOT) < 0 or not _asks_nothing(kept):
        return None
    return kept + again[1], str(again[2], "utf-8", "replace")


def copy_of(content: Content) -> Draft:
    """Give a failed message as it comes again, but for where it goes."""
    kept = _left_unread([content.properties])
    if kept:
        stored, found = kept[0] + _PAIR_END, {}
    else:
        stored, found = b"", properties.parse(content.properties)
        found[properties.WAIT_STORE] = "false"
    found.setdefault(properties.RETRY_TOPIC, content.topic)
    if not found.get(properties.ORIGIN_MESSAGE_ID, "").strip():
        host = unpack_host(content.store_host)
        found[properties.ORIGIN_MESSAGE_ID] = encode_offset_id(host, content.physical_offset)
    draft = draft_of_content(content, stored, found)
    draft.reconsume_times += 1
    return draft


def _left_unread(several: Sequence[bytes]) -> list[bytes]:
    """Properties of messages that fail for the first time, as their copies have them, but for the
    separator at the end; nothing if one has to be read for that, or if they are not alike.

    They are looked through as one text: for 32 messages that takes a third of the time. Alike are
    those that all say whether their senders wait, or none does, as that of clients other than
    Java's; and that all end with a separator, or none does, as those of a batch's members.
    """
    if not several:
        return []
    is_closed = several[0].endswith(_PAIR_END)
    mark = _MARK if is_closed else _END
    text = mark.join(several) + mark
    if text.find(_WAIT) >= 0:  # `in` takes seven times as long: it first tries a number
        kept, longer = text.replace(_WAITS, _WAITS_NOT), len(_WAITS_NOT) - len(_WAITS)
        if text.count(_WAIT) != len(several):
            return []
    else:
        kept, longer = text.replace(_END, _NO_MORE), len(_NO_MORE) - len(_END)
    if not _asks_nothing(text[:-1]) or (not is_closed and text.find(_PAIR_END + _END) >= 0):
        return []
    found = kept.split(_END)
    found.pop()
    # If one said twice that its sender waits, and another did not, or if one has an end within,
    # or none in its place, then lengths or numbers differ.
    longer -= is_closed
    return found if [*map(len, found)] == [len(it) + longer for it in several] else []


def _asks_nothing(stored: bytes) -> bool:
    """Tell whether properties have nothing of what is looked at when a copy is made or put. That is
    found in half of the time where no other name than three has an underscore."""
    others = stored.count(b"_")
    for name in _USUAL:
        if others:
            others -= stored.count(name)
    if not others and stored.find(b"DELAY") < 0:
        return True
    return asks_nothing(stored) and properties.lacks(stored, _NOTED)


def _closed(stored: bytes) -> bytes:
    """Properties that others may follow. Those of a batch's member end without a separator."""
    return stored if stored.endswith(_PAIR_END) or not stored else stored + _PAIR_END


@lru_cache(maxsize=1024)  # topics, usually of one broker
def _first_notes(topic: str, store_host: bytes) -> bytes:
    """Give the properties of a copy of a message that fails for the first time. The offset follows, with which the id
    of the message ends."""
    prefix = encode_offset_id(unpack_host(store_host), 0)[:-_OFFSET_DIGITS]
    return f"\x02RETRY_TOPIC\x01{topic}\x02ORIGIN_MESSAGE_ID\x01{prefix}".encode()
