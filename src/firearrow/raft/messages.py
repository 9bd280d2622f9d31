"""What nodes say to each other, and what each has to remember: values, and their encoding.

On the wire and on the disk they are MessagePack arrays, the fields in the order of declaration; a
message has the name of its class before them, and what all messages have behind them. A node is
named by text, ``n0``; no name is nobody.
"""

from __future__ import annotations

from typing import Final

import msgspec

NOBODY: Final = ""


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """One entry of the log: its place (from 1), the term of the leader that made it, and what the
    state machine makes of it; nothing, if a new leader only wanted to know where it stands."""

    index: int
    term: int
    data: bytes = b""


class Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """The state of the state machine after the entry ``index``, of ``term``."""

    index: int = 0
    term: int = 0
    data: bytes = b""


NO_SNAPSHOT: Final = Snapshot()


class Saved(msgspec.Struct, array_like=True, frozen=True):
    """What a node has to find again after a crash, or the change of it.

    ``entries`` replace those of the same and of higher indexes, ``snapshot`` replaces all.
    """

    term: int = 0
    vote: str = NOBODY
    entries: list[Entry] = []
    snapshot: Snapshot | None = None


class Message(msgspec.Struct, array_like=True, frozen=True, tag=True, kw_only=True):
    """Base of the messages; ``term`` is that of the sender."""

    sender: str
    to: str
    term: int


class AskVote(Message, frozen=True, tag=True):
    """A candidate wants to be the leader of ``term``; its log ends with these two numbers.

    One that only asks whether it would be elected (``is_trial``) is not in that term yet.
    """

    last_index: int
    last_term: int
    is_trial: bool


class Vote(Message, frozen=True, tag=True):
    """The answer; one to a trial that is granted has the term of the trial."""

    is_granted: bool
    is_trial: bool


class Append(Message, frozen=True, tag=True):
    """The leader's entries behind the entry ``previous_index`` of ``previous_term``; none, if it
    only wants to be heard. All up to ``committed`` are agreed on."""

    previous_index: int
    previous_term: int
    entries: list[Entry]
    committed: int


class Appended(Message, frozen=True, tag=True):
    """A follower's log is the leader's up to ``index``.

    One that ``is_refused`` has no such entry as the one before those that came, at ``index``: the
    leader should look at ``hint_index``, where the follower has an entry of ``hint_term``.
    """

    index: int
    is_refused: bool = False
    hint_index: int = 0
    hint_term: int = 0


class Install(Message, frozen=True, tag=True):
    """The leader's state, for a follower that lacks entries which the leader has no more."""

    snapshot: Snapshot


AnyMessage = AskVote | Vote | Append | Appended | Install
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[AnyMessage])


def encode_messages(messages: list[Message]) -> bytes:
    """Give the bytes of several messages."""
    return _encoder.encode(messages)


def decode_messages(data: bytes) -> list[AnyMessage]:
    """Read messages; raises ``msgspec.DecodeError`` for what no node sends."""
    messages = _decoder.decode(data)
    for message in messages:
        if isinstance(message, Append):
            _check_run(message)
    return messages


def _check_run(message: Append) -> None:
    """Raise DecodeError unless the entries follow one on another, and on the one before."""
    index, term = message.previous_index, message.previous_term
    for entry in message.entries:
        if entry.index != index + 1 or not term <= entry.term <= message.term:
            raise msgspec.ValidationError(f"entry {entry.index} does not follow on {index}")
        index, term = entry.index, entry.term
