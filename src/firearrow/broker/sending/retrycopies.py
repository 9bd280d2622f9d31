"""Retry copies: the copy of a message that a consumer group failed to consume, for its redelivery.

The copy has the message's first topic (``RETRY_TOPIC``) and its offset message id there (``ORIGIN_MESSAGE_ID``). The
sender of the message waits for it no more (``WAIT``).

Nearly all copies are *plain*: their properties equal the message's but for a few bytes in other places, so they are cut
out and joined. To decode and encode all of them takes as long as everything else that the broker does for a copy.
`plain_copies` says which copies are plain: copies of a message that fails for the first time and was sent like clients
do, or whose properties end like a plain copy's. `copy_of` serves all others, and gives the same for plain ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from firearrow.broker.sending.puts import UnstoredMessage, asks_nothing, draft_of_content
from firearrow.message import properties
from firearrow.message.hosts import unpack_host
from firearrow.message.ids import encode_offset_id
from firearrow.message.record import Content
from firearrow.message.sysflag import INNER_BATCH, TRANSACTION_PREPARED

_WAIT: Final = b"WAIT\x01"
_WAITS: Final = b"\x02WAIT\x01true\x02"
_WAITS_NOT: Final = b"\x02WAIT\x01false\x02"
_NOTED: Final = (b"RETRY_TOPIC\x01", b"ORIGIN_MESSAGE_ID\x01", b"TRAN_MSG\x01")
# Properties of nearly every message. All names that matter have an underscore, too, or are DELAY.
_USUAL: Final = b"UNIQ_KEY\x01", b"MSG_REGION\x01", b"TRACE_ON\x01"
_PAIR_END: Final = b"\x02"
_MARK: Final = b"\x03"
_END: Final = _PAIR_END + _MARK
_NO_MORE: Final = _WAITS_NOT + _MARK
_NEVER_PLAIN: Final = INNER_BATCH | TRANSACTION_PREPARED
"""A batch that is one record can't be sent back; a prepared or rolled back message is not delayed."""
_OFFSET_DIGITS: Final = 16

_RETRY_TOPIC: Final = b"\x02RETRY_TOPIC\x01"
# End of the properties of a copy that has waited, as `plain_copies` and the delay write them.
_NOTES: Final = re.compile(
    rb"(RETRY_TOPIC\x01([^\x01\x02]+)\x02ORIGIN_MESSAGE_ID\x01[0-9A-F]+)\x02"
    rb"DELAY\x01[0-9]+\x02REAL_TOPIC\x01[^\x01\x02]+\x02REAL_QID\x01[0-9]+\x02"
)


PlainCopy: TypeAlias = tuple[bytes, str]
"""Encoded properties of a copy without those about its delay, and a separator before them; and the first topic of the
message."""


def plain_copies(contents: Sequence[Content]) -> list[PlainCopy]:
    """Return the plain copies of failed messages, up to the first whose copy may not be plain."""
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
    """Return the properties of the next copy of a plain copy."""
    at = stored.rfind(_RETRY_TOPIC) + 1
    again = _NOTES.fullmatch(stored, at) if at else None
    kept = stored[:at]
    if again is None or kept.count(_WAIT) != 1 or kept.find(_WAITS_NOT) < 0 or not _asks_nothing(kept):
        return None
    return kept + again[1], str(again[2], "utf-8", "replace")


def copy_of(content: Content) -> UnstoredMessage:
    """Return the copy of a failed message, without its destination."""
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
    """Return the properties of copies of messages that fail for the first time, without the separator at the end.

    Return nothing if one of them must be decoded, or if they are not alike. One search runs over all of them as one
    text: for 32 messages that takes a third of the time. Properties are alike if all say whether their senders wait, or
    none does, as with clients other than Java's; and if all end with a separator, or none does, as with members of a
    batch.
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
    # If one said twice that its sender waits, and another did not, or if one has an end within, or none in its place,
    # then lengths or numbers differ.
    longer -= is_closed
    return found if [*map(len, found)] == [len(it) + longer for it in several] else []


def _asks_nothing(stored: bytes) -> bool:
    """Return whether properties have no names that matter when a copy is made or put.

    The check takes half of the time if no name but three has an underscore.
    """
    others = stored.count(b"_")
    for name in _USUAL:
        if others:
            others -= stored.count(name)
    if not others and stored.find(b"DELAY") < 0:
        return True
    return asks_nothing(stored) and properties.lacks(stored, _NOTED)


def _closed(stored: bytes) -> bytes:
    """Return properties in a form that others can be appended to. A batch's member has no separator at their end."""
    return stored if stored.endswith(_PAIR_END) or not stored else stored + _PAIR_END


@lru_cache(maxsize=1024)  # topics, usually of one broker
def _first_notes(topic: str, store_host: bytes) -> bytes:
    """Return the added properties of a copy of a message that fails for the first time, without the offset that ends
    the id."""
    prefix = encode_offset_id(unpack_host(store_host), 0)[:-_OFFSET_DIGITS]
    return f"\x02RETRY_TOPIC\x01{topic}\x02ORIGIN_MESSAGE_ID\x01{prefix}".encode()
