"""The server's side of an HTTP/2 connection, without a socket or a clock.

A connection begins with the client's preface, ``PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n``, and continues with frames
in both directions. A frame, big-endian:

====== ==== ======================================================================
offset size field
====== ==== ======================================================================
0      3    length of the payload
3      1    type
4      1    flags
5      4    stream; its highest bit counts for nothing, and 0 is the connection
9      n    payload
====== ==== ======================================================================

A call is one stream: HEADERS and DATA of the client, the last with END_STREAM, then HEADERS, DATA and HEADERS of the
server. `Http2.receive` takes the bytes of a read and gives the calls' data in the order of the frames. The frames of an
answer are bytes that the caller writes, all answers of a read at once: `answer` makes them for a short answer, which is
one concatenation. A longer answer, or one that finds no room in the client's windows, waits in its stream until the
client opens them.

The windows for the client's data are opened again as soon as data came: a client that takes too much memory is held up
by its socket, as a client of remoting is (``net.budget``). While its answers are unread (`Http2.hold`), none opens.

Limits, in addition to the limits of ``hpack``:

- `FRAME_BYTES_MAX`: a frame is handled once it is whole.
- `STREAMS_MAX`: calls at a time. A waiting call is one.
- `BLOCK_BYTES_MAX` and `CONTINUATIONS_MAX`: a block of header fields can't be handled before its end.
- `RESETS_MAX`: calls that a client cancels, or breaks, beyond those that it lets finish. Each costs the server a call.
- `NOISE_MAX`: frames in a row without a new call and without data (PING, SETTINGS, WINDOW_UPDATE and the like).

Source: RFC 9113, and RFC 7540 for priorities, which are read and count for nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Final

from firearrow.errors import RemoteProtocolError
from firearrow.wire.hpack import FIELDS_BYTES_MAX, Decoder, Field

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9

FRAME_BYTES_MAX: Final = 16_384  # RFC 9113: what any peer must take, unless SETTINGS say otherwise
STREAMS_MAX: Final = 4096
BLOCK_BYTES_MAX: Final = 32 * 1024
CONTINUATIONS_MAX: Final = 64
RESETS_MAX: Final = 1000
NOISE_MAX: Final = 10_000
FRAMES_MAX: Final = 500  # handled in one call of `receive`: one or two milliseconds
STREAM_WINDOW_BYTES: Final = 1024 * 1024
CONNECTION_WINDOW_BYTES: Final = 16 * 1024 * 1024
_DEFAULT_WINDOW_BYTES: Final = 65_535
_SKIPPED_MAX: Final = 16
_WINDOW_BYTES_MAX: Final = 2**31 - 1
_RESET_HERE_MAX: Final = STREAMS_MAX  # streams that this side has ended early: the client may have sent more
STREAM_BYTES: Final = 1024  # memory of a call, beside its header fields
_WINDOW_CHANGE_STREAMS: Final = 64  # that one SETTINGS changes for the price of a frame

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4
PADDED: Final = 8
HAS_PRIORITY: Final = 32

_ENABLE_PUSH, _MAX_CONCURRENT_STREAMS, _INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE, _MAX_HEADER_LIST_SIZE = range(2, 7)
_HEAD: Final = Struct(">HBBBI")
_SETTING: Final = Struct(">HI")
_U32: Final = Struct(">I")
_GOAWAY: Final = Struct(">II")


class ErrorCode(IntEnum):
    """Reasons for the end of a stream or a connection."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Head:
    """The header fields of a request, or behind its body.

    ``misplaced`` says why single fields are none of HTTP/2; ``has_pseudo``: some begin with ``:``; ``is_behind``: a
    pseudo-field may not follow. ``is_request``: a request may begin with them. ``meaning`` is for the caller's use:
    later calls with the same block of fields have it, too. ``first`` is the head of the first fields, None if a later
    field chooses the method of a call. Its meaning is that of all calls that begin so.
    """

    __slots__ = ("fields", "first", "has_pseudo", "is_behind", "is_request", "meaning", "misplaced")

    def __init__(self, fields: dict[bytes, bytes], misplaced: str, *, has_pseudo: bool, is_behind: bool) -> None:
        self.fields: dict[bytes, bytes] = fields
        self.misplaced: Final = misplaced
        self.has_pseudo: Final = has_pseudo
        self.is_behind: Final = is_behind
        self.is_request: bool = False
        self.first: Head | None = None
        self.meaning: object = None


class Stream:
    """A call, from its header fields to the end of both directions."""

    __slots__ = (
        "call",
        "ends_itself",
        "fields",
        "has_ended",
        "head",
        "held_bytes",
        "id",
        "pending",
        "pending_bytes",
        "received_bytes",
        "send_window",
        "trailers",
        "window",
    )

    def __init__(self, stream_id: int, head: Head, send_window: int, held_bytes: int) -> None:
        self.id: int = stream_id
        self.head: Final = head
        self.fields: dict[bytes, bytes] = head.fields
        self.held_bytes: Final = held_bytes
        self.has_ended: bool = False  # by the client
        self.ends_itself: bool = False  # the client ends its side by itself when it has read the end of the answer
        self.received_bytes: int = 0
        self.window: int = STREAM_WINDOW_BYTES  # for what the client sends
        self.send_window: int = send_window
        self.pending: deque[bytes] | None = None  # data for which the windows have no room; None: never was
        self.pending_bytes: int = 0
        self.trailers: bytes = b""  # the frame behind it
        self.call: object = None  # for the caller's use


Arrived = tuple[Stream, bytes | None, bool]
"""A stream, data of it, and whether the client's side has ended; None: the client has cancelled the call."""


class _Broken(Exception):
    """The connection can't go on."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Http2:
    """One connection of a client.

    ``send`` gets frames that belong to no answer, whenever there are some. ``streams_max`` limits the calls at a time.
    ``violation`` says why the connection must be closed, once the sent frames have left.
    """

    __slots__ = (
        *("_block", "_block_bytes", "_block_flags", "_block_id", "_blocked", "_buffer", "_decoder", "_has_begun"),
        *("_has_settings", "_initial_send_window", "_is_held", "_is_leaving", "_noise", "_reset_here", "_resets"),
        *("_send", "_send_window", "_skipped", "_streams_max", "_window"),
        *("is_asked", "last_id", "pending_bytes", "streams", "streams_bytes", "violation"),
    )

    def __init__(self, send: Callable[[bytes], None], streams_max: int = STREAMS_MAX) -> None:
        assert 0 < streams_max <= STREAMS_MAX, "memory is planned for no more"
        self._send = send
        self._streams_max = streams_max
        self._decoder = Decoder(head_of)
        self._buffer = b""
        self._has_begun = self._has_settings = False
        self.streams: dict[int, Stream] = {}
        self.last_id: int = 0
        self._skipped: list[range] = []  # ids that the client has passed over, the last ones
        self._reset_here: dict[int, None] = {}
        self.is_asked: bool = False
        """True if the client has not answered a `ping` yet."""
        self._block: list[bytes] | None = None  # an unfinished block of header fields
        self._block_id = self._block_flags = self._block_bytes = 0
        self._window = CONNECTION_WINDOW_BYTES
        self._send_window = _DEFAULT_WINDOW_BYTES
        self._initial_send_window = _DEFAULT_WINDOW_BYTES
        # streams with pending data that only the connection's window holds up, in turn
        self._blocked: OrderedDict[int, Stream] = OrderedDict()
        self._is_held = False
        self.streams_bytes: int = 0
        """Memory of the open streams, without their data."""
        self.pending_bytes: int = 0
        self._resets = self._noise = 0
        self._is_leaving = False
        self.violation: str | None = None

    @property
    def is_leaving(self) -> bool:
        """Tell whether the client knows that no more calls are taken."""
        return self._is_leaving

    def begin(self) -> bytes:
        """Return the first frames of the server."""
        settings = b"".join(
            (
                _SETTING.pack(_MAX_CONCURRENT_STREAMS, self._streams_max),
                _SETTING.pack(_INITIAL_WINDOW_SIZE, STREAM_WINDOW_BYTES),
                _SETTING.pack(_MAX_HEADER_LIST_SIZE, min(BLOCK_BYTES_MAX, FIELDS_BYTES_MAX)),
            )
        )
        return _frame(SETTINGS, 0, 0, settings) + _frame(
            WINDOW_UPDATE, 0, 0, _U32.pack(CONNECTION_WINDOW_BYTES - _DEFAULT_WINDOW_BYTES)
        )

    @property
    def held_bytes(self) -> int:
        """Bytes of unfinished frames and blocks."""
        return len(self._buffer) + self._block_bytes

    @property
    def has_more(self) -> bool:
        """Tell whether `receive` has left frames, for the next turn."""
        buffer = self._buffer
        return len(buffer) >= HEAD_BYTES and len(buffer) >= HEAD_BYTES + int.from_bytes(buffer[:3])

    def receive(self, data: bytes) -> list[Arrived]:
        """Take the bytes of a read, and give their meaning for calls.

        At most `FRAMES_MAX` frames are handled; ``has_more`` says that others are left, which empty ``data`` continues.
        """
        arrived: list[Arrived] = []
        if self.violation is not None:
            return arrived
        buffer = self._buffer + data if self._buffer else data
        try:
            at = 0
            if not self._has_begun:
                if not buffer.startswith(PREFACE[: len(buffer)]):
                    raise _Broken(ErrorCode.PROTOCOL_ERROR, "it does not begin as HTTP/2")
                if len(buffer) < len(PREFACE):
                    self._buffer = buffer
                    return arrived
                self._has_begun = True
                at = len(PREFACE)
            self._buffer = buffer[self._frames(buffer, at, arrived) :]
        except _Broken as broken:
            self._break(broken.code, str(broken))
        return arrived

    def _frames(self, buffer: bytes, at: int, arrived: list[Arrived]) -> int:
        end = len(buffer)
        for _ in range(FRAMES_MAX):
            start = at + HEAD_BYTES
            if start > end:
                break
            size_high, size_low, kind, flags, stream_id = _HEAD.unpack_from(buffer, at)
            size = size_high << 8 | size_low
            if size > FRAME_BYTES_MAX:
                raise _Broken(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes is above {FRAME_BYTES_MAX}")
            if start + size > end:
                break
            stream_id &= _WINDOW_BYTES_MAX
            at = start + size
            payload = buffer[start:at]
            if self._block is not None and (kind != CONTINUATION or stream_id != self._block_id):
                raise _Broken(ErrorCode.PROTOCOL_ERROR, "a frame comes between those of a block of header fields")
            if kind == DATA:
                self._take_data(stream_id, flags, payload, arrived)
            elif kind == HEADERS:
                if not self._has_settings:
                    raise _Broken(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
                self._take_headers(stream_id, flags, payload, arrived)
            else:
                self._take_other(kind, stream_id, flags, payload, arrived)
        return at

    def _take_data(self, stream_id: int, flags: int, payload: bytes, arrived: list[Arrived]) -> None:
        size = len(payload)
        self._window -= size
        if self._window < 0:
            raise _Broken(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window")
        if self._window < CONNECTION_WINDOW_BYTES // 2 and not self._is_held:
            self._open_window()
        if flags & PADDED:
            payload = _unpadded(payload)
        stream = self.streams.get(stream_id)
        if stream is None or stream.has_ended:
            self._data_of_none(stream_id)
            return
        ends = flags & END_STREAM
        if ends:
            stream.has_ended = True
        elif payload:
            self._noise = 0
        else:
            self._count_noise()
        stream.received_bytes += len(payload)
        if (b"content-length" in stream.fields) and self._has_wrong_length(stream):
            self._refuse(stream, ErrorCode.PROTOCOL_ERROR, arrived)
            return
        stream.window -= size
        if stream.window < 0:
            self._refuse(stream, ErrorCode.FLOW_CONTROL_ERROR, arrived)
            return
        if not ends and stream.window < STREAM_WINDOW_BYTES // 2 and not self._is_held:
            self._open_stream(stream)
        arrived.append((stream, payload, bool(ends)))

    def _open_window(self) -> None:
        self._send(_frame(WINDOW_UPDATE, 0, 0, _U32.pack(CONNECTION_WINDOW_BYTES - self._window)))
        self._window = CONNECTION_WINDOW_BYTES

    def _open_stream(self, stream: Stream) -> None:
        self._send(_frame(WINDOW_UPDATE, 0, stream.id, _U32.pack(STREAM_WINDOW_BYTES - stream.window)))
        stream.window = STREAM_WINDOW_BYTES

    def hold(self, *, waits: bool) -> None:
        """Leave the windows for the client's data as they are, or open them again."""
        if waits == self._is_held:
            return
        self._is_held = waits
        if waits:
            return
        if self._window < CONNECTION_WINDOW_BYTES // 2:
            self._open_window()
        for stream in self.streams.values():
            if stream.window < STREAM_WINDOW_BYTES // 2 and not stream.has_ended:
                self._open_stream(stream)

    def _data_of_none(self, stream_id: int) -> None:
        if stream_id in self._reset_here:
            return
        if not stream_id or stream_id > self.last_id or not self._has_settings:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, "data of no call")
        raise _Broken(ErrorCode.STREAM_CLOSED, "data behind the end of a call")

    def _has_wrong_length(self, stream: Stream) -> bool:
        length = stream.fields[b"content-length"]
        if not length.isdigit():
            return True
        return stream.received_bytes > int(length) or (stream.has_ended and stream.received_bytes != int(length))

    def _take_headers(self, stream_id: int, flags: int, payload: bytes, arrived: list[Arrived]) -> None:
        if not stream_id & 1:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, "a call with an even number")
        if flags & PADDED:
            payload = _unpadded(payload)
        depends_on_itself = False
        if flags & HAS_PRIORITY:
            if len(payload) < 5:
                raise _Broken(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without its priority")
            depends_on_itself = int.from_bytes(payload[:4]) & _WINDOW_BYTES_MAX == stream_id
            payload = payload[5:]
        if flags & END_HEADERS:
            self._take_block(stream_id, flags, payload, arrived)
            if depends_on_itself:
                self._reset_id(stream_id, ErrorCode.PROTOCOL_ERROR, arrived)
            return
        self._block, self._block_bytes = [payload], len(payload)
        self._block_id, self._block_flags = stream_id, flags

    def _take_continuation(self, flags: int, payload: bytes, arrived: list[Arrived]) -> None:
        block = self._block
        if block is None:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        block.append(payload)
        self._block_bytes += len(payload)
        if self._block_bytes > BLOCK_BYTES_MAX or len(block) > CONTINUATIONS_MAX:
            raise _Broken(ErrorCode.ENHANCE_YOUR_CALM, "a block of header fields is too long")
        if flags & END_HEADERS:
            self._block, self._block_bytes = None, 0
            self._take_block(self._block_id, self._block_flags, b"".join(block), arrived)

    def _take_block(self, stream_id: int, flags: int, block: bytes, arrived: list[Arrived]) -> None:
        try:
            head = self._decoder.decode(block)
        except RemoteProtocolError as error:
            raise _Broken(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        ends = bool(flags & END_STREAM)
        if stream_id <= self.last_id:
            self._take_trailers(stream_id, head, arrived, ends=ends)
            return
        if stream_id > self.last_id + 2:
            self._skipped = [*self._skipped[1 - _SKIPPED_MAX :], range(self.last_id + 1, stream_id)]
        self.last_id = stream_id
        if not head.is_request:
            self._send_reset(stream_id, ErrorCode.PROTOCOL_ERROR)
            self._count_reset()
            return
        if len(self.streams) >= self._streams_max or self._is_leaving:
            self._count_noise()
            self._send_reset(stream_id, ErrorCode.REFUSED_STREAM)
            return
        held_bytes = STREAM_BYTES + len(block)
        stream = self.streams[stream_id] = Stream(stream_id, head, self._initial_send_window, held_bytes)
        self.streams_bytes += held_bytes
        self._noise = 0
        if ends:
            stream.has_ended = True
            if b"content-length" in head.fields and self._has_wrong_length(stream):
                self._refuse(stream, ErrorCode.PROTOCOL_ERROR, arrived)
            else:
                arrived.append((stream, b"", True))

    def _take_trailers(self, stream_id: int, head: Head, arrived: list[Arrived], *, ends: bool) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            if stream_id in self._reset_here:  # answered before its end, for example
                if _are_wrong(head, ends=ends):
                    self._send_reset(stream_id, ErrorCode.PROTOCOL_ERROR)
                    self._count_reset()
                return
            if any(stream_id in skipped for skipped in self._skipped):
                raise _Broken(ErrorCode.PROTOCOL_ERROR, "a call with a number below the last one")
            raise _Broken(ErrorCode.STREAM_CLOSED, "HEADERS behind the end of a call")
        if stream.has_ended:
            raise _Broken(ErrorCode.STREAM_CLOSED, "HEADERS behind the end of a request")
        stream.has_ended = ends
        if _are_wrong(head, ends=ends) or (b"content-length" in stream.fields and self._has_wrong_length(stream)):
            self._refuse(stream, ErrorCode.PROTOCOL_ERROR, arrived)
        else:
            arrived.append((stream, b"", True))

    def _take_other(self, kind: int, stream_id: int, flags: int, payload: bytes, arrived: list[Arrived]) -> None:
        if not self._has_settings and kind != SETTINGS:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if kind == CONTINUATION:
            self._take_continuation(flags, payload, arrived)
            return
        self._count_noise()
        if kind == WINDOW_UPDATE:
            self._take_window(stream_id, payload, arrived)
        elif kind == PING:
            if stream_id or len(payload) != 8:
                raise _Broken(ErrorCode.PROTOCOL_ERROR if stream_id else ErrorCode.FRAME_SIZE_ERROR, "a wrong PING")
            if flags & ACK:
                self.is_asked = False
            else:
                self._send(_frame(PING, ACK, 0, payload))
        elif kind == SETTINGS:
            self._take_settings(stream_id, flags, payload, arrived)
        elif kind == RST_STREAM:
            self._take_reset(stream_id, payload, arrived)
        elif kind == PRIORITY:
            self._take_priority(stream_id, payload, arrived)
        elif kind == GOAWAY:
            if stream_id or len(payload) < _GOAWAY.size:
                raise _Broken(ErrorCode.PROTOCOL_ERROR if stream_id else ErrorCode.FRAME_SIZE_ERROR, "a wrong GOAWAY")
        elif kind == PUSH_PROMISE:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, "a client pushes nothing")

    def _take_window(self, stream_id: int, payload: bytes, arrived: list[Arrived]) -> None:
        if len(payload) != 4:
            raise _Broken(ErrorCode.FRAME_SIZE_ERROR, "a wrong WINDOW_UPDATE")
        more = int.from_bytes(payload) & _WINDOW_BYTES_MAX
        if not stream_id:
            self._send_window += more
            if not more or self._send_window > _WINDOW_BYTES_MAX:
                code = ErrorCode.FLOW_CONTROL_ERROR if more else ErrorCode.PROTOCOL_ERROR
                raise _Broken(code, f"the connection's window can't grow by {more}")
            if self._blocked:
                self._go_on()
        elif (stream := self.streams.get(stream_id)) is not None:
            stream.send_window += more
            if not more or stream.send_window > _WINDOW_BYTES_MAX:
                self._refuse(stream, ErrorCode.FLOW_CONTROL_ERROR if more else ErrorCode.PROTOCOL_ERROR, arrived)
            elif stream.pending:
                self._send_pending(stream)
        elif stream_id > self.last_id:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, "a window of no call")

    def _take_settings(self, stream_id: int, flags: int, payload: bytes, arrived: list[Arrived]) -> None:
        if stream_id:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, "SETTINGS of a call")
        if len(payload) % _SETTING.size or (flags & ACK and payload):
            raise _Broken(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a wrong length")
        self._has_settings = True
        if flags & ACK:
            return
        window = self._initial_send_window
        for name, value in _SETTING.iter_unpack(payload):
            if name == _INITIAL_WINDOW_SIZE:
                if value > _WINDOW_BYTES_MAX:
                    raise _Broken(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {value}")
                window = value
            elif name == _MAX_FRAME_SIZE:
                if not FRAME_BYTES_MAX <= value < 2**24:  # larger ones would gain nothing
                    raise _Broken(ErrorCode.PROTOCOL_ERROR, f"frames of {value} bytes")
            elif name == _ENABLE_PUSH and value > 1:
                raise _Broken(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH {value}")
        self._send(_frame(SETTINGS, ACK, 0, b""))
        if window != self._initial_send_window:
            self._noise += len(self.streams) // _WINDOW_CHANGE_STREAMS
            more, self._initial_send_window = window - self._initial_send_window, window
            for stream in list(self.streams.values()):
                stream.send_window += more
                if stream.send_window > _WINDOW_BYTES_MAX:
                    raise _Broken(ErrorCode.FLOW_CONTROL_ERROR, "a window that is too large")
                if stream.pending and more > 0:
                    self._send_pending(stream)

    def _take_reset(self, stream_id: int, payload: bytes, arrived: list[Arrived]) -> None:
        if len(payload) != 4:
            raise _Broken(ErrorCode.FRAME_SIZE_ERROR, "a wrong RST_STREAM")
        if not stream_id or stream_id > self.last_id:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, "RST_STREAM of no call")
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        stream.has_ended = True
        self._forget(stream)
        arrived.append((stream, None, True))
        self._count_reset()

    def _take_priority(self, stream_id: int, payload: bytes, arrived: list[Arrived]) -> None:
        if not stream_id:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, "PRIORITY of no call")
        if len(payload) != 5:
            self._reset_id(stream_id, ErrorCode.FRAME_SIZE_ERROR, arrived)
        elif int.from_bytes(payload[:4]) & _WINDOW_BYTES_MAX == stream_id:
            self._reset_id(stream_id, ErrorCode.PROTOCOL_ERROR, arrived)

    def _count_reset(self) -> None:
        self._resets += 1
        if self._resets > RESETS_MAX:
            raise _Broken(ErrorCode.ENHANCE_YOUR_CALM, "too many calls are cancelled")

    def _count_noise(self) -> None:
        self._noise += 1
        if self._noise > NOISE_MAX:
            raise _Broken(ErrorCode.ENHANCE_YOUR_CALM, "too many frames without a call")

    # --- answers ---

    def answer(self, stream: Stream, head: bytes, data: bytes, trailers: bytes) -> bytes:
        """Return the frames of a whole answer that find room in the client's windows; the rest follows by ``send``.

        ``head`` and ``trailers`` are blocks of header fields. The stream ends.
        """
        size = len(data)
        if (
            size <= self._send_window
            and size <= stream.send_window
            and size <= FRAME_BYTES_MAX
            and not stream.pending
            and stream.has_ended
            and stream.id in self.streams
        ):
            del self.streams[stream.id]
            self.streams_bytes -= stream.held_bytes
            if self._resets:
                self._resets -= 1
            self._send_window -= size
            number = stream.id.to_bytes(4)
            return b"".join(
                (
                    *(len(head).to_bytes(3), b"\x01\x04", number, head),
                    *(size.to_bytes(3), b"\x00\x00", number, data),
                    *(len(trailers).to_bytes(3), b"\x01\x05", number, trailers),
                )
            )
        return self.begin_answer(stream, head) + self.send_data(stream, data) + self.end_answer(stream, trailers)

    def begin_answer(self, stream: Stream, head: bytes) -> bytes:
        """Return the frame that begins an answer."""
        return _frame(HEADERS, END_HEADERS, stream.id, head) if stream.id in self.streams else b""

    def send_data(self, stream: Stream, data: bytes) -> bytes:
        """Return the frames of data that find room in the windows; the rest becomes pending."""
        if stream.id not in self.streams:
            return b""
        size = len(data)
        if not stream.pending and 0 < size <= min(self._send_window, stream.send_window, FRAME_BYTES_MAX):
            self._noise = 0
            self._send_window -= size
            stream.send_window -= size
            return _frame(DATA, 0, stream.id, data)
        if stream.pending is None:
            stream.pending = deque()
        for at in range(0, size, FRAME_BYTES_MAX):  # each piece is released as soon as it has left
            stream.pending.append(data[at : at + FRAME_BYTES_MAX])
        stream.pending_bytes += size
        self.pending_bytes += size
        return b"".join(self._frames_of(stream))

    def end_answer(self, stream: Stream, trailers: bytes) -> bytes:
        """Return the frame that ends an answer, or keep it behind pending data."""
        if stream.id not in self.streams:
            return b""
        frame = _frame(HEADERS, END_HEADERS | END_STREAM, stream.id, trailers)
        if stream.pending:
            stream.trailers = frame
            return b""
        return frame + self._finished(stream)

    def refuse(self, stream: Stream, head: bytes) -> bytes:
        """Return the one frame of an answer that has only header fields."""
        if stream.id not in self.streams:
            return b""
        return _frame(HEADERS, END_HEADERS | END_STREAM, stream.id, head) + self._finished(stream)

    def _finished(self, stream: Stream) -> bytes:
        """Forget an answered stream; the frame that tells a client to send no more of its request.

        A client that ends its side unasked gets none. Rust's tonic 0.9 reads the end of a stream as an error for
        ever if a reset comes with a status other than OK, and servers in Java never send one.
        """
        self._forget(stream)
        if self._resets:
            self._resets -= 1
        if stream.has_ended:
            return b""
        self._note_reset(stream.id)
        if stream.ends_itself:
            return b""
        return _frame(RST_STREAM, 0, stream.id, _U32.pack(ErrorCode.NO_ERROR))

    def _frames_of(self, stream: Stream) -> list[bytes]:
        """Take from a stream's pending data as much as the windows allow, as frames."""
        frames: list[bytes] = []
        pending = stream.pending
        while pending:
            data = pending[0]
            room = min(self._send_window, stream.send_window, FRAME_BYTES_MAX)
            if room <= 0:
                self._note_blocked(stream)
                return frames
            if len(data) <= room:
                pending.popleft()
                piece = data
            else:
                piece, pending[0] = data[:room], data[room:]
            frames.append(_frame(DATA, 0, stream.id, piece))
            self._noise = 0  # the window that let it leave, and its acknowledgement, are none
            self._send_window -= len(piece)
            stream.send_window -= len(piece)
            stream.pending_bytes -= len(piece)
            self.pending_bytes -= len(piece)
            assert self._send_window >= 0, "no more leaves than the client has room for"
        self._blocked.pop(stream.id, None)
        if stream.trailers:
            frames.append(stream.trailers)
            frames.append(self._finished(stream))
        return frames

    def _note_blocked(self, stream: Stream) -> None:
        if stream.send_window > 0:
            self._blocked[stream.id] = stream
        else:
            self._blocked.pop(stream.id, None)

    def _send_pending(self, stream: Stream) -> None:
        if frames := self._frames_of(stream):
            self._send(b"".join(frames))

    def _go_on(self) -> None:
        """Send data that waited for the connection's window, as much as it allows.

        Each step uses up the window, or takes a stream from ``_blocked``: many blocked streams cost nothing.
        """
        frames: list[bytes] = []
        blocked = self._blocked
        while blocked and self._send_window > 0:
            stream = next(iter(blocked.values()))
            frames += self._frames_of(stream)
            if stream.id in blocked:
                assert self._send_window <= 0, "it is the only reason"
                blocked.move_to_end(stream.id)  # others come first next time
        if frames:
            self._send(b"".join(frames))

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream at once."""
        if self.streams.get(stream.id) is stream:
            self._forget(stream)
            self._send_reset(stream.id, code)

    def _refuse(self, stream: Stream, code: ErrorCode, arrived: list[Arrived]) -> None:
        """End a stream whose client breaks the rules: for the server, as if the client had cancelled it."""
        self.reset(stream, code)
        arrived.append((stream, None, True))
        self._count_reset()

    def _reset_id(self, stream_id: int, code: ErrorCode, arrived: list[Arrived]) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            self._send_reset(stream_id, code)
        else:
            self._refuse(stream, code, arrived)

    def _send_reset(self, stream_id: int, code: ErrorCode) -> None:
        self._note_reset(stream_id)
        self._send(_frame(RST_STREAM, 0, stream_id, _U32.pack(code)))

    def _note_reset(self, stream_id: int) -> None:
        self._reset_here[stream_id] = None
        if len(self._reset_here) > _RESET_HERE_MAX:
            del self._reset_here[next(iter(self._reset_here))]

    def _forget(self, stream: Stream) -> None:
        if self.streams.pop(stream.id, None) is not None:
            self.streams_bytes -= stream.held_bytes
        self._blocked.pop(stream.id, None)
        self.pending_bytes -= stream.pending_bytes
        stream.pending = None
        stream.pending_bytes = 0
        assert self.streams_bytes >= 0 <= self.pending_bytes, "what a stream holds is counted once"

    def ping(self) -> bytes:
        """Return a frame that the client must answer; it has read all frames before it then."""
        self.is_asked = True
        return _frame(PING, 0, 0, bytes(8))

    def leave(self) -> None:
        """Tell the client that no more calls are taken; those that came are answered."""
        if not self._is_leaving and self.violation is None:
            self._is_leaving = True
            self._send(_frame(GOAWAY, 0, 0, _GOAWAY.pack(self.last_id, ErrorCode.NO_ERROR)))

    def give_up(self, reason: str) -> None:
        """End the connection, since it takes too much."""
        if self.violation is None:
            self._break(ErrorCode.ENHANCE_YOUR_CALM, reason)

    def _break(self, code: ErrorCode, reason: str) -> None:
        self.violation = f"{code.name}: {reason}"
        self._buffer = b""
        self._block, self._block_bytes = None, 0
        self._send(_frame(GOAWAY, 0, 0, _GOAWAY.pack(self.last_id, code) + reason.encode()))


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream_id.to_bytes(4) + payload


def _are_wrong(trailers: Head, *, ends: bool) -> bool:
    """Tell whether the header fields behind a request can't be its trailers. RFC 9113, 8.1."""
    return not ends or bool(trailers.misplaced) or trailers.has_pseudo


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise _Broken(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
    return payload[1 : len(payload) - payload[0]]


_USUAL: Final = frozenset(  # names of RocketMQ's calls that need no look
    b"content-type user-agent grpc-timeout grpc-accept-encoding authorization x-mq-language x-mq-protocol "
    b"x-mq-client-version x-mq-client-id x-mq-date-time x-mq-request-id x-mq-namespace".split()
)
_PLAIN: Final = _USUAL - {b"content-type"}
_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_DECIDING: Final = frozenset({b":method", b":path", b"content-type"})  # about the method of a call
_OF_CONNECTIONS: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)


def head_of(before: Head | None, fields: list[Field]) -> Head:
    """Return header fields by name, behind the fields of ``before``, with a fault if they have one.

    The last value of a name counts.
    """
    if before is not None and before.is_request and _PLAIN.issuperset([name for name, _ in fields]):
        head = Head(before.fields | dict(fields), "", has_pseudo=True, is_behind=True)
        head.is_request, head.first = True, before
        return head
    by_name: dict[bytes, bytes] = {}
    fault = ""
    has_pseudo = is_behind = False
    if before is not None:
        by_name = before.fields.copy()
        fault, has_pseudo, is_behind = before.misplaced, before.has_pseudo, before.is_behind
    for name, value in fields:
        if name in _USUAL:
            is_behind = True
        elif name[:1] == b":":
            if is_behind or name not in _PSEUDO or name in by_name:
                fault = f"header field {name!r} may not be there"
            has_pseudo = True
        else:
            is_behind = True
            if not name or name != name.lower():
                fault = f"header field {name!r} is no name in lower case"
            elif name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
                fault = f"header field {name!r} is none of HTTP/2"
        by_name[name] = value
    head = Head(by_name, fault, has_pseudo=has_pseudo, is_behind=is_behind)
    head.is_request = not fault and all(by_name.get(name) for name in (b":method", b":scheme", b":path"))
    if before is not None and _DECIDING.isdisjoint([name for name, _ in fields]):
        head.first = before
    return head
