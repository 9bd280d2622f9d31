"""Messages as bytes: what nodes send is read, and anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import MessageError
from firearrow.raft import (
    Append,
    Appended,
    AskVote,
    Install,
    LogEntry,
    Message,
    StateSnapshot,
    Vote,
    decode_messages,
    encode_messages,
)
from firearrow.raft.messages import ENTRIES_MAX


def test_messages_come_back_from_their_bytes() -> None:
    entries = [LogEntry(4, 2, b"x"), LogEntry(5, 3)]
    messages: list[Message] = [
        AskVote(sender="n0", to="n1", term=3, last_index=5, last_term=2, is_trial=True),
        Vote(sender="n1", to="n0", term=3, is_granted=True, is_trial=True),
        Append(sender="n0", to="n1", term=3, previous_index=3, previous_term=2, entries=entries, committed=4),
        Appended(sender="n1", to="n0", term=3, index=3, is_refused=True, hint_index=2, hint_term=1),
        Install(sender="n0", to="n1", term=3, snapshot=StateSnapshot(2, 1, b"state")),
    ]
    assert decode_messages(encode_messages(messages)) == messages


@pytest.mark.parametrize(
    ("previous", "entries", "term"),
    [
        ((3, 2), [LogEntry(5, 2)], 2),
        ((3, 2), [LogEntry(4, 1)], 2),
        ((3, 2), [LogEntry(4, 3)], 2),
        ((3, 2), [LogEntry(4, 2), LogEntry(4, 2)], 2),
    ],
)
def test_entries_that_do_not_follow_are_refused(previous: tuple[int, int], entries: list[LogEntry], term: int) -> None:
    index, previous_term = previous
    message = Append(
        sender="n0", to="n1", term=term, previous_index=index, previous_term=previous_term, entries=entries, committed=0
    )
    with pytest.raises(MessageError):
        decode_messages(encode_messages([message]))


MAX = 2**63 - 1


@pytest.mark.parametrize(
    "message",
    [
        AskVote(sender="n0", to="n1", term=2**64 - 1, last_index=0, last_term=0, is_trial=False),
        AskVote(sender="n0", to="n1", term=-1, last_index=0, last_term=0, is_trial=False),
        Appended(sender="n0", to="n1", term=1, index=MAX + 1),
        Append(
            sender="n0",
            to="n1",
            term=1,
            previous_index=0,
            previous_term=0,
            entries=[LogEntry(number + 1, 1) for number in range(ENTRIES_MAX + 1)],
            committed=0,
        ),
        Install(sender="n0", to="n1", term=1, snapshot=StateSnapshot(1, 2)),
    ],
)
def test_numbers_have_bounds(message: Message) -> None:
    with pytest.raises(MessageError):
        decode_messages(encode_messages([message]))


def test_a_name_that_is_no_utf_8_is_refused() -> None:
    sound = encode_messages([Vote(sender="n0", to="n1", term=1, is_granted=True, is_trial=True)])
    with pytest.raises(MessageError, match=r"(?i)utf-8"):
        decode_messages(sound.replace(b"n0", b"\xff0"))


@given(st.binary())
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    try:
        messages = decode_messages(data)
    except MessageError:
        return
    assert decode_messages(encode_messages(list(messages))) == messages
