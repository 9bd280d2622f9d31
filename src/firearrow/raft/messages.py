"""Messages between nodes, and the durable state of each: values, and their encoding.

On the wire and on the disk they are MessagePack arrays with the fields in the order of declaration. A message has the
name of its class before them, and the fields of all messages behind them. A text names a node, ``n0``; an empty name
stands for no node.

Terms and indexes are below 2**63. `STEP_MAX` limits how far received ones may be ahead of a node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from firearrow.errors import MessageError
from firearrow.javanumbers import LONG_MAX

T = TypeVar("T")

NOBODY: Final = ""
ENTRIES_MAX: Final = 4096  # in one message: sixteen times what a leader sends
MESSAGES_MAX: Final = 1024  # in one request: sixteen times what a sender keeps
# A term takes a second at least: a node that missed this count was away for eight years. Nobody can bring a group to
# the last term by such steps, each of which waits for the disk.
STEP_MAX: Final = 1 << 28

Number = Annotated[int, Meta(ge=0, le=LONG_MAX)]


class LogEntry(msgspec.Struct, array_like=True, frozen=True):
    """One entry of the log: its index (from 1), the term of the leader that made it, and data for the state machine.

    The data are empty if a new leader only wanted to find out which entries are committed.
    """

    index: Number
    term: Number
    data: bytes = b""


class StateSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """The state of the state machine after the entry ``index``, of ``term``."""

    index: Number = 0
    term: Number = 0
    data: bytes = b""


NO_SNAPSHOT: Final = StateSnapshot()


class Saved(msgspec.Struct, array_like=True, frozen=True):
    """Durable state of a node, or a change of it.

    ``entries`` replace entries of the same and of higher indexes, ``snapshot`` replaces all.
    """

    term: Number = 0
    vote: str = NOBODY
    entries: list[LogEntry] = []
    snapshot: StateSnapshot | None = None


class Message(msgspec.Struct, array_like=True, frozen=True, tag=True, kw_only=True):
    """Base of the messages; ``term`` is the sender's term."""

    sender: str
    to: str
    term: Number


class AskVote(Message, frozen=True, tag=True):
    """A candidate wants to be the leader of ``term``; its log ends with these two numbers.

    A candidate that only asks whether it would be elected (``is_trial``) is not in that term yet.
    """

    last_index: Number
    last_term: Number
    is_trial: bool


class Vote(Message, frozen=True, tag=True):
    """The answer to `AskVote`; a granted trial has the term of the trial."""

    is_granted: bool
    is_trial: bool


class Append(Message, frozen=True, tag=True):
    """The leader's entries behind the entry ``previous_index`` of ``previous_term``; none for a mere heartbeat.

    All entries up to ``committed`` are committed.
    """

    previous_index: Number
    previous_term: Number
    entries: Annotated[list[LogEntry], Meta(max_length=ENTRIES_MAX)]
    committed: Number


class Appended(Message, frozen=True, tag=True):
    """A follower's log matches the leader's up to ``index``.

    If ``is_refused``, the follower lacks the entry before the received ones, at ``index``. The leader should try
    ``hint_index``, where the follower has an entry of ``hint_term``.
    """

    index: Number
    is_refused: bool = False
    hint_index: Number = 0
    hint_term: Number = 0


class Install(Message, frozen=True, tag=True):
    """The leader's state, for a follower that lacks entries which the leader no longer has."""

    snapshot: StateSnapshot


AnyMessage = AskVote | Vote | Append | Appended | Install
_encoder: Final = msgspec.msgpack.Encoder()
_Messages = Annotated[list[AnyMessage], Meta(max_length=MESSAGES_MAX)]
_decoder: Final[msgspec.msgpack.Decoder[list[AnyMessage]]] = msgspec.msgpack.Decoder(_Messages)


def encode_messages(messages: list[Message]) -> bytes:
    """Return the bytes of several messages."""
    return _encoder.encode(messages)


def decode_messages(data: bytes) -> list[AnyMessage]:
    """Read messages; raises MessageError for bytes that no node sends."""
    messages = readable(_decoder.decode, data)
    for message in messages:
        if isinstance(message, Append):
            _check_run(message)
        elif isinstance(message, Install) and message.snapshot.term > message.term:
            raise MessageError(f"its term is after that of the message, {message.term}", "snapshot")
    return messages


def readable(decode: Callable[[bytes], T], data: bytes) -> T:
    """Decode bytes; raises MessageError if they are of another form."""
    try:
        return decode(data)
    except (ValueError, RecursionError) as error:
        raise MessageError(str(error)) from None


def _check_run(message: Append) -> None:
    """Raise MessageError unless the entries follow one another, and the first follows the previous entry."""
    index, term = message.previous_index, message.previous_term
    for entry in message.entries:
        if entry.index != index + 1 or not term <= entry.term <= message.term:
            raise MessageError(f"it does not follow on {index}", f"entry {entry.index}")
        index, term = entry.index, entry.term
