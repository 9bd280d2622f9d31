"""HPACK: RFC 7541's examples, any header of another encoder, and every malformed form."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from firearrow.errors import RemoteProtocolError
from firearrow.wire import hpack as hpack_module
from firearrow.wire.hpack import (
    BLOCKS_MAX,
    BLOCKS_SEEN_MAX,
    FIELDS_BYTES_MAX,
    REMEMBERED_BYTES_MAX,
    ROW_BYTES,
    RUNS_MAX,
    TABLE_BYTES_MAX,
    TEXT_BYTES_MAX,
    TEXTS_MAX,
    Decoder,
    Field,
    huffman_decoded,
    literal,
)


def fresh() -> Decoder[list[Field]]:
    """Make a decoder that gives a block's fields."""
    return Decoder(lambda before, fields: [*(before or ()), *fields])


def pairs(text: str) -> list[Field]:
    """Fields from lines of names and values."""
    return [(name.encode(), value.encode()) for name, _, value in (it.partition("=") for it in text.split("|"))]


REQUESTS = [
    ":method=GET|:scheme=http|:path=/|:authority=www.example.com",
    ":method=GET|:scheme=http|:path=/|:authority=www.example.com|cache-control=no-cache",
    ":method=GET|:scheme=https|:path=/index.html|:authority=www.example.com|custom-key=custom-value",
]
RESPONSE = "cache-control=private|date=Mon, 21 Oct 2013 20:13:21 GMT|location=https://www.example.com"
RESPONSES = [
    f":status=302|{RESPONSE}",
    f":status=307|{RESPONSE}",
    (
        ":status=200|cache-control=private|date=Mon, 21 Oct 2013 20:13:22 GMT|location=https://www.example.com"
        "|content-encoding=gzip|set-cookie=foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"
    ),
]
FIRST_LIMIT = b"\x3f\xe1\x01"  # C.5 and C.6 are for a table of 256 bytes


@pytest.mark.parametrize(
    ("block", "fields"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", "custom-key=custom-header"),
        ("040c2f73616d706c652f70617468", ":path=/sample/path"),
        ("100870617373776f726406736563726574", "password=secret"),
        ("82", ":method=GET"),
    ],
)
def test_fields_of_appendix_c2(block: str, fields: str) -> None:
    assert fresh().decode(bytes.fromhex(block)) == pairs(fields)


@pytest.mark.parametrize(
    ("prefix", "blocks", "expected"),
    [
        (
            b"",
            [
                "828684410f7777772e6578616d706c652e636f6d",
                "828684be58086e6f2d6361636865",
                "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
            ],
            REQUESTS,
        ),
        (
            b"",
            [
                "828684418cf1e3c2e5f23a6ba0ab90f4ff",
                "828684be5886a8eb10649cbf",
                "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
            ],
            REQUESTS,
        ),
        (
            FIRST_LIMIT,
            [
                (
                    "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d546e1768"
                    "747470733a2f2f7777772e6578616d706c652e636f6d"
                ),
                "4803333037c1c0bf",
                (
                    "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d4153"
                    "444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31"
                ),
            ],
            RESPONSES,
        ),
        (
            FIRST_LIMIT,
            [
                (
                    "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8"
                    "e9ae82ae43d3"
                ),
                "4883640effc1c0bf",
                (
                    "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b"
                    "3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007"
                ),
            ],
            RESPONSES,
        ),
    ],
    ids=["C.3", "C.4", "C.5", "C.6"],
)
def test_sequences_of_blocks_of_appendix_c(prefix: bytes, blocks: list[str], expected: list[str]) -> None:
    decoder = fresh()
    for number, (block, fields) in enumerate(zip(blocks, expected, strict=True)):
        assert decoder.decode((b"" if number else prefix) + bytes.fromhex(block)) == pairs(fields)


def test_the_worked_example_of_the_module_is_right() -> None:
    text = (hpack_module.__doc__ or "").partition("``a: b``: ``")[2].partition("``")[0]
    assert fresh().decode(bytes.fromhex(text)) == [(b":status", b"200"), (b"a", b"b")]


@given(st.integers(1, 61))
def test_the_static_table_is_that_of_the_rfc(row: int) -> None:
    assert fresh().decode(bytes((0x80 | row,))) == hpack.Decoder().decode(bytes((0x80 | row,)), raw=True)


# --- any header, by another encoder ---

names = st.one_of(
    st.sampled_from([b":path", b"te", b"content-type", b"grpc-timeout", b"x-mq-client-id", b"cookie"]),
    st.binary(min_size=1, max_size=30),
)
values = st.one_of(st.sampled_from([b"", b"trailers", b"application/grpc", b"1S"]), st.binary(max_size=80))
kinds = st.sampled_from(["indexed", "literal", "never"])


class Pair(RuleBasedStateMachine):
    """An encoder of another library and a decoder: blocks of all kinds, tables of any size, rows that are evicted."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = hpack.Encoder()
        self.decoder = fresh()
        self.sent: list[tuple[bytes, list[Field]]] = []

    @rule(fields=st.lists(st.tuples(names, values, kinds), max_size=20), huffman=st.booleans(), twice=st.booleans())
    def block(self, fields: list[tuple[bytes, bytes, str]], huffman: bool, twice: bool) -> None:
        plain = [(name, value) for name, value, _ in fields]
        for _ in range(1 + twice):
            encoded = b"".join(self.encoded(field, huffman) for field in fields)
            assert self.decoder.decode(encoded) == plain

    def encoded(self, field: tuple[bytes, bytes, str], huffman: bool) -> bytes:
        name, value, kind = field
        if kind == "literal":
            return literal(name, value)
        header = hpack.NeverIndexedHeaderTuple(name, value) if kind == "never" else hpack.HeaderTuple(name, value)
        return self.encoder.encode([header], huffman=huffman)

    @rule(size=st.integers(0, TABLE_BYTES_MAX))
    def limit(self, size: int) -> None:
        self.encoder.header_table_size = size
        assert self.decoder.decode(self.encoder.encode([])) == []

    @invariant()
    def tables_are_alike(self) -> None:
        entries = list(reversed(self.encoder.header_table.dynamic_entries))
        assert self.decoder._rows == entries
        assert self.decoder._bytes == sum(len(name) + len(value) + ROW_BYTES for name, value in entries)


TestPair = Pair.TestCase


@given(st.binary(max_size=300))
def test_a_huffman_code_of_any_bytes_is_read(text: bytes) -> None:
    coded = hpack.Encoder().huffman_coder.encode(text)
    assert huffman_decoded(coded) == text


@given(st.binary(max_size=12))
def test_any_bytes_are_a_huffman_code_or_refused_as_by_another_decoder(coded: bytes) -> None:
    try:
        expected = hpack.huffman_table.decode_huffman(coded)
    except hpack.HPACKDecodingError:
        with pytest.raises(RemoteProtocolError, match="Huffman"):
            huffman_decoded(coded)
    else:
        assert huffman_decoded(coded) == expected


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_a_literal_is_read_by_both_decoders(name: bytes, value: bytes) -> None:
    block = literal(name, value)
    assert fresh().decode(block) == [(name, value)] == [tuple(it) for it in hpack.Decoder().decode(block, raw=True)]


@pytest.mark.parametrize("length", [0, 126, 127, 128, 254, 255, 16_510, 16_511, 20_000])
def test_a_literal_may_have_any_length(length: int) -> None:
    assert fresh().decode(literal(b"n", bytes(length))) == [(b"n", bytes(length))]


# --- what is refused ---


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("80", "no row 0"),
        ("be", "no row 62"),
        ("ff8001", "no row 255"),
        ("7f00", "no row 63"),
        ("ffffffffff7f", r"above 2\^28"),
        ("0f8080808001", r"above 2\^28"),
        ("ff", "ends within a field"),
        ("ff80", "ends within a field"),
        ("40", "ends within a field"),
        ("400161", "ends within a field"),
        ("40016105", "ends within a field"),
        ("4003616263", "ends within a field"),
        ("00", "ends within a field"),
        ("007f", "ends within a field"),
        ("0005616263", "ends within a field"),
        ("000161", "ends within a field"),
        ("1001617f", "ends within a field"),
        ("8220", "changes behind a field"),
        ("3fe21f", "a table of 4097 bytes"),
        ("3f", "ends within a field"),
        ("000161" + "84ffffffff", "end of a text within it"),
        ("000161" + "81ff", "does not end with a prefix"),  # eight ones
        ("000161" + "8118", "does not end with a prefix"),  # zeros behind the last code
    ],
)
def test_malformed_blocks_are_refused(block: str, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        fresh().decode(bytes.fromhex(block))


def test_a_row_that_is_evicted_is_no_row() -> None:
    decoder = fresh()
    decoder.decode(bytes.fromhex("400161016240016301644001650166"))
    assert decoder.decode(b"\xbe\xbf\xc0") == [(b"e", b"f"), (b"c", b"d"), (b"a", b"b")]
    decoder.decode(b"\x3f\x25")  # 68 bytes: two rows
    assert decoder.decode(b"\xbe\xbf") == [(b"e", b"f"), (b"c", b"d")]
    with pytest.raises(RemoteProtocolError, match="no row 64"):
        decoder.decode(b"\xc0")


def test_a_row_that_is_larger_than_the_table_empties_it() -> None:
    decoder = fresh()
    decoder.decode(b"\x40\x01a\x01b")
    large = bytes(TABLE_BYTES_MAX)
    assert decoder.decode(b"\x40" + literal(b"n", large)[1:]) == [(b"n", large)]
    with pytest.raises(RemoteProtocolError, match="no row 62"):
        decoder.decode(b"\xbe")


def test_fields_are_limited_when_they_are_decoded() -> None:
    decoder = fresh()
    value = bytes(4000)
    decoder.decode(b"\x40" + literal(b"n", value)[1:])
    most = FIELDS_BYTES_MAX // (len(value) + 1 + ROW_BYTES)
    assert len(decoder.decode(b"\xbe" * most)) == most
    with pytest.raises(RemoteProtocolError, match=f"more than {FIELDS_BYTES_MAX} bytes"):
        decoder.decode(b"\xbe" * (most + 1))


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_any_bytes_are_fields_or_refused(blocks: list[bytes]) -> None:
    decoder = fresh()
    for block in blocks:
        try:
            fields = decoder.decode(block)
        except RemoteProtocolError:
            break
        assert sum(len(name) + len(value) + ROW_BYTES for name, value in fields) <= FIELDS_BYTES_MAX
    assert decoder._bytes <= TABLE_BYTES_MAX


def test_fields_that_are_too_long_are_not_understood() -> None:
    understood: list[int] = []

    def understand(before: int | None, fields: list[Field]) -> int:
        understood.append(len(fields))
        return len(fields)

    with pytest.raises(RemoteProtocolError, match="more than"):
        Decoder(understand).decode(b"\x83" * FIELDS_BYTES_MAX)
    assert understood == []


# --- what is remembered ---


def test_a_block_is_understood_until_it_is_remembered() -> None:
    understood: list[tuple[int | None, list[Field]]] = []

    def understand(before: int | None, fields: list[Field]) -> int:
        understood.append((before, fields))
        return len(understood)

    decoder = Decoder(understand)
    decoder.decode(b"\x40\x01a\x01b")
    assert [decoder.decode(b"\xbe") for _ in range(3)] == [2, 2, 2]
    assert understood[1:] == [(None, [(b"a", b"b")])]
    assert [decoder.decode(b"\xbe\x00\x01n\x011") for _ in range(2)] == [3, 4]
    assert understood[2:] == 2 * [(2, [(b"n", b"1")])]
    assert [decoder.decode(b"\x00\x01n\x011") for _ in range(4)] == [5, 6, 6, 6]
    decoder.decode(b"\x40\x01c\x01d")
    assert decoder.decode(b"\xbe") == 8
    assert understood[-1] == (None, [(b"c", b"d")])


def test_rows_that_blocks_begin_with_are_those_of_the_present_table() -> None:
    decoder = fresh()
    decoder.decode(b"\x40\x01a\x01b")
    assert decoder.decode(b"\x83\xbe\x00\x01n\x011") == [(b":method", b"POST"), (b"a", b"b"), (b"n", b"1")]
    decoder.decode(b"\x83\xbe\x40\x01c\x01d")
    assert decoder.decode(b"\x83\xbe\x00\x01n\x012")[1] == (b"c", b"d")


def test_what_is_remembered_is_limited() -> None:
    decoder = fresh()
    for number in 2 * [*range(2 * BLOCKS_MAX)] + [number // 2 for number in range(4 * BLOCKS_MAX)]:
        decoder.decode(literal(b"n", b"%08d" % number))
    assert (len(decoder._blocks), len(decoder._seen)) == (BLOCKS_MAX, BLOCKS_SEEN_MAX)
    other = fresh()
    for _ in range(2):
        other.decode(literal(b"n", bytes(REMEMBERED_BYTES_MAX)))
    assert other._blocks == {}
    for count in range(1, 2 * RUNS_MAX):
        other.decode(b"\x83" * count)
    assert len(other._runs) == RUNS_MAX


def test_blocks_that_never_repeat_are_not_remembered() -> None:
    decoder = fresh()
    for number in range(10 * BLOCKS_MAX):
        decoder.decode(literal(b"id", b"%08d" % number))
    assert decoder._blocks == {}
    assert len(decoder._seen) == BLOCKS_SEEN_MAX


def test_texts_are_remembered_by_all_connections_up_to_a_limit() -> None:
    coded = hpack.Encoder().huffman_coder.encode
    remembered = hpack_module._remembered
    for number in range(TEXTS_MAX + 10):
        text = coded(b"%08d" % number)
        fresh().decode(b"\x00\x01n" + bytes((0x80 | len(text),)) + text)
    before = remembered.cache_info()
    assert before.currsize == TEXTS_MAX
    assert fresh().decode(b"\x00\x01n" + bytes((0x80 | len(text),)) + text) == [(b"n", b"%08d" % number)]
    long = coded(bytes(b"x" * (TEXT_BYTES_MAX * 2)))
    assert len(long) > TEXT_BYTES_MAX
    fresh().decode(b"\x00\x01n\xff" + bytes((len(long) - 127 | 0x80, (len(long) - 127) >> 7)) + long)
    after = remembered.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)
