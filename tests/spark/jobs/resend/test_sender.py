"""Messages sent again arrive once each, wherever the sender dies and whatever gets lost."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from firearrow.client.queues import Bound, Queue, Span
from firearrow.errors import BrokerBusy, BrokerError, CorruptStore, MessageError, StoreLocked
from firearrow.message import properties
from firearrow.message.batch import BatchMember
from firearrow.spark.jobs.resend.sender import Pace, ProgressFile, QueueResend, SourceMarks, SourceProgress
from firearrow.spark.tables import MESSAGES
from firearrow.wire.codes import ResponseCode
from tests.broker.fakes import HandClock
from tests.spark.jobs.inline import Killed
from tests.spark.origins import MemoryOrigin, Piece

A = Queue("T", "a", 0)
MARKS = SourceMarks("job", A)
COUNT = 40


class FakeQueue:
    """A queue in memory, and the trouble that its ``trouble``-th batch makes."""

    def __init__(self, error: type[BaseException] | None = None) -> None:
        self.messages: list[tuple[bytes, dict[str, str]]] = []
        self.trouble = -1
        self.arrives = True
        self.error = error
        self.sends = 0
        self.flags: list[int] = []
        self.stranger = False

    def end(self) -> int:
        return len(self.messages)

    def properties(self, start: int) -> Iterator[dict[str, str]]:
        return iter([found for _, found in self.messages[start:]])

    def send(self, members: Sequence[BatchMember], sys_flag: int) -> None:
        self.sends += 1
        self.flags.append(sys_flag)
        fails = self.trouble == 0
        self.trouble -= 1
        if not fails or self.arrives:
            self.messages += [(member.body, properties.parse(member.properties)) for member in members]
        if self.stranger:
            self.messages.append((b"of somebody else", {"REPLAY_JOB": "other"}))
        if fails and self.error is not None:
            raise self.error(2, "busy") if self.error is BrokerBusy else self.error()

    def bodies(self) -> list[bytes]:
        return [body for body, _ in self.messages if body != b"of somebody else"]


def rows(start: int) -> Iterator[pa.RecordBatch]:
    origin = MemoryOrigin({A: Bound(0, COUNT)})
    return origin.read(Piece({A: Span(start, COUNT)}), MESSAGES)


def resend(target: FakeQueue, root: Path, marks: SourceMarks | None, slept: list[float]) -> QueueResend:
    pace = Pace(None)
    ledger = ProgressFile(root / "queue.json")
    return QueueResend(rows, target, ledger, marks, pace, slept.append, 1000, 300)


EXPECTED = [b"T/a/0/%d" % offset for offset in range(COUNT)]
HOWS = pytest.mark.parametrize("marks", [MARKS, None], ids=["marked", "positional"])


@HOWS
def test_everything_arrives_in_order_and_is_not_sent_again(tmp_path: Path, marks: SourceMarks | None) -> None:
    target = FakeQueue()
    slept: list[float] = []
    done = resend(target, tmp_path, marks, slept).run()
    assert target.bodies() == EXPECTED
    assert done == SourceProgress(COUNT, COUNT, COUNT, done=True)
    sends = target.sends
    assert resend(target, tmp_path, marks, slept).run() == done
    assert (target.sends, slept) == (sends, [])
    assert sends > 5


@HOWS
@pytest.mark.parametrize("arrives", [True, False])
def test_a_sender_that_dies_at_any_batch_sends_nothing_twice(
    tmp_path: Path, marks: SourceMarks | None, arrives: bool
) -> None:
    for batch in range(30):
        target = FakeQueue(Killed)
        target.trouble, target.arrives = batch, arrives
        target.stranger = marks is not None
        for _ in range(2):
            try:
                resend(target, tmp_path / str(batch), marks, []).run()
            except Killed:
                target.trouble = 3  # and once more, a little later
        target.trouble = -1
        done = resend(target, tmp_path / str(batch), marks, []).run()
        assert target.bodies() == EXPECTED
        assert (done.sent, done.done) == (COUNT, True)


@HOWS
@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("error", [TimeoutError, BrokerBusy])
def test_an_answer_that_does_not_come_is_looked_into(
    tmp_path: Path, marks: SourceMarks | None, arrives: bool, error: type[BaseException]
) -> None:
    target = FakeQueue(error)
    target.trouble, target.arrives = 4, arrives
    slept: list[float] = []
    assert resend(target, tmp_path, marks, slept).run().sent == COUNT
    assert target.bodies() == EXPECTED
    assert slept == [3.0]


@pytest.mark.parametrize(
    ("code", "pauses"),
    [
        (ResponseCode.SYSTEM_ERROR, 4),
        (ResponseCode.SYSTEM_BUSY, 4),
        (ResponseCode.SERVICE_NOT_AVAILABLE, 4),
        (ResponseCode.FLOW_CONTROL, 4),
        (ResponseCode.MESSAGE_ILLEGAL, 0),
        (ResponseCode.NO_PERMISSION, 0),
        (ResponseCode.TOPIC_NOT_EXIST, 0),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 0),
    ],
)
def test_a_target_that_takes_nothing_is_an_error(code: ResponseCode, pauses: int, tmp_path: Path) -> None:
    """At once where the reason does not pass, in the end where it may."""

    class Refusing(FakeQueue):
        def send(self, members: Sequence[BatchMember], sys_flag: int) -> None:
            raise BrokerError.lookup(code)(code, "what the broker says")

    slept: list[float] = []
    with pytest.raises(BrokerError, match=f"code {code}: what the broker says"):
        resend(Refusing(), tmp_path, None, slept).run()
    assert slept == [3.0] * pauses


def test_others_in_a_queue_that_is_ours_are_noticed(tmp_path: Path) -> None:
    target = FakeQueue()
    target.stranger = True
    with pytest.raises(CorruptStore, match="other programs write to it too"):
        resend(target, tmp_path, None, []).run()


def test_two_processes_do_not_send_the_same(tmp_path: Path) -> None:
    with (
        ProgressFile(tmp_path / "queue.json").held(),
        pytest.raises(StoreLocked, match="another process is running this job"),
    ):
        resend(FakeQueue(), tmp_path, None, []).run()


def test_a_ledger_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "queue.json").write_bytes(b"{}")
    with pytest.raises(CorruptStore, match="is not a progress file"):
        resend(FakeQueue(), tmp_path, None, []).run()


def test_marks_say_where_a_message_comes_from(tmp_path: Path) -> None:
    target = FakeQueue()
    resend(target, tmp_path, MARKS, []).run()
    assert target.messages[7][1] == {
        "TAGS": "t1", "KEYS": "k7", "REPLAY_JOB": "job", "REPLAY_TOPIC": "T", "REPLAY_BROKER": "a",
        "REPLAY_QUEUE": "0", "REPLAY_OFFSET": "7", "REPLAY_ID": "ID0-7",
    }  # fmt: skip


def of_one(text: str) -> Iterator[pa.RecordBatch]:
    row = MemoryOrigin().message(A, 0) | {"properties": text}
    yield pa.RecordBatch.from_pylist([row], MESSAGES)


def test_what_would_delay_or_hide_a_message_is_left_out(tmp_path: Path) -> None:
    text = "DELAY\x013\x02TRAN_MSG\x01true\x02own\x01kept\x02UNIQ_KEY\x01id"
    target = FakeQueue()
    job = resend(target, tmp_path, MARKS, [])
    job.rows = lambda _: of_one(text)
    job.run()
    ((_, found),) = target.messages
    assert (found["own"], found["UNIQ_KEY"], found["REPLAY_JOB"]) == ("kept", "id", "job")
    assert {"DELAY", "TRAN_MSG"}.isdisjoint(found)


def test_a_batch_has_bodies_of_one_kind(tmp_path: Path) -> None:
    """A broker gives all records of a batch the flag of the request."""
    plain = b"body" * 50
    kinds = [0, 0x301, 0x301, 0, 0x301]
    target = FakeQueue()
    job = resend(target, tmp_path, None, [])
    job.rows = lambda _: iter([pa.RecordBatch.from_pylist([*packed(kinds, plain)], MESSAGES)])
    job.batch_bytes = 1 << 20
    job.run()
    assert target.flags == [0, 0x301, 0, 0x301]
    assert [zlib.decompress(b) if f else b for f, b in zip(kinds, target.bodies(), strict=True)] == [plain] * 5


def packed(kinds: list[int], plain: bytes) -> Iterator[dict[str, object]]:
    """Rows as a store has them, the last one as an archive has it: decompressed."""
    for offset, kind in enumerate(kinds):
        stored = zlib.compress(plain) if kind else plain
        yield MemoryOrigin().message(A, offset) | {
            "sysFlag": kind, "bodyCrc": zlib.crc32(stored) & 0x7FFFFFFF,
            "body": plain if offset == 4 else stored,
        }  # fmt: skip


def test_properties_that_grow_too_long_are_told(tmp_path: Path) -> None:
    job = resend(FakeQueue(), tmp_path, MARKS, [])
    job.rows = lambda _: of_one(f"own\x01{'x' * 32_700}\x02")
    with pytest.raises(MessageError, match=r"^properties of the message at queue offset 0: 32"):
        job.run()


def test_a_pace_is_kept() -> None:
    clock = HandClock()

    def sleep(seconds: float) -> None:
        clock.seconds += seconds

    pace = Pace(100.0, clock, sleep)
    begun = clock.seconds
    for _ in range(20):
        pace.wait(50)
    assert 9.0 <= clock.seconds - begun <= 10.0
    clock.seconds += 60
    begun = clock.seconds
    for _ in range(20):
        pace.wait(50)
    assert 8.0 <= clock.seconds - begun <= 10.0
