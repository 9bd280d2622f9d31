"""Whatever bytes come, the codec gives commands or one sentence that says why not."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import BrokerError, MessageError
from firearrow.wire import bodies, fastjson
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Command, fields_of
from firearrow.wire.frame import Connection
from firearrow.wire.hotheaders import hot_decoders
from firearrow.wire.registerbody import RegisterBody
from tests.fuzz.strategies import FIELD_NAMES, HEADER_TYPES, field_values, json_values, streams
from tests.wire.strategies import split

ALL_CODES = tuple(code.value for code in RequestCode if code < 2**15)
BODY_TYPES: list[type[msgspec.Struct]] = [
    *(kind for kind in vars(bodies).values() if isinstance(kind, type) and issubclass(kind, bodies.Body)),
    RegisterBody,
]


@given(streams(ALL_CODES), st.data())
def test_a_stream_in_any_split_gives_the_same(pieces: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(pieces)
    whole, parts = Connection(4096, hot_decoders()), Connection(4096, hot_decoders())
    expected = whole.receive(stream)
    got = [command for piece in data.draw(split(stream)) for command in parts.receive(piece)]
    assert got == expected
    assert parts.violation == whole.violation
    assert parts.held_bytes == whole.held_bytes <= 4096 + 4


@given(st.sampled_from(HEADER_TYPES), st.dictionaries(st.sampled_from(FIELD_NAMES), field_values))
def test_any_fields_are_a_header_or_a_refusal(kind: type[msgspec.Struct], fields: dict[str, str]) -> None:
    with contextlib.suppress(BrokerError):
        assert type(fields_of(Command(1, fields), kind)) is kind


def register_body(data: bytes) -> Any:
    return RegisterBody.decode(data, compressed=True)


@pytest.mark.parametrize(
    "read",
    [fastjson.loads, register_body, *(partial(fastjson.decode, type_=kind) for kind in BODY_TYPES)],
    ids=["loads", "register_body", *(kind.__name__ for kind in BODY_TYPES)],
)
@given(data=st.binary(max_size=100) | json_values.map(fastjson.dumps))
def test_any_body_is_read_or_refused(read: Callable[[bytes], Any], data: bytes) -> None:
    with contextlib.suppress(MessageError):
        read(data)
