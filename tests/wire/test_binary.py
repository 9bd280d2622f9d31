"""RocketMQ's binary header: what is read by the shape of an earlier one is what stands there."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import RemoteProtocolError
from firearrow.wire.binary import KIND_BINARY, SHAPES_MAX, binary_field, number_field, success_frame
from firearrow.wire.command import Command, Response
from firearrow.wire.frame import Connection, decode_header, encode_request, encode_response
from tests.wire.strategies import int32

Field = tuple[bytes, bytes]

# So few and so short that many headers look alike, and differ where it matters.
few_texts = st.text("ab", max_size=2).map(str.encode)
few_fields = st.lists(st.tuples(few_texts, few_texts), max_size=3)


def header_of(fields: list[Field], remark: bytes = b"") -> bytes:
    ext = b"".join(
        struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value for name, value in fields
    )
    fixed = struct.pack(">hbhiii", 14, 0, 513, 7, 0, len(remark))
    return fixed + remark + struct.pack(">i", len(ext)) + ext


def read_plainly(header: bytes) -> dict[str, str] | None:
    """The fields by the layout alone, without memory; None if there is anything wrong."""
    try:
        [remark_bytes] = struct.unpack_from(">i", header, 13)
        at = 17 + remark_bytes
        [ext_bytes] = struct.unpack_from(">i", header, at)
        at += 4
        end = at + ext_bytes
        if remark_bytes < 0 or ext_bytes < 0 or end > len(header):
            return None
        header[17 : 17 + remark_bytes].decode()
        fields = {}
        while at < end:
            pair = []
            for length in (">h", ">i"):
                [size] = struct.unpack_from(length, header, at)
                at += struct.calcsize(length)
                if size < 0 or at + size > end:
                    return None
                pair.append(header[at : at + size].decode())
                at += size
            fields[pair[0]] = pair[1]
        return fields
    except (struct.error, UnicodeDecodeError):
        return None


def read(header: bytes) -> dict[str, str] | None:
    try:
        fields: dict[str, str] = decode_header(KIND_BINARY, header).ext
    except RemoteProtocolError:
        return None
    return fields


@given(st.lists(few_fields, min_size=2, max_size=8))
def test_headers_that_look_alike_are_told_apart(sent: list[list[Field]]) -> None:
    for fields in sent:
        expected = {name.decode(): value.decode() for name, value in fields}
        assert read(header_of(fields)) == expected
        assert read(header_of(fields, b"remark")) == expected


@given(few_fields, st.data())
def test_a_header_that_nearly_looks_like_an_earlier_one_is_refused_as_ever(
    fields: list[Field], data: st.DataObject
) -> None:
    whole = header_of(fields)
    read(whole)
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(13, len(whole) - 1))
        changed[at] = data.draw(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFF]))
    cut = bytes(changed[: data.draw(st.integers(0, len(whole)))])
    for header in (bytes(changed), cut, whole[: len(cut)]):
        assert read(header) == (read_plainly(header) if len(header) >= 17 else None)


def test_more_shapes_than_are_kept() -> None:
    for _ in range(2):
        for size in range(SHAPES_MAX + 50):
            value = "x" * size
            [command] = Connection().receive(encode_request(Command(14, {"topic": value, "group": "g"}, binary=True)))
            assert command.ext == {"topic": value, "group": "g"}


@given(int32, int32, st.text(), st.binary())
def test_a_frame_of_formatted_fields_is_that_of_the_general_encoder(
    opaque: int, number: int, text: str, body: bytes
) -> None:
    digits = b"%d" % number
    fields = binary_field("text", text) + number_field("number") % (len(digits), digits)
    response = Response(0, None, {"text": text, "number": number}, body)
    assert success_frame(opaque, fields, body) == encode_response(response, opaque, binary=True)


@pytest.mark.parametrize("name", ["", "x", "näme"])
def test_a_field_without_value_ends_before_its_length(name: str) -> None:
    assert binary_field(name) + b"\0\0\0\0" == binary_field(name, "")
