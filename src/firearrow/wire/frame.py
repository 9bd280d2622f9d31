"""Remoting frames: their two header encodings, a stream of them, and answers by templates.

A frame, big-endian:

====== ==== ======================================================================
offset size field
====== ==== ======================================================================
0      4    length of all that follows this word
4      4    serialisation (0 JSON, 1 ROCKETMQ) << 24 | header length
8      h    header
8+h    rest body
====== ==== ======================================================================

The JSON header is ``{"code":14,"extFields":{...},"flag":0,"language":"JAVA","opaque":7,
"serializeTypeCurrentRPC":"JSON","version":513}`` in any order. The ROCKETMQ header is binary:

====== ==== ===========================================
offset size field
====== ==== ===========================================
0      2    code (16 bits: the POP codes do not fit)
2      1    language ordinal
3      2    version
5      4    opaque
9      4    flag
13     4+n  remark: length, UTF-8
...    4+m  ext: length, then repeated i16 key, i32 value
====== ==== ===========================================

Worked example, request 14 with ``topic=T``:
``00000025 01000021 000e 03 0201 00000007 00000000 00000000 0000000c 0005 746f706963 00000001 54``.

The most frequent requests have their own decoders: see ``wire.hotheaders``.

Source: RocketMQ's ``RemotingCommand``, ``RocketMQSerializable``, ``NettyDecoder``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Final

import msgspec

from firearrow.errors import LocalProtocolError, RemoteProtocolError
from firearrow.javanumbers import INT_MAX, INT_MIN
from firearrow.wire.binary import KIND_BINARY, binary_field, binary_header, decode_binary, number_field, success_frame
from firearrow.wire.codes import FLAG_RESPONSE, PROTOCOL_VERSION, ResponseCode
from firearrow.wire.command import Command, FieldValue, Response, text_of

KIND_JSON: Final = 0

LENGTHS: Final = struct.Struct(">II")

# Count of leading bytes that tell the hot codes apart: the length of `{"code":200050,`.
HOT_PREFIX_BYTES: Final = 15

HEADER_BYTES_MAX: Final = 0xFFFFFF  # the header's length has three bytes
# Properties of a message, the longest thing in it, have 32 KiB. A header that no hot decoder reads
# may take a microsecond for four bytes.
GENERAL_HEADER_BYTES_MAX: Final = 1024 * 1024
REMARK_CHARS_MAX: Final = 4096  # a remark may quote what a peer sent, which may be anything

AnyCommand = Command[Any]

_decode_texts = msgspec.json.Decoder(Command[dict[str, str]]).decode
_decode_bare = msgspec.json.Decoder(dict[str, Any]).decode
encode_json: Final = msgspec.json.Encoder().encode


NO_HOT_DECODERS: Final[dict[bytes, Any]] = {}
"""For callers that need every ext field as it was written: a signature is over all of them."""


def decode_header(kind: int, header: bytes) -> AnyCommand:
    """Decode one header, JSON or binary, into a command without body.

    Raises RemoteProtocolError when the header is not of its form, or too long. Wrong types of single ext fields are no
    error here: ``ext`` is then plain text and ``fields_of`` names the field.
    """
    if len(header) > GENERAL_HEADER_BYTES_MAX:
        raise RemoteProtocolError(f"a header of {len(header)} bytes is above the limit of {GENERAL_HEADER_BYTES_MAX}")
    if kind == KIND_BINARY:
        return decode_binary(header)
    if kind != KIND_JSON:
        raise RemoteProtocolError(f"serialisation type {kind} is neither 0 (JSON) nor 1 (ROCKETMQ)")
    try:
        return _decode_any_json(header)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise RemoteProtocolError(f"the JSON header can't be read: {error}") from None


def _decode_any_json(header: bytes) -> AnyCommand:
    try:
        command: AnyCommand = _decode_texts(header)  # the form that official clients write
    except msgspec.ValidationError:
        pass
    else:
        return command
    try:
        command = _decoder_of_any()(header)
    except msgspec.ValidationError:
        command = _decode_loosely(header)
    command.ext = {name: text_of(value) for name, value in (command.ext or {}).items() if value is not None}
    return command


@cache
def _decoder_of_any() -> Callable[[bytes], AnyCommand]:
    """Return the decoder of headers that no official client writes; most processes are spared its 0.3 ms."""
    return msgspec.json.Decoder(Command[dict[str, Any] | None]).decode


def _decode_loosely(header: bytes) -> AnyCommand:
    """Decode a header of sound JSON whose types differ from the declarations of ``Command``."""
    raw = _decode_bare(header)
    ext = raw.get("extFields")
    language = raw.get("language")
    return Command(
        code=_integer(raw, "code", None),
        ext=ext if isinstance(ext, dict) else {},
        opaque=_integer(raw, "opaque", 0),
        flag=_integer(raw, "flag", 0),
        version=_integer(raw, "version", 0),
        language=language if isinstance(language, str | int) else None,
        remark=None if raw.get("remark") is None else text_of(raw["remark"]),
    )


def _integer(raw: dict[str, Any], name: str, default: int | None) -> int:
    value = raw.get(name, default)
    if value is None:
        raise RemoteProtocolError(f"header field {name} is missing")
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise RemoteProtocolError(f"header field {name} is not a number: {str(value)[:40]!r}")
    try:
        number = int(value)
    except ValueError:
        raise RemoteProtocolError(f"header field {name} is not a number: {str(value)[:40]!r}") from None
    if not INT_MIN <= number <= INT_MAX:
        raise RemoteProtocolError(f"header field {name} does not fit 32 bits: {str(value)[:40]}")
    return number


def encode_response(response: Response, opaque: int, binary: bool = False) -> bytes:
    """Return a response as a frame, in the serialisation of its request.

    Raises LocalProtocolError when its fields do not fit a header.
    """
    remark = response.remark
    if remark is not None and len(remark) > REMARK_CHARS_MAX:
        remark = remark[:REMARK_CHARS_MAX]
    if response == _BARE:
        return bare_frame(opaque, binary)
    if binary:
        header = binary_header(response.code, FLAG_RESPONSE, opaque, remark, response.fields)
        return _frame(KIND_BINARY, header, response.body)
    header = encode_json(_json_header(response.code, FLAG_RESPONSE, opaque, remark, response.fields))
    return _frame(KIND_JSON, header, response.body)


def encode_request(command: AnyCommand) -> bytes:
    """Return a request of ours as a frame, JSON unless ``command.binary``."""
    if command.binary:
        header = binary_header(command.code, command.flag, command.opaque, command.remark, command.ext)
        return _frame(KIND_BINARY, header, command.body)
    fields: dict[str, Any] = {
        "code": int(command.code),
        "extFields": command.ext,  # text already
        "flag": command.flag,
        "language": "PYTHON",
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": PROTOCOL_VERSION,
    }
    if command.remark is not None:
        fields["remark"] = command.remark
    return _frame(KIND_JSON, encode_json(fields), command.body)


def response_frame(header: bytes, body: bytes = b"") -> bytes:
    """Return a frame around a JSON header that a hot processor has already formatted."""
    return b"".join((LENGTHS.pack(4 + len(header) + len(body), len(header)), header, body))


def bare_frame(opaque: int, binary: bool) -> bytes:
    """Return the frame of an answer that only reports success: 0.3 µs instead of 4."""
    if binary:
        return success_frame(opaque, b"")
    header = _BARE_HEADER % opaque
    return _LENGTHS_OF[len(header)] + header


def response_of(frame: bytes) -> Response:
    """Return the fields of an answer that is already formatted, without its body."""
    length, word = LENGTHS.unpack_from(frame)
    assert length + 4 == len(frame), "it is one frame"
    header_at = LENGTHS.size
    command = decode_header(word >> 24, frame[header_at : header_at + (word & HEADER_BYTES_MAX)])
    return Response(ResponseCode(command.code), command.remark, command.ext)


def _frame_of(header: bytes) -> bytes:
    """Return a frame without a body, in half the time of `response_frame`."""
    size = len(header)
    return (_LENGTHS_OF[size] if size < len(_LENGTHS_OF) else LENGTHS.pack(size + 4, size)) + header


# First bytes of frames without a body: looking them up takes a third of the time.
_LENGTHS_OF: Final = tuple(LENGTHS.pack(size + 4, size) for size in range(512))


def _frame(kind: int, header: bytes, body: bytes) -> bytes:
    length = len(header)
    if length > HEADER_BYTES_MAX:
        raise LocalProtocolError(f"a header of {length} bytes, of at most {HEADER_BYTES_MAX}")
    return b"".join((LENGTHS.pack(4 + length + len(body), kind << 24 | length), header, body))


def _json_header(
    code: int, flag: int, opaque: int, remark: str | None, fields: Mapping[str, FieldValue]
) -> dict[str, Any]:
    header: dict[str, Any] = {
        "code": int(code),
        "extFields": {name: text_of(value) for name, value in fields.items()},
        "flag": flag,
        "language": "PYTHON",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": PROTOCOL_VERSION,
    }
    if remark is not None:
        header["remark"] = remark
    return header


_BARE: Final = Response()
_BARE_HEADER: Final = encode_json(_json_header(0, FLAG_RESPONSE, 0, None, {})).replace(b'"opaque":0', b'"opaque":%d')
assert len(_BARE_HEADER % INT_MIN) < len(_LENGTHS_OF), "`bare_frame` looks up all lengths"


# --- a stream of frames ---

# Java's default com.rocketmq.remoting.frameMaxLength; a body of 4 MiB fits with room to spare.
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
# A peer that sends a frame byte by byte must not cost an object for each byte. A piece shorter than the first limit is
# joined to the one before it, until that one reaches the second limit.
CHUNK_BYTES_SMALL: Final = 1024
CHUNK_BYTES_FULL: Final = 64 * 1024
PROXY_HEADERS: Final = (b"PROX", b"\r\n\r\n")  # first bytes of ``wire.proxyheader``; clients don't need that module
_GREETINGS: Final = (b"PRI ", *PROXY_HEADERS)
_TLS_HANDSHAKE: Final = 0x16


class Connection:
    """One side of a remoting connection as a state machine: bytes in, commands out.

    Frames arrive in any split. A whole frame is decoded from the buffer that the transport delivered, without copying
    it first. Only a frame that a read cut in two is held until its rest arrives, and never more than one. A length that
    no sound peer sends ends the connection before a byte of it is stored, so announcing a large frame costs a server
    nothing. A held frame costs about as much memory as its length: pieces of a peer that sends byte by byte are joined
    on arrival.

    ``receive`` never raises, whatever a peer sends. After a violation the connection takes no more bytes: ``violation``
    says why, in one sentence. The commands before it in the same read are still returned.

    ``decoders`` come from ``wire.hotheaders``. Without decoders, the ``ext`` of every command is plain text.
    """

    __slots__ = (
        *("_chunks", "_frame_bytes_max", "_hot_decoders", "_needed_bytes"),
        *("frames_begun", "held_bytes", "hello", "violation"),
    )

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX, decoders: Mapping[bytes, Any] = NO_HOT_DECODERS) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._hot_decoders = decoders
        self._chunks: list[bytes] = []
        self._needed_bytes = 0
        self.held_bytes: int = 0  # bytes of a frame that is not whole yet
        self.frames_begun: int = 0  # count of frames that were not whole at first
        self.violation: str | None = None
        self.hello: bytes = b""  # the first bytes of TLS, HTTP/2 or a PROXY header, if one was the violation

    @property
    def missing_bytes(self) -> int:
        """Known count of the bytes that the incomplete frame still lacks."""
        return self._needed_bytes - self.held_bytes if self._chunks else 0

    def receive(self, data: bytes) -> list[AnyCommand]:
        """Take bytes that the transport delivered and return the commands that are now whole."""
        if self.violation is not None:
            return []
        if self._chunks:
            self.held_bytes += len(data)
            if self.held_bytes < self._needed_bytes:
                self._add(data)
                return []
            self._chunks.append(data)
            data = b"".join(self._chunks)
            assert len(data) == self.held_bytes
            self._chunks.clear()
            self.held_bytes = 0
        commands: list[AnyCommand] = []
        try:
            rest = self._read_frames(data, commands)
        except RemoteProtocolError as error:
            self.violation = str(error)
            return commands
        if rest < len(data):
            self._hold(data[rest:] if rest else data)
        return commands

    def _read_frames(self, data: bytes, commands: list[AnyCommand]) -> int:
        """Decode all whole frames of ``data``; return the position of the first that is not whole."""
        at = 0
        end = len(data)
        bytes_max = self._frame_bytes_max
        hot = self._hot_decoders.get
        while end - at >= 8:
            total, word = LENGTHS.unpack_from(data, at)
            if total > bytes_max:
                if not at and (data[at] == _TLS_HANDSHAKE or data.startswith(_GREETINGS)):
                    self.hello = data
                raise RemoteProtocolError(self._bad_length(total, data[at]))
            stop = at + 4 + total
            if stop > end:
                break
            body_at = at + 8 + (word & 0xFFFFFF)
            if body_at > stop:
                raise RemoteProtocolError(f"a header of {word & 0xFFFFFF} bytes in a frame of {total}")
            # A copy: msgspec takes a memoryview too, but the look-up needs a hashable value.
            header = data[at + 8 : body_at]
            decoder = hot(header[:HOT_PREFIX_BYTES])
            if decoder is None or word >> 24 != KIND_JSON:
                command = decode_header(word >> 24, header)
            else:
                try:
                    command = decoder(header)
                except (msgspec.DecodeError, RecursionError, UnicodeError):
                    command = decode_header(KIND_JSON, header)
            if body_at < stop:
                command.body = data[body_at:stop]
            commands.append(command)
            at = stop
        return at

    def _bad_length(self, total: int, first_byte: int) -> str:
        if first_byte == _TLS_HANDSHAKE:
            return "the peer speaks TLS"
        return f"a frame of {total} bytes is above the limit of {self._frame_bytes_max}"

    def _hold(self, rest: bytes) -> None:
        assert not self._chunks, "one frame at a time is held"
        self._chunks.append(rest)
        self.held_bytes = len(rest)
        self.frames_begun += 1
        self._needed_bytes = 8
        if len(rest) >= 8:
            self._needed_bytes = 4 + int.from_bytes(rest[:4], "big")
        assert 0 < self.held_bytes < self._needed_bytes, "a whole frame is not held"

    def _add(self, data: bytes) -> None:
        chunks = self._chunks
        if len(data) < CHUNK_BYTES_SMALL and len(chunks[-1]) < CHUNK_BYTES_FULL:
            chunks[-1] += data
        else:
            chunks.append(data)

    def give_up(self, why: str) -> AnyCommand | None:
        """Forget the incomplete frame, and take no more bytes.

        Returns its command, without the body, if its header is complete and can be read.
        """
        held = b"".join(self._chunks)
        assert len(held) == self.held_bytes
        self._chunks.clear()
        self.held_bytes = 0
        self.violation = why
        if len(held) < LENGTHS.size:
            return None
        _, word = LENGTHS.unpack_from(held)
        body_at = LENGTHS.size + (word & HEADER_BYTES_MAX)
        if body_at > len(held):
            return None
        try:
            return decode_header(word >> 24, held[LENGTHS.size : body_at])
        except RemoteProtocolError:
            return None


# --- the most frequent answers, to sends and pulls ---
#
# Templates format them. A template needs no dictionary of fields and no JSON writer: the answer to a send takes 0.9 µs
# instead of 3.9. It has the text that ``encode_response`` would write, which a test compares. Fields are in the order
# of their names.

_BEFORE_OPAQUE: Final = '"flag":1,"language":"PYTHON","opaque":'
_BEHIND_OPAQUE: Final = f',"serializeTypeCurrentRPC":"JSON","version":{PROTOCOL_VERSION}}}'
_END: Final = f"{_BEFORE_OPAQUE}%d{_BEHIND_OPAQUE}"


class SendAnswers:
    """The answers to sends, for a broker of a region.

    ``id_prefix`` is the beginning of the broker's offset message ids, all but their last 16 digits. ``template`` is the
    header of an answer in JSON. It takes the physical offset, queue id, queue offset, the unique id (one that JSON does
    not escape) and the opaque.
    """

    def __init__(self, region: str, *, trace_on: bool, id_prefix: str) -> None:
        self._region = region
        self._trace = "true" if trace_on else "false"
        self._id_prefix = id_prefix
        json_region = encode_json(region).decode()
        fields = f'"MSG_REGION":{json_region},"TRACE_ON":"{self._trace}"'.replace("%", "%%")
        self.template: Final = (
            f'{{"code":0,"extFields":{{{fields},"msgId":"{id_prefix}%016X","queueId":"%d",'
            f'"queueOffset":"%d","transactionId":"%b"}},{_END}'
        ).encode()
        self._batch_template = (
            f'{{"code":0,"extFields":{{{fields},"msgId":"%b","queueId":"%d","queueOffset":"%d"}},{_END}'
        ).encode()
        self._binary_template = b"".join(
            (
                binary_field("MSG_REGION", region).replace(b"%", b"%%"),
                binary_field("TRACE_ON", self._trace),
                binary_field("msgId", f"{id_prefix}{0:016X}")[:-16] + b"%016X",
                number_field("queueId"),
                number_field("queueOffset"),
                binary_field("transactionId") + b"%b%b",
            )
        )

    def frame(
        self, request: AnyCommand, physical_offset: int, queue_id: int, queue_offset: int, unique: bytes
    ) -> Response | bytes:
        """Return the answer to a send: a frame, unless JSON would have to escape the unique id."""
        place = physical_offset, queue_id, queue_offset, unique
        if request.binary:
            return self.binary_frame(request.opaque, *place)
        if unique.isalnum():
            return _frame_of(self.template % (*place, request.opaque))
        return self.response(*place)

    def binary_frame(self, opaque: int, physical_offset: int, queue_id: int, queue_offset: int, unique: bytes) -> bytes:
        """Return the answer to a send whose header is binary."""
        number, place = b"%d" % queue_id, b"%d" % queue_offset
        fields = self._binary_template % (
            physical_offset,
            len(number),
            number,
            len(place),
            place,
            len(unique).to_bytes(4),
            unique,
        )
        return success_frame(opaque, fields)

    def response(self, physical_offset: int, queue_id: int, queue_offset: int, unique: bytes) -> Response:
        """Return the answer to a send as fields."""
        last = {"transactionId": unique.decode("utf-8", "replace")}
        message_id = f"{self._id_prefix}{physical_offset:016X}"
        return Response(fields=self.fields(message_id, queue_id, queue_offset) | last)

    def batch_frame(self, opaque: int, ids: bytes, queue_id: int, queue_offset: int) -> bytes:
        """Return the answer to a batch, with the ids of its messages joined by commas."""
        return response_frame(self._batch_template % (ids, queue_id, queue_offset, opaque))

    def batch_response(self, ids: bytes, queue_id: int, queue_offset: int) -> Response:
        """Return the answer to a batch as fields."""
        return Response(fields=self.fields(ids.decode(), queue_id, queue_offset))

    def fields(self, ids: str, queue_id: int, queue_offset: int) -> dict[str, FieldValue]:
        """Return the fields of every answer to a send; ``ids`` are joined by commas."""
        return {
            "MSG_REGION": self._region,
            "TRACE_ON": self._trace,
            "msgId": ids,
            "queueId": queue_id,
            "queueOffset": queue_offset,
        }


_PULL_FIELDS: Final = (
    "suggestWhichBrokerId",
    "nextBeginOffset",
    "minOffset",
    "maxOffset",
    "topicSysFlag",
    "groupSysFlag",
)
_PULL_BINARY: Final = b"".join(map(number_field, _PULL_FIELDS))


def pull_answer(
    request: AnyCommand,
    code: int,
    status: Enum,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    topic_flag: int,
    group_flag: int,
    records: bytes,
    suggested: int = 0,
) -> Response | bytes:
    """Return the answer to a pull.

    It has the next offset, the queue's first and last offset, the flags of topic and group, and the id of the broker
    for the next pull. If nothing was found, the remark is the name of ``status``.
    """
    if code != ResponseCode.SUCCESS:
        fields = {
            "suggestWhichBrokerId": suggested,
            "nextBeginOffset": next_offset,
            "minOffset": min_offset,
            "maxOffset": max_offset,
            "topicSysFlag": topic_flag,
            "groupSysFlag": group_flag,
        }
        return Response(code, status.name, fields, records)
    if request.binary:
        numbers = suggested, next_offset, min_offset, max_offset, topic_flag, group_flag
        digits = [b"%d" % number for number in numbers]
        parts = [part for text in digits for part in (len(text), text)]
        return success_frame(request.opaque, _PULL_BINARY % tuple(parts), records)
    header = (
        f'{{"code":0,"extFields":{{"suggestWhichBrokerId":"{suggested}",'
        f'"nextBeginOffset":"{next_offset}","minOffset":"{min_offset}","maxOffset":"{max_offset}",'
        f'"topicSysFlag":"{topic_flag}","groupSysFlag":"{group_flag}"}},'
        f"{_BEFORE_OPAQUE}{request.opaque}{_BEHIND_OPAQUE}"
    )
    return response_frame(header.encode(), records)


def pop_answer(
    request: AnyCommand,
    pop_ms: int,
    invisible_ms: int,
    revive_queue_id: int,
    rest: int,
    starts: str,
    offsets: str,
    counts: str | None,
    records: bytes,
) -> bytes:
    """Return the answer to a pop that found messages.

    The texts are in the form of ``wire.pop``; only a pop in order has ``counts``. (No request for a pop has a binary
    header, which has no room for its code.)
    """
    counted = "" if counts is None else f'"orderCountInfo":"{counts}",'
    header = (
        f'{{"code":0,"extFields":{{{counted}"popTime":"{pop_ms}","invisibleTime":"{invisible_ms}",'
        f'"reviveQid":"{revive_queue_id}","restNum":"{rest}","startOffsetInfo":"{starts}",'
        f'"msgOffsetInfo":"{offsets}"}},{_BEFORE_OPAQUE}{request.opaque}{_BEHIND_OPAQUE}'
    )
    return response_frame(header.encode(), records)
