"""One side of a remoting connection as a state machine: bytes in, commands out.

Frames come in any split. A whole frame is decoded from the buffer that the transport delivered,
without copying it together first; only a frame that a read cut in two is held until its rest is
there, and never more than one. A length that no sound peer sends ends the connection before a byte
of it is stored, so announcing a large frame costs a server nothing.

What is held costs about as much as it is long: the pieces of a peer that sends byte by byte are put
together as they come.

After a violation the connection takes nothing more: ``violation`` says why, in one sentence. The
commands that came before it in the same read are still returned.
"""

from __future__ import annotations

from typing import Final

import msgspec

from firearrow.errors import RemoteProtocolError
from firearrow.wire.frame import (
    HEADER_BYTES_MAX,
    HOT_DECODERS,
    HOT_PREFIX_BYTES,
    KIND_JSON,
    LENGTHS,
    AnyCommand,
    decode_header,
)

# Java's default com.rocketmq.remoting.frameMaxLength; a body of 4 MiB fits with room to spare.
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
# A peer that sends a frame byte by byte must not cost an object a byte: a piece shorter than the
# first is joined to the one before it until that is as long as the second.
CHUNK_BYTES_SMALL: Final = 1024
CHUNK_BYTES_FULL: Final = 64 * 1024
_TLS_HANDSHAKE: Final = 0x16


class Connection:
    """Reads commands from a stream of bytes.

    ``receive`` never raises on what a peer sends; see ``violation``.
    """

    __slots__ = (
        *("_chunks", "_frame_bytes_max", "_needed_bytes"),
        *("frames_begun", "held_bytes", "violation"),
    )

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._chunks: list[bytes] = []
        self._needed_bytes = 0
        self.held_bytes = 0  # of a frame that is not whole yet
        self.frames_begun = 0  # how often one was not whole at first
        self.violation: str | None = None

    @property
    def missing_bytes(self) -> int:
        """How much the frame that is not whole yet still lacks, as far as is known."""
        return self._needed_bytes - self.held_bytes if self._chunks else 0

    def receive(self, data: bytes) -> list[AnyCommand]:
        """Take what the transport delivered and return the commands that are now whole."""
        if self.violation is not None:
            return []
        if self._chunks:
            self.held_bytes += len(data)
            if self.held_bytes < self._needed_bytes:
                self._add(data)
                return []
            self._chunks.append(data)
            data = b"".join(self._chunks)
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
        """Decode all whole frames of ``data``; return where the first that is not whole begins."""
        at = 0
        end = len(data)
        bytes_max = self._frame_bytes_max
        hot = HOT_DECODERS.get
        while end - at >= 8:
            total, word = LENGTHS.unpack_from(data, at)
            if total > bytes_max:
                raise RemoteProtocolError(self._bad_length(total, data[at]))
            stop = at + 4 + total
            if stop > end:
                break
            body_at = at + 8 + (word & 0xFFFFFF)
            if body_at > stop:
                raise RemoteProtocolError(
                    f"a header of {word & 0xFFFFFF} bytes in a frame of {total}"
                )
            # A copy: msgspec takes a memoryview too, but the look-up needs something that hashes.
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
            return "the peer speaks TLS, which this server does not offer yet"
        return f"a frame of {total} bytes is above the limit of {self._frame_bytes_max}"

    def _hold(self, rest: bytes) -> None:
        assert not self._chunks, "one frame at a time is held"
        self._chunks.append(rest)
        self.held_bytes = len(rest)
        self.frames_begun += 1
        self._needed_bytes = 8
        if len(rest) >= 8:
            self._needed_bytes = 4 + int.from_bytes(rest[:4], "big")

    def _add(self, data: bytes) -> None:
        chunks = self._chunks
        if len(data) < CHUNK_BYTES_SMALL and len(chunks[-1]) < CHUNK_BYTES_FULL:
            chunks[-1] += data
        else:
            chunks.append(data)

    def give_up(self, why: str) -> AnyCommand | None:
        """Forget the frame that is not whole, and take nothing more.

        Returns its command, without the body, if its header is all there and can be read.
        """
        held = b"".join(self._chunks)
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
