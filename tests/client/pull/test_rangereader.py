"""Ranges of a queue, pulled from brokers that truncate, filter, lose, fail and move."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.client.pull import rangereader as range_reader
from firearrow.client.pull.rangereader import PullOptions, RangeReader
from firearrow.client.queues import Queue, Span
from firearrow.errors import BrokerError, DataLost, GroupNotFound, RemoteProtocolError
from firearrow.message.record import encode_record, iter_records
from firearrow.net.client import Client
from firearrow.net.server import Answer, Peer
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import PullMessage
from tests.loglines import told
from tests.net.background import answering, in_thread

QUEUE = Queue("T", "broker-a", 3)
HANG_UP = -1


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow at once."""
    monkeypatch.setattr(range_reader, "PAUSE_SECONDS", 0.0)


def record(queue_offset: int) -> bytes:
    host = bytes(8)
    return encode_record("T", b"%d" % queue_offset, b"", 3, queue_offset, 0, 0, 0, 0, host, 0, host)


class OneQueue:
    """A queue of a broker: offsets ``low`` to ``high``, at most ``most`` in an answer.

    ``failures`` are codes of the next answers; ``odd`` messages alone have tag A.
    """

    def __init__(self, low: int = 0, high: int = 1000, most: int = 32) -> None:
        self.low, self.high, self.most = low, high, most
        self.failures: deque[int] = deque()
        self.asked: list[tuple[int, int]] = []
        self.addresses = 0
        self.removed = range(0)  # records that are gone while their entries are still there
        self.address = ""

    async def address_of(self, queue: Queue, *, refresh: bool = False) -> str:
        """Where the broker is, and how often that was asked for again."""
        assert queue == QUEUE
        self.addresses += refresh
        return self.address

    def pull(self, peer: Peer, request: AnyCommand) -> Answer:
        header = fields_of(request, PullMessage)
        assert (header.consumer_group, header.topic, header.queue_id) == ("g", "T", 3)
        assert header.sys_flag == 4
        at = header.queue_offset
        self.asked.append((at, header.max_msg_nums))
        code = self.failures.popleft() if self.failures else 0
        if code == HANG_UP:
            peer.abort()
            return None
        if code:
            raise BrokerError(code, "as told")
        if not self.low <= at < self.high:
            following = self.low if at < self.low else self.high
            return self.answer(19 if at == self.high else 21, following, "moved")
        end = min(at + min(header.max_msg_nums, self.most), self.high)
        wanted = range(at, end)
        if header.subscription == "A || C":
            end = min(at + 100, self.high)
            wanted = range(at | 1, end, 2)[: min(header.max_msg_nums, self.most)]
            end = wanted[-1] + 1 if wanted else end
        kept = [offset for offset in wanted if offset not in self.removed]
        if not kept and at in self.removed:
            return self.answer(20, self.removed.stop, "MESSAGE_WAS_REMOVING")
        if not kept:
            return self.answer(20, end, "NO_MATCHED_MESSAGE")
        return self.answer(0, end, None, b"".join(map(record, kept)))

    def answer(self, code: int, following: int, remark: str | None, body: bytes = b"") -> Response:
        fields = {"nextBeginOffset": following, "minOffset": self.low, "maxOffset": self.high}
        return Response(code, remark, fields, body)


@contextmanager
def serving(queue: OneQueue) -> Iterator[OneQueue]:
    handlers = {int(RequestCode.PULL_MESSAGE): queue.pull}
    with in_thread(lambda: answering(handlers)) as queue.address:
        yield queue


def pulled(queue: OneQueue, span: Span, options: PullOptions | None = None, bytes_min: int = 1) -> list[int]:
    async def read() -> list[int]:
        client = Client()
        found: list[int] = []
        try:
            reader = RangeReader(client, queue, options or PullOptions("g"), QUEUE, span)
            while not reader.is_done:
                records = b"".join(await reader.read(bytes_min))
                assert len(records) >= bytes_min or reader.is_done
                found += [view.queue_offset for view in iter_records(records)]
            assert await reader.read() == []
        finally:
            await client.close()
        return found

    return asyncio.run(read())


def test_a_range_comes_whole_and_in_order() -> None:
    with serving(OneQueue()) as queue:
        assert pulled(queue, Span(17, 903)) == list(range(17, 903))
        assert queue.asked[0] == (17, 32)
        queue.asked.clear()
        assert pulled(queue, Span(5, 6)) == [5]
        assert queue.asked == [(5, 1)]
        assert pulled(queue, Span(9, 9)) == []
        assert pulled(queue, Span(17, 903), bytes_min=5000) == list(range(17, 903))


def test_a_broker_that_gives_less_is_asked_for_less() -> None:
    with serving(OneQueue(high=4000, most=8)) as queue:
        assert pulled(queue, Span(0, 4000)) == list(range(4000))
    assert len(queue.asked) < 4000 / 8 * 1.2
    assert queue.asked[-1][1] <= 16


def test_a_broker_that_gives_more_is_asked_for_more() -> None:
    with serving(OneQueue(high=40_000, most=10_000)) as queue:
        assert pulled(queue, Span(0, 40_000)) == list(range(40_000))
    assert max(count for _, count in queue.asked) == range_reader.STRETCH_MAX
    assert len(queue.asked) < 300


def test_a_broker_whose_limit_stays_is_tried_with_more_less_and_less_often() -> None:
    with serving(OneQueue(high=40_000)) as queue:
        assert pulled(queue, Span(0, 40_000)) == list(range(40_000))
    longer = sum(count > 32 for _, count in queue.asked)
    assert 0 < longer < len(queue.asked) / 10


def test_a_broker_whose_limit_rises_is_asked_for_more() -> None:
    with serving(OneQueue(high=40_000, most=8)) as queue:
        assert pulled(queue, Span(0, 4000)) == list(range(4000))
        queue.most = 10_000
        queue.asked.clear()
        assert pulled(queue, Span(4000, 40_000)) == list(range(4000, 40_000))
    assert max(count for _, count in queue.asked) == range_reader.STRETCH_MAX


@given(
    st.integers(1, 40), st.integers(0, 300), st.integers(0, 300),
    st.lists(st.sampled_from([0, 0, 0, 0, 2, HANG_UP]), max_size=8),
)  # fmt: skip
def test_whatever_fails_the_range_comes_once(most: int, a: int, b: int, failures: list[int]) -> None:
    start, end = sorted((a, b))
    with serving(OneQueue(most=most)) as queue:
        queue.failures.extend(failures)
        try:
            assert pulled(queue, Span(start, end)) == list(range(start, end))
        except (BrokerError, ConnectionError):
            assert sum(failure != 0 for failure in failures) >= range_reader.ATTEMPTS_MAX


def test_a_broker_that_does_not_recover() -> None:
    with serving(OneQueue()) as queue:
        queue.failures.extend([2] * 1000)
        with pytest.raises(BrokerError, match=f"^code 2 from {queue.address}: as told"):
            pulled(queue, Span(0, 10))
        assert queue.addresses == range_reader.ATTEMPTS_MAX - 1


def test_a_refusal_is_final() -> None:
    with serving(OneQueue()) as queue:
        queue.failures.append(26)
        with pytest.raises(GroupNotFound, match="as told"):
            pulled(queue, Span(0, 10))
        assert len(queue.asked) == 1


def test_messages_of_some_tags() -> None:
    options = PullOptions("g", ("A", "C"))
    with serving(OneQueue(low=10, high=5000)) as queue:
        assert pulled(queue, Span(15, 500), options) == list(range(15, 500, 2))
        assert pulled(queue, Span(15, 4900), options) == list(range(15, 4900, 2))
        assert pulled(queue, Span(999, 1000), options) == [999]


LOSSES = [
    (OneQueue(low=100), Span(50, 200), range(100, 200), "50 to 99", "are deleted"),
    (OneQueue(low=100), Span(0, 50), range(0), "0 to 49", "are deleted"),
    (OneQueue(high=40), Span(20, 60), range(20, 40), "40 to 59", "are not there: .* at 40"),
    (OneQueue(high=10), Span(20, 60), range(0), "20 to 59", "are not there: the queue ends at 10"),
]


@pytest.mark.parametrize(("queue", "span", "left", "lost", "how"), LOSSES)
def test_what_is_lost_is_an_error_or_skipped(
    queue: OneQueue, span: Span, left: range, lost: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    what = f"offsets {lost} of queue 3 of topic 'T' on broker-a {how}"
    with serving(queue):
        with pytest.raises(DataLost, match=rf"^{what} \(failOnDataLoss=false skips them\)$"):
            pulled(queue, span)
        assert pulled(queue, span, PullOptions("g", (), False)) == list(left)
    lines = told(caplog)
    assert lines
    place = {"topic": "T", "broker_name": "broker-a", "queue_id": 3}
    assert all(place.items() <= line.items() for line in lines)
    assert {line["event"] for line in lines} == {"messages are skipped"}
    first, _, last = lost.rpartition(" to ")
    found = [(line["queue_offset"], line["end_queue_offset"], line["reason"]) for line in lines]
    assert found[0][0] == int(first)
    assert found[0][1] == int(last) + 1
    assert re.fullmatch(how, str(found[0][2]))


@pytest.mark.parametrize("removed", [range(40), range(5), range(30, 64)])
def test_records_that_are_gone_before_their_entries(removed: range) -> None:
    with serving(OneQueue()) as queue:
        queue.removed = removed
        with pytest.raises(DataLost, match="of queue 3 of topic 'T' on broker-a are deleted"):
            pulled(queue, Span(0, 100))
        left = [offset for offset in range(100) if offset not in removed]
        assert pulled(queue, Span(0, 100), PullOptions("g", (), False)) == left


def test_a_broker_that_says_nothing_of_where_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(OneQueue()) as queue:
        monkeypatch.setattr(queue, "answer", lambda *_: Response(0, None, {}, record(0)))
        with pytest.raises(RemoteProtocolError, match=f"{queue.address} sent nextBeginOffset=''"):
            pulled(queue, Span(0, 10))
        standing = Response(20, "NO_MATCHED_MESSAGE", {"nextBeginOffset": 0})
        monkeypatch.setattr(queue, "answer", lambda *_: standing)
        with pytest.raises(RemoteProtocolError, match="does not continue from offset 0 of queue 3"):
            pulled(queue, Span(0, 10))


class BatchedQueue(OneQueue):
    """Has records of ``size`` messages, and gives whole ones, the first from before the offset."""

    size = 5

    def pull(self, peer: Peer, request: AnyCommand) -> Answer:
        header = fields_of(request, PullMessage)
        at = header.queue_offset
        self.asked.append((at, header.max_msg_nums))
        first = at - at % self.size
        count = max(header.max_msg_nums // self.size, 1)
        bases = range(first, min(first + count * self.size, self.high), self.size)
        return self.answer(0, bases[-1] + self.size, None, b"".join(map(record, bases)))


@given(start=st.integers(0, 60), length=st.integers(1, 300), size=st.integers(1, 70))
def test_each_inner_batch_of_a_range_comes_once(start: int, length: int, size: int) -> None:
    queue = BatchedQueue(high=size * 1000)
    queue.size = size
    with serving(queue):
        found = pulled(queue, Span(start, start + length))
    assert found == list(range(start - start % size, start + length, size))
