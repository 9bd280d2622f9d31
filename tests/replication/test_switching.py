"""Both sides of a connection in controller mode, without one."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import RemoteProtocolError
from firearrow.replication.epochs import Epoch, Epochs
from firearrow.replication.stream import Mismatch
from firearrow.replication.switching import (
    FrameHead,
    Greeting,
    MasterLog,
    Piece,
    SwitchReceiving,
    SwitchSending,
    report,
)

FILE_BYTES = 64
SLAVE_SAYS = bytes.fromhex("00000001 0000 0000 0000000000000002")
MASTER_SAYS = bytes.fromhex("00000001 0000000c 0000000000001002 00000001 000000010000000000000000")
FRAME = bytes.fromhex("00000002 00000002 0000000000001000 00000001 0000000000000000 0000000000001000 4142")


def test_the_example_of_the_module() -> None:
    assert Greeting(2).encode() == SLAVE_SAYS
    sending = SwitchSending(FILE_BYTES, Epochs([Epoch(1, 0)]), lambda: 4096)
    assert not sending.receive(SLAVE_SAYS, 4098)
    assert (sending.greeting, sending.take_reply()) == (Greeting(2), MASTER_SAYS)
    assert sending.take_reply() == b""
    assert report(4096) == bytes.fromhex("00000002 0000000000001000")
    assert sending.receive(report(4096), 4098)
    assert b"".join(sending.frame(b"AB")) == FRAME
    receiving = SwitchReceiving(4096)
    [log] = receiving.receive(MASTER_SAYS)
    assert isinstance(log, MasterLog)
    assert (log.end, log.epochs.entries) == (4098, [Epoch(1, 0)])
    receiving.is_ready = True
    head, piece = receiving.receive(FRAME)
    assert head == FrameHead(Epoch(1, 0), 4096)
    assert isinstance(piece, Piece)
    assert (piece.physical_offset, bytes(piece.data)) == (4096, b"AB")


@pytest.mark.parametrize(("from_last_file", "first"), [(True, 192), (False, 64)])
def test_an_empty_log_asks_for_all_or_for_the_last_file(from_last_file: bool, first: int) -> None:
    sending = SwitchSending(FILE_BYTES, Epochs([Epoch(1, 0)]), lambda: 0)
    greeting = Greeting(7, is_learner=True, from_last_file=from_last_file)
    sending.receive(greeting.encode(), 200, 64)
    assert sending.greeting == greeting
    assert sending.receive(report(0), 200, 64)
    assert sending.next_offset == first


@pytest.mark.parametrize(
    ("before", "said"),
    [(b"", report(0)), (SLAVE_SAYS, b"\0\0\0\3" + bytes(20)), (SLAVE_SAYS + report(0), SLAVE_SAYS)],
    ids=["report first", "state", "again"],
)
def test_a_slave_that_says_something_else(before: bytes, said: bytes) -> None:
    sending = SwitchSending(FILE_BYTES, Epochs([Epoch(1, 0)]), lambda: 0)
    sending.receive(before, 0)
    with pytest.raises(RemoteProtocolError):
        sending.receive(said, 0)


def test_a_slave_that_is_ahead() -> None:
    sending = SwitchSending(FILE_BYTES, Epochs([Epoch(1, 0)]), lambda: 0)
    sending.receive(SLAVE_SAYS, 100)
    with pytest.raises(Mismatch, match="which ends at 100 here"):
        sending.receive(report(101), 100)


@given(
    starts=st.lists(st.integers(0, 60), max_size=6), size=st.integers(0, 400), seed=st.randoms(use_true_random=False)
)
def test_however_it_is_cut_the_copy_and_its_epochs_become_those_of_the_log(
    starts: list[int], size: int, seed: Random
) -> None:
    log = seed.randbytes(size)
    entries = [Epoch(1, 0)]
    for gap in starts:
        if entries[-1].start + gap <= size:
            entries.append(Epoch(entries[-1].epoch + seed.randint(1, 3), entries[-1].start + gap))
    epochs, copied = Epochs(entries), Epochs()
    sending = SwitchSending(FILE_BYTES, epochs, lambda: size)
    receiving = SwitchReceiving(0)
    copy = bytearray()
    to_master, to_slave = Greeting(3).encode(), b""
    for _ in range(40 * size + 400):
        cut = seed.randint(1, 60)
        now, to_master = to_master[:cut], to_master[cut:]
        sending.receive(now, size)
        to_slave += sending.take_reply()
        at = sending.next_offset
        if at is not None and not to_slave:
            most = min(sending.room, seed.randint(1, 50))
            to_slave += b"".join(sending.frame(log[at : at + most]))
        now, to_slave = to_slave[:cut], to_slave[cut:]
        for it in receiving.receive(now):
            match it:
                case MasterLog(end, theirs):
                    assert (end, theirs.entries) == (size, entries)
                    receiving.is_ready = True
                case FrameHead(epoch, confirmed):
                    assert confirmed == size
                    if epoch.epoch > copied.last_epoch:
                        copied.begin(*epoch)
                case Piece(offset, data):
                    assert offset == len(copy)
                    own = copied.at(offset)
                    assert own is not None
                    assert own == epochs.at(offset + len(data) - 1), "none spans two epochs"
                    copy += data
        if receiving.is_ready:
            to_master += report(len(copy)) if not to_master else b""
        if len(copy) == size and sending.acked == size and seed.random() < 0.2:
            break
    assert copy == log


@given(data=st.binary(max_size=200), ready=st.booleans(), end=st.integers(0, 300))
def test_whatever_a_master_sends_is_an_error_or_follows_on_what_is_there(data: bytes, ready: bool, end: int) -> None:
    receiving = SwitchReceiving(end)
    receiving.is_ready = ready
    followed = end
    try:
        for it in receiving.receive(data):
            if isinstance(it, MasterLog):
                return
            if isinstance(it, Piece):
                assert it.physical_offset == followed or not followed
                followed = it.physical_offset + len(it.data)
    except RemoteProtocolError:
        pass
    assert receiving.end_offset >= followed
