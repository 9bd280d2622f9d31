"""HPACK: the compression of HTTP/2's header fields.

A *block* is a sequence of fields. Each refers to the static table of 61 rows or to the connection's dynamic table, or
has its name and value as literals, as they are or in a Huffman code:

=========== ========================================================================
first byte  field
=========== ========================================================================
``1xxxxxxx`` row x of the tables
``01xxxxxx`` name of row x (0: a literal follows), literal value; becomes the newest row
``001xxxxx`` new limit of the dynamic table, in bytes
``000xxxxx`` as ``01``, but does not become a row (``0001``: must never be one)
=========== ========================================================================

A number that fills its x bits with ones goes on in the next bytes, 7 bits each. A literal is its length (7 bits, behind
the bit that tells of a Huffman code) and its bytes.

Two things make it cheap. Huffman codes are read byte by byte by a table of the states between codes; a row of it is
made when a text first needs it. That takes 4 µs for a UUID, bit by bit it takes 12. Texts that repeat are remembered,
by all connections together. The meaning of the rows at the beginning of a block is remembered, which saves 3 µs of
each call: RocketMQ's clients give each an id, so that no whole block comes again. A block without such a beginning is
remembered when it comes again.

Worked example, ``:status: 200`` and ``a: b``: ``88 00 01 61 01 62``.

Source: RFC 7541.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Final, Generic, TypeVar

from firearrow.errors import RemoteProtocolError

T = TypeVar("T")
Field = tuple[bytes, bytes]

TABLE_BYTES_MAX: Final = 4096  # RFC 7540: the limit of the dynamic table unless SETTINGS say otherwise
ROW_BYTES: Final = 32  # RFC 7541, 4.1: added to name and value of each row
FIELDS_BYTES_MAX: Final = 64 * 1024  # of a block when decoded: a page of 4 KiB of indexes could mean megabytes
TEXTS_MAX: Final = 4096  # remembered texts of all connections
BLOCKS_MAX: Final = 256  # remembered blocks of a connection
RUNS_MAX: Final = 16  # remembered beginnings of blocks of a connection: a client has some five methods
BLOCKS_SEEN_MAX: Final = 4  # a block that comes again among so many is remembered
TEXT_BYTES_MAX: Final = 128  # longer texts are not remembered
REMEMBERED_BYTES_MAX: Final = 1024  # longer blocks are not remembered

_STATIC: Final[tuple[Field, ...]] = tuple(
    (name, value.replace(b"_", b" "))
    for name, _, value in (
        row.partition(b"=")
        for row in (
            b":authority :method=GET :method=POST :path=/ :path=/index.html :scheme=http :scheme=https :status=200 "
            b":status=204 :status=206 :status=304 :status=400 :status=404 :status=500 accept-charset "
            b"accept-encoding=gzip,_deflate accept-language accept-ranges accept access-control-allow-origin age allow "
            b"authorization cache-control content-disposition content-encoding content-language content-length "
            b"content-location content-range content-type cookie date etag expect expires from host if-match "
            b"if-modified-since if-none-match if-range if-unmodified-since last-modified link location max-forwards "
            b"proxy-authenticate proxy-authorization range referer refresh retry-after server set-cookie "
            b"strict-transport-security transfer-encoding user-agent vary via www-authenticate"
        ).split(b" ")
    )
)
_STATIC_ROWS: Final = len(_STATIC)
_STATIC_BYTES: Final = max(len(name) + len(value) for name, value in _STATIC) + ROW_BYTES
_ONE_BYTE_ROWS: Final = re.compile(rb"[\x81-\xfe]+")
# fmt: off
_CODE_BITS: Final = (  # RFC 7541, appendix B: of each byte, and of the end of a text. The code is canonical
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12,
    10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6,
    5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22,
    22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28,
    27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28,
    27, 27, 27, 27, 27, 26, 30,
)
# fmt: on
_END_OF_TEXT: Final = 256

Step = tuple[int, bytes] | None


class Decoder(Generic[T]):
    """The dynamic table of one direction of a connection.

    ``understand`` makes the meaning of a block: from its fields, or from the meaning of the first ones and the others.
    """

    __slots__ = ("_blocks", "_bytes", "_limit", "_rows", "_runs", "_seen", "_understand")

    def __init__(self, understand: Callable[[T | None, list[Field]], T]) -> None:
        self._understand = understand
        self._rows: list[Field] = []  # the newest is the last
        self._bytes = 0
        self._limit = TABLE_BYTES_MAX
        self._blocks: dict[bytes, T] = {}
        self._runs: dict[bytes, tuple[T, int]] = {}  # of rows at the beginning: their meaning, and their size
        self._seen: list[int] = []  # hashes of the last blocks

    def decode(self, block: bytes) -> T:
        """Return the meaning of a block; RemoteProtocolError if it breaks the rules or is too long.

        After an error the table is of no use: the connection must end.
        """
        known = self._blocks.get(block)
        if known is not None:
            return known
        before, run, size = self._beginning(block)
        try:
            fields, changes = self._decoded(block, len(run), size)
        except IndexError:
            raise RemoteProtocolError("a block of header fields ends within a field") from None
        if before is not None and not fields:
            return before
        meaning = self._understand(before, fields)
        if changes:
            self._blocks.clear()
            self._runs.clear()
        elif before is None and len(block) <= REMEMBERED_BYTES_MAX and len(self._blocks) < BLOCKS_MAX:
            self._remember(block, meaning)
        return meaning

    def _beginning(self, block: bytes) -> tuple[T | None, bytes, int]:
        """Return the meaning of the rows at the beginning of a block that are told by one byte each, those bytes, and
        the size of the rows: most of a usual block. Nothing if there are none, or if a row is missing.
        """
        found = _ONE_BYTE_ROWS.match(block)
        if found is None:
            return None, b"", 0
        run = found[0]
        known = self._runs.get(run)
        if known is None:
            rows = self._rows
            try:
                # 0x81 is the first static row, 0xBE the newest dynamic one
                fields = [_STATIC[it - 0x81] if it < 0xBE else rows[0xBD - it] for it in run]
            except IndexError:
                return None, b"", 0
            size = _size_of(fields)
            _check_size(size)
            known = self._understand(None, fields), size
            if len(run) <= REMEMBERED_BYTES_MAX and len(self._runs) < RUNS_MAX:
                self._runs[run] = known
        meaning, size = known
        return meaning, run, size

    def _remember(self, block: bytes, meaning: T) -> None:
        code, seen = hash(block), self._seen
        if code in seen:
            self._blocks[block] = meaning
            return
        seen.append(code)
        if len(seen) > BLOCKS_SEEN_MAX:
            del seen[0]
        assert len(seen) <= BLOCKS_SEEN_MAX, "a client of ever new blocks fills no memory"

    def _decoded(self, block: bytes, at: int, size: int) -> tuple[list[Field], bool]:
        """Return the fields from an offset on, behind fields of a size, and whether they have changed the table."""
        end, changes, is_first = len(block), False, not at
        rows = self._rows
        fields: list[Field] = []
        while at < end:
            first = block[at]
            if first & 0x80:
                row, at = _number(block, at, 0x7F)
                field = self._row(row)
            elif first & 0xE0 == 0x20:
                if fields or not is_first:
                    raise RemoteProtocolError("the limit of the table changes behind a field")
                limit, at = _number(block, at, 0x1F)
                self._set_limit(limit)
                changes = True
                continue
            else:
                is_kept = first & 0x40
                mask = 0x3F if is_kept else 0x0F
                if first & mask:
                    row, at = _number(block, at, mask)
                    name = self._row(row)[0]
                else:
                    name, at = _text(block, at + 1)
                value, at = _text(block, at)
                field = name, value
                if is_kept:
                    changes = True
                    rows.append(field)
                    self._bytes += len(name) + len(value) + ROW_BYTES
                    if self._bytes > self._limit:
                        self._evict()
            fields.append(field)
        assert at == end, "`_text` looks at the end"
        row_bytes = TABLE_BYTES_MAX if changes else max(self._bytes, _STATIC_BYTES)
        most = size + len(fields) * row_bytes + 2 * end  # no code makes two bytes of one
        if most > FIELDS_BYTES_MAX:
            _check_size(size + _size_of(fields))
        return fields, changes

    def _row(self, row: int) -> Field:
        if 0 < row <= _STATIC_ROWS:
            return _STATIC[row - 1]
        newest = row - _STATIC_ROWS
        if not 0 < newest <= len(self._rows):
            raise RemoteProtocolError(f"there is no row {row} of header fields")
        return self._rows[-newest]

    def _set_limit(self, limit: int) -> None:
        if limit > TABLE_BYTES_MAX:
            raise RemoteProtocolError(f"a table of {limit} bytes of header fields is above {TABLE_BYTES_MAX}")
        self._limit = limit
        self._evict()

    def _evict(self) -> None:
        count = 0
        while self._bytes > self._limit:
            name, value = self._rows[count]
            self._bytes -= len(name) + len(value) + ROW_BYTES
            count += 1
        del self._rows[:count]
        assert self._bytes >= 0
        assert bool(self._rows) == bool(self._bytes)


def _size_of(fields: list[Field]) -> int:
    return sum(len(name) + len(value) + ROW_BYTES for name, value in fields)


def _check_size(size: int) -> None:
    if size > FIELDS_BYTES_MAX:
        raise RemoteProtocolError(f"header fields take more than {FIELDS_BYTES_MAX} bytes")


def _number(block: bytes, at: int, mask: int) -> tuple[int, int]:
    number = block[at] & mask
    at += 1
    if number == mask:
        for shift in (0, 7, 14, 21):
            byte = block[at]
            at += 1
            number += (byte & 0x7F) << shift
            if byte < 0x80:
                break
        else:
            raise RemoteProtocolError("a number of a header field is above 2^28")
    return number, at


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    is_coded = block[at] & 0x80
    length = block[at] & 0x7F
    if length == 0x7F:
        length, at = _number(block, at, 0x7F)
    else:
        at += 1
    end = at + length
    if end > len(block):
        raise IndexError
    raw = block[at:end]
    if not is_coded:
        return raw, end
    return (_remembered(raw) if length <= TEXT_BYTES_MAX else huffman_decoded(raw)), end


def huffman_decoded(coded: bytes) -> bytes:
    """Return the text of a Huffman code; RemoteProtocolError for a wrong end."""
    state = 0
    texts = []
    for byte in coded:
        step = _steps(state)[byte]
        if step is None:
            raise RemoteProtocolError("a Huffman code has the end of a text within it")
        state, text = step
        texts.append(text)
    if state not in _padding_states():
        raise RemoteProtocolError("a Huffman code does not end with a prefix of the end of a text")
    return b"".join(texts)


_remembered = lru_cache(TEXTS_MAX)(huffman_decoded)


@cache
def _tree() -> list[list[int]]:
    """The inner nodes of the code: for each bit the next node, or the complement of a symbol."""
    nodes = [[0, 0]]
    code, bits = 0, 0
    for symbol in sorted(range(len(_CODE_BITS)), key=lambda it: (_CODE_BITS[it], it)):
        code <<= _CODE_BITS[symbol] - bits
        bits = _CODE_BITS[symbol]
        node = 0
        for shift in range(bits - 1, 0, -1):
            bit = code >> shift & 1
            if not nodes[node][bit]:
                nodes.append([0, 0])
                nodes[node][bit] = len(nodes) - 1
            node = nodes[node][bit]
        nodes[node][code & 1] = ~symbol
        code += 1
    assert code == 1 << bits, "the code is complete"
    return nodes


@cache
def _steps(state: int) -> tuple[Step, ...]:
    """The next node and the text of each byte, from a node on; None behind the end of a text."""
    nodes = _tree()
    assert 0 <= state < len(nodes), "a text goes on from an inner node"
    steps: list[Step] = []
    for byte in range(256):
        node, text = state, bytearray()
        for shift in range(7, -1, -1):
            node = nodes[node][byte >> shift & 1]
            if node < 0:
                if ~node == _END_OF_TEXT:
                    break
                text.append(~node)
                node = 0
        steps.append(None if node < 0 else (node, bytes(text)))
    return tuple(steps)


@cache
def _padding_states() -> frozenset[int]:
    """Nodes where a text may end: behind at most seven ones."""
    nodes = _tree()
    states = [0]
    for _ in range(7):
        states.append(nodes[states[-1]][1])
    assert len(set(states)) == 8, "each prefix has its node"
    return frozenset(states)


def literal(name: bytes, value: bytes) -> bytes:
    """Return a field that changes no table, for a name and a value of any length."""
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def _length(length: int) -> bytes:
    if length < 0x7F:
        return bytes((length,))
    encoded = bytearray(b"\x7f")
    length -= 0x7F
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    assert encoded[-1] < 0x80, "the last byte of a number ends it"
    return bytes(encoded)
