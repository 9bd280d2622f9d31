"""Both sides of a replication connection, without one."""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import RemoteProtocolError
from firearrow.replication.stream import FRAME_DATA_BYTES_MAX, FRAME_HEAD, LogSender, Mismatch, Receiving, report

FILE_BYTES = 64


def test_the_example_of_the_module() -> None:
    assert report(4096) == bytes.fromhex("0000000000001000")
    sending = LogSender(FILE_BYTES)
    assert sending.receive(report(4096), 4098)
    assert b"".join(sending.frame(b"AB")) == bytes.fromhex("0000000000001000 00000002 4142")
    assert sending.next_offset == 4098


# --- the two together ---


@dataclass
class Pair:
    """A log, a slave's copy of it, and what is on its way between the two."""

    log: bytes
    copy: bytearray
    starts_at: int = 0  # where the copy begins
    to_slave: bytes = b""
    to_master: bytes = b""
    sending: LogSender = field(default_factory=lambda: LogSender(FILE_BYTES))

    def __post_init__(self) -> None:
        self.receiving = Receiving(self.end)
        self.report()

    @property
    def end(self) -> int:
        return self.starts_at + len(self.copy)

    def report(self) -> None:
        self.to_master += report(self.end)

    def send(self, most: int) -> None:
        """The master sends up to so many bytes, or a heartbeat, if it may."""
        at = self.sending.next_offset
        if at is not None:
            file_end = (at // FILE_BYTES + 1) * FILE_BYTES
            self.to_slave += b"".join(self.sending.frame(self.log[at : min(at + most, file_end)]))

    def slave_reads(self, most: int) -> None:
        data, self.to_slave = self.to_slave[:most], self.to_slave[most:]
        for at, piece in self.receiving.receive(data):
            if not self.copy:
                self.starts_at = at
            assert at == self.end
            self.copy += piece
        self.report()

    def master_reads(self, most: int) -> None:
        data, self.to_master = self.to_master[:most], self.to_master[most:]
        self.sending.receive(data, len(self.log))

    def step(self, random: Random) -> None:
        most = random.choice([1, 3, 11, 12, 13, 50, 1000])
        random.choice([self.send, self.slave_reads, self.master_reads])(most)


@given(size=st.integers(0, 500), had=st.integers(0, 500), seed=st.randoms(use_true_random=False))
def test_however_it_is_cut_the_copy_becomes_the_log(size: int, had: int, seed: Random) -> None:
    log = seed.randbytes(size)
    pair = Pair(log, bytearray(log[:had]))
    for _ in range(200):
        pair.step(seed)
        acked = pair.sending.acked
        assert acked <= pair.end, "what is acknowledged is there"
        pair.log += seed.randbytes(seed.choice([0, 0, 5]))  # the master goes on meanwhile
    for _ in range(2 * len(pair.log) + 100):
        pair.send(16)
        pair.slave_reads(1 << 20)
        pair.master_reads(1 << 20)
    if not pair.end and len(pair.log) % FILE_BYTES == 0:
        return  # the last file begins where the log ends: there is nothing to send yet
    assert pair.end == len(pair.log)
    assert pair.copy == pair.log[pair.starts_at :]
    assert pair.sending.acked == pair.end
    if size and not had:
        assert pair.starts_at % FILE_BYTES == 0


@given(data=st.binary(max_size=200), end=st.integers(0, 300), seed=st.randoms())
def test_whatever_a_master_sends_is_an_error_or_follows_on_what_is_there(data: bytes, end: int, seed: Random) -> None:
    receiving = Receiving(end)
    followed = end
    try:
        while data:
            cut = seed.randint(1, len(data))
            for at, piece in receiving.receive(data[:cut]):
                assert at == followed or not followed
                followed = at + len(piece)
            data = data[cut:]
    except RemoteProtocolError:
        pass
    assert receiving.end_offset >= followed


@given(data=st.binary(max_size=200), end=st.integers(0, 300))
def test_whatever_a_slave_reports_is_an_error_or_within_the_log(data: bytes, end: int) -> None:
    sending = LogSender(FILE_BYTES)
    try:
        sending.receive(data, end)
    except Mismatch:
        return
    assert sending.acked <= end
    assert sending.next_offset is None or 0 <= sending.next_offset <= end


# --- the master's side ---


def test_an_empty_slave_gets_the_last_file() -> None:
    for end, start in ((0, 0), (63, 0), (64, 64), (150, 128)):
        sending = LogSender(FILE_BYTES)
        assert sending.receive(report(0), end)
        assert sending.next_offset == start


def test_only_the_last_whole_report_counts() -> None:
    sending = LogSender(FILE_BYTES)
    stream = report(10) + report(20) + report(30)
    assert sending.receive(stream[:20], 100)
    assert sending.acked == 20
    assert (sending.next_offset, sending.frame(bytes(10))[0]) == (20, FRAME_HEAD.pack(20, 10))
    assert sending.receive(stream[20:], 100)
    assert sending.acked == 30


def test_a_negative_report_says_nothing() -> None:
    sending = LogSender(FILE_BYTES)
    assert not sending.receive(b"\xff" * 8, 100)
    assert (sending.acked, sending.next_offset) == (-1, None)


def test_a_slave_that_has_what_it_can_not_have_is_none() -> None:
    with pytest.raises(Mismatch, match="has the log up to 101, which ends at 100 here"):
        LogSender(FILE_BYTES).receive(report(101), 100)
    sending = LogSender(FILE_BYTES)
    sending.receive(report(10), 100)
    sending.frame(bytes(5))
    with pytest.raises(Mismatch, match="has the log up to 16, and was sent 15"):
        sending.receive(report(16), 100)


# --- the slave's side ---


def test_a_frame_that_does_not_follow_is_refused_with_nothing_taken_of_it() -> None:
    for at in (99, 101):
        receiving = Receiving(100)
        with pytest.raises(Mismatch, match=f"from {at} on, it ends at 100 here"):
            list(receiving.receive(FRAME_HEAD.pack(at, 3) + b"abc"))
        assert receiving.end_offset == 100


def test_a_heartbeat_must_follow_too_and_an_empty_log_begins_with_bytes_only() -> None:
    with pytest.raises(Mismatch):
        list(Receiving(100).receive(FRAME_HEAD.pack(64, 0)))
    empty = Receiving(0)
    assert list(empty.receive(FRAME_HEAD.pack(64, 0))) == []
    assert empty.end_offset == 0
    assert [(at, bytes(piece)) for at, piece in empty.receive(FRAME_HEAD.pack(128, 1) + b"x")] == [(128, b"x")]
    assert empty.end_offset == 129


@pytest.mark.parametrize("head", [(0, -1), (0, FRAME_DATA_BYTES_MAX + 1), (-1, 5)])
def test_what_is_no_frame_ends_the_connection(head: tuple[int, int]) -> None:
    with pytest.raises(RemoteProtocolError, match="no frame of a log"):
        list(Receiving(0).receive(FRAME_HEAD.pack(*head)))


def test_of_a_frame_what_is_there_is_taken() -> None:
    receiving = Receiving(10)
    frame = FRAME_HEAD.pack(10, 6) + b"abcdef"
    taken = [bytes(piece) for cut in (frame[:14], frame[14:17], frame[17:]) for _, piece in receiving.receive(cut)]
    assert taken == [b"ab", b"cde", b"f"]
    assert receiving.end_offset == 16
