"""Frames from sound to rotten."""

import json
from typing import Any

import msgspec
from hypothesis import strategies as st

from firearrow.wire import headers
from firearrow.wire.codes import FLAG_ONEWAY
from firearrow.wire.command import Command
from firearrow.wire.frame import encode_request
from tests.wire.strategies import int32, int64, json_frame, texts

HEADER_TYPES: list[type[msgspec.Struct]] = [
    kind
    for kind in vars(headers).values()
    if isinstance(kind, type) and issubclass(kind, headers.Header) and kind is not headers.Header
]

FIELD_NAMES = sorted({field.encode_name for kind in HEADER_TYPES for field in msgspec.structs.fields(kind)})

field_values = st.one_of(
    st.sampled_from(["T", "TBW102", "g", "broker-a", "C", "127.0.0.1:1", "ORDER_TOPIC_CONFIG"]),
    st.sampled_from(["0", "1", "-1", "true", "false", "", "null", "{}", "\0", "é", "%RETRY%g"]),
    int32.map(str),
    int64.map(str),
    texts,
)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), int64, st.floats(allow_nan=False), texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
register_body = json.dumps(
    {
        "topicConfigSerializeWrapper": {
            "dataVersion": {"counter": 1},
            "topicConfigTable": {"T": {"topicName": "T"}, "U": {"topicName": "U"}},
        }
    }
).encode()
bodies = st.one_of(
    st.just(b""),
    st.just(register_body),
    st.binary(max_size=60),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.sampled_from([b"orderMessageEnable=true\n", b"a=b\nc", b"[" * 5000, b"\x78\x9c"]),
)


def requests(codes: tuple[int, ...]) -> st.SearchStrategy[Command[dict[str, str]]]:
    """Well-formed requests with a content of any kind."""
    fields = st.dictionaries(st.sampled_from(FIELD_NAMES), field_values, max_size=12)
    return st.builds(
        Command[dict[str, str]],
        code=st.sampled_from(codes),
        ext=fields,
        opaque=int32,
        flag=st.sampled_from([0, 0, 0, FLAG_ONEWAY]),
        version=st.sampled_from([0, 317, 513]),
        body=bodies,
    )


@st.composite
def damaged(draw: st.DrawFn, sound: st.SearchStrategy[bytes]) -> bytes:
    """A frame with some bytes changed, left out or put in."""
    data = bytearray(draw(sound))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 3)))
        data[at:end] = draw(st.binary(max_size=3))
    return bytes(data)


def streams(codes: tuple[int, ...]) -> st.SearchStrategy[list[bytes]]:
    """What a peer gone mad might send, in pieces."""
    sound = requests(codes).map(encode_request)
    odd_header = st.dictionaries(
        st.sampled_from(["code", "extFields", "flag", "opaque", "language", "version", "remark"]),
        json_values,
        max_size=7,
    ).map(json_frame)
    lengths = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)).map(
        lambda pair: pair[0].to_bytes(4) + pair[1].to_bytes(4)
    )
    return st.lists(st.one_of(sound, damaged(sound), odd_header, lengths, st.binary(max_size=40)), max_size=6)
