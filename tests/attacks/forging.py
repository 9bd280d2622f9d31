"""Bytes of a body that are a record in every respect, its place included.

Who sends a message learns its place from the answer, and so where the next one will be.
"""

from __future__ import annotations

from firearrow.message.hosts import Host, pack_host
from firearrow.message.ids import encode_offset_id
from firearrow.message.record import encode_record
from tests.broker.serving import Caller
from tests.store.stores import BORN_HOST, BORN_MS

BODY_AT = 88  # of a record, if its hosts are of IPv4


def record(place: int, topic: str, properties: str = "", queue_offset: int = 0, body: bytes = b"forged") -> bytes:
    """A record that says that it begins at ``place``, of queue 0 of a topic."""
    stored_by = pack_host(("127.0.0.1", 10911))
    return encode_record(
        topic, body, properties.encode(), 0, queue_offset, place, 0, 0, BORN_MS, BORN_HOST, BORN_MS, stored_by
    )


def place_of(sent: dict[str, str]) -> int:
    """Where a message that was sent is."""
    return int(sent["msgId"][-16:], 16)


async def sent_within(
    caller: Caller, topic: str, properties: str = "", queue_offset: int = 0, *, through: str = "T", longer_by: int = 0
) -> int:
    """Send a message to ``through`` whose body is a record of a topic; give the record's place.

    ``longer_by``: the record claims so many bytes of what follows in the log as its body.
    """
    first = await caller.sent(b"", through)
    second = await caller.sent(b"", through)
    place = 2 * place_of(second) - place_of(first) + BODY_AT  # both are as long
    forged = record(place, topic, properties, queue_offset)
    if longer_by:
        forged = (len(forged) + longer_by).to_bytes(4) + forged[4:]
        body_size = int.from_bytes(forged[84:88]) + longer_by
        forged = forged[:84] + body_size.to_bytes(4) + forged[88:]
    sent = await caller.sent(forged, through)
    assert place_of(sent) + BODY_AT == place, "else the test attacks nothing"
    return place


def message_id(place: int) -> str:
    """The id by which a client names a place."""
    return encode_offset_id(Host("127.0.0.1", 10911), place)
