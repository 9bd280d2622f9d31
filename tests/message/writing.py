"""What brokers only read of messages, as tests write or read it the other way round."""

from struct import Struct
from typing import NamedTuple

from firearrow.message import properties as properties_codec
from firearrow.message.compress import Compression
from firearrow.message.hosts import pack_host, unpack_address
from firearrow.message.model import MessageView
from firearrow.message.record import encode_record
from firearrow.message.sysflag import COMPRESSED, COMPRESSION_MASK, COMPRESSION_SHIFT

_CLIENT_AND_MOMENT = Struct(">HiiH")


class UniqueId(NamedTuple):
    """What a client put into a unique id."""

    ip: str
    pid: int
    loader_hash: int
    since_month_ms: int
    counter: int


def decode_unique_id(text: str) -> UniqueId:
    """Read a unique id."""
    raw = bytes.fromhex(text)
    assert len(raw) in (16, 28)
    return UniqueId(unpack_address(raw[:-12]), *_CLIENT_AND_MOMENT.unpack(raw[-12:]))


def with_compression(sys_flag: int, kind: Compression) -> int:
    """Return a system flag that says the body is compressed, and how."""
    return sys_flag & ~COMPRESSION_MASK | COMPRESSED | kind << COMPRESSION_SHIFT


def encode_view(view: MessageView) -> bytes:
    """Return the record of a decoded message, for instance after its topic was replaced."""
    return encode_record(
        view.topic,
        view.body,
        properties_codec.encode(view.properties),
        view.queue_id,
        view.queue_offset,
        view.physical_offset,
        view.flag,
        view.sys_flag,
        view.born_timestamp_ms,
        pack_host(view.born_host),
        view.store_timestamp_ms,
        pack_host(view.store_host),
        view.reconsume_times,
        view.prepared_transaction_offset,
    )
