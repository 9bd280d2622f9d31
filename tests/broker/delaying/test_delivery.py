"""Delayed messages of a whole broker in virtual time: when they come, and what keeps them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from firearrow.broker.delaying import delivery as delays
from firearrow.broker.delaying.delivery import DelayRedirection
from firearrow.broker.sending.puts import UnstoredMessage, again
from firearrow.broker.turns import TURN_STEPS_MAX
from firearrow.message import properties
from firearrow.message.batch import encode_batch
from firearrow.message.record import Content, iter_records
from firearrow.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from firearrow.store import DelayLevels, NewMessage
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock
from firearrow.wire import fastjson
from firearrow.wire.bodies import TopicConfig
from tests.broker.serving import Caller, Serving, bodies, in_virtual_time, left_by_kill, send_fields, serving, stored
from tests.golden import extract
from tests.loglines import told
from tests.store.stores import GOLDEN_SIZES, KINDS, append, messages, settle

UNIQUE = "UNIQ_KEY\x01U1\x02"
LEVELS_MS = [
    *(1000, 5000, 10_000, 30_000),
    *(minutes * 60_000 for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
]
PATIENT: dict[str, Any] = {"server_channel_max_idle_time_seconds": 36_000}
SCHEDULE = "SCHEDULE_TOPIC_XXXX"


def delayed(level: object, more: str = "") -> str:
    """Properties of a message with a delay level."""
    return f"{UNIQUE}DELAY\x01{level}\x02{more}"


def offsets_in(root: Path) -> dict[str, Any]:
    content: dict[str, Any] = fastjson.loads((root / "config" / "delayOffset.json").read_bytes())
    return content


Main = Callable[[VirtualClock], Coroutine[Any, Any, None]]


@asynccontextmanager
async def turn(root: Path, clock: VirtualClock, **store: Any) -> AsyncIterator[tuple[Serving, Caller]]:
    """One broker of several that have a store one after the other."""
    options: dict[str, Any] = {"clock": clock, "background": False, "store": store}
    async with serving(root, **options, **PATIENT) as served, served.caller() as caller:
        yield served, caller


# --- when they come ---


def test_each_level_is_delivered_when_it_is_due(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        more = "a\x01b\x02TIMER_DELAY_SEC\x010\x02"
        for level in range(18, 0, -1):
            sent = await caller.sent(b"%d" % level, queue_id=level % 4, i=delayed(level, more))
            assert (sent["queueId"], sent["queueOffset"]) == (str(level % 4), "0")
            assert sent["transactionId"] == "U1"
        await asyncio.sleep(2 * 3600 + 1)
        arrived = [view for queue_id in range(4) for view in stored(served, queue_id=queue_id)]
        assert len(arrived) == 18
        for view in arrived:
            level = int(view.body)
            assert view.queue_id == level % 4
            waited = messages(served.broker.store, SCHEDULE, level - 1)[0]
            due_ms = waited.store_timestamp_ms + LEVELS_MS[level - 1]
            assert due_ms <= view.store_timestamp_ms <= due_ms + 1
            assert view.properties == waited.properties == {
                "UNIQ_KEY": "U1", "DELAY": str(level), "a": "b", "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true", "CLUSTER": "C", "REAL_TOPIC": "T",
                "REAL_QID": str(level % 4),
            }  # fmt: skip
            assert (view.flag, view.born_timestamp_ms) == (7, 1_795_000_000_000)
            assert (view.born_host, view.reconsume_times) == (waited.born_host, 0)

    in_virtual_time(tmp_path, main, **PATIENT)
    assert offsets_in(tmp_path)["offsetTable"] == dict.fromkeys(range(1, 19), 1)


@pytest.mark.parametrize(("level", "waits"), [("0", 0), ("-1", 0), ("+1", 1), ("99", 2)])
def test_a_level_below_the_first_is_none_and_one_above_the_last_is_the_last(
    tmp_path: Path, level: str, waits: int
) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"x", i=delayed(level))
        assert len(stored(served)) == (0 if waits else 1)
        if waits:
            assert stored(served, SCHEDULE, waits - 1)[0].properties["DELAY"] == str(waits)
            await asyncio.sleep(waits + 0.1)
            assert bodies(served) == [b"x"]

    in_virtual_time(tmp_path, main, store={"message_delay_level": "1s 2s"})


@pytest.mark.parametrize("level", ["x", "1.5", "٣", "9" * 5000, str(2**31)])
def test_a_level_that_is_no_number_is_refused(tmp_path: Path, level: str) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        answer = await caller.send(b"x", i=delayed(level))
        assert (answer.code, "is no number" in str(answer.remark)) == (13, True)
        assert served.broker.store.log_end_offset == 0

    in_virtual_time(tmp_path, main)


@pytest.mark.parametrize(
    ("topic", "sys_flag", "waits"),
    [
        ("T", 0, True),
        ("T", TRANSACTION_COMMIT, True),
        ("T", TRANSACTION_PREPARED, False),
        ("T", TRANSACTION_ROLLBACK, False),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 0, False),
        (SCHEDULE, 0, False),
    ],
)
def test_what_is_undecided_or_waits_already_is_not_delayed(topic: str, sys_flag: int, waits: bool) -> None:
    asked = {"DELAY": "03", "TIMER_DELAY_SEC": "5", "TIMER_DELAY_MS": "5", "TIMER_DELIVER_MS": "5"}
    draft = UnstoredMessage(topic, 1, b"", dict(asked), 0, b"", sys_flag=sys_flag)
    DelayRedirection(DelayLevels("1s 2s 3s 4s"))(draft, 0)
    if waits:
        assert (draft.topic, draft.queue_id) == (SCHEDULE, 2)
        assert draft.properties == {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "1"}
    else:
        assert (draft.topic, draft.queue_id, draft.properties) == (topic, 1, asked)


def test_batches_are_not_delayed(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        batch = encode_batch([(0, b"a", b"")] * 3)
        for name in ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"):
            asked = send_fields(i=f"UNIQ_KEY\x01U\x02{name}\x013\x02", m=True)
            answer = await caller.call(320, asked, batch)
            reason = f"delayed messages (property {name}) are sent one by one, not as a batch"
            assert (answer.code, answer.remark) == (13, reason)
        assert served.broker.store.log_end_offset == 0
        fields = send_fields(i="TAGS\x01DELAYED\x02", m=True)
        assert (await caller.call(320, fields, batch)).code == 0
        # What one of its messages asks for by itself counts for nothing, as in RocketMQ.
        timed = encode_batch([(0, b"b", b"TIMER_DELAY_MS\x015000\x02DELAY\x013\x02")] * 2)
        assert (await caller.call(320, send_fields(m=True), timed)).code == 0
        assert bodies(served) == [b"a", b"a", b"a", b"b", b"b"]

    in_virtual_time(tmp_path, main)


def test_the_queue_order_of_a_level_is_kept_and_levels_are_mixed_by_time(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for step in range(4):
            await caller.sent(b"late %d" % step, i=delayed(2))
            await asyncio.sleep(1)
        await asyncio.sleep(0.5)
        for step in range(4):
            await caller.sent(b"soon %d" % step, i=delayed(1))
        await asyncio.sleep(10)
        wanted = [b"soon 0", b"soon 1", b"soon 2", b"soon 3"]
        wanted = [b"late 0", *wanted, b"late 1", b"late 2", b"late 3"]
        assert bodies(served) == wanted

    in_virtual_time(tmp_path, main)


def test_a_waiting_consumer_is_told_at_once(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"later", i=delayed(1))
        answer = await caller.pull(sysFlag=6, suspendTimeoutMillis=10_000)
        assert answer.code == 0
        view = stored(served)[0]
        late_ms = served.broker._clock.now_ms() - view.store_timestamp_ms
        assert view.body == b"later"
        assert late_ms < 10

    in_virtual_time(tmp_path, main)


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
def test_a_clock_that_is_set_delays_nothing_for_long(tmp_path: Path, step_ms: int) -> None:
    """Forward: what became due is delivered soon. Back: what would be due too late is."""

    async def main(clock: VirtualClock) -> None:
        async with turn(tmp_path, clock) as (served, caller):
            await caller.sent(b"x", i=delayed(13))
            await asyncio.sleep(5)
            clock.start_ms += step_ms
            await asyncio.sleep(11)
            assert bodies(served) == [b"x"]

    loop.run(main)


def test_levels_change_at_run_time(tmp_path: Path) -> None:
    """More levels, other delays; what waits is due as it was, but never beyond its new delay."""

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"two hours", i=delayed(18))
        await caller.sent(b"one second", i=delayed(1))
        levels = " ".join(["3s"] * 20)
        answer = await caller.call(25, {}, f"messageDelayLevel={levels}".encode())
        assert (answer.code, answer.remark) == (0, None)
        await caller.sent(b"three seconds", i=delayed(20))
        await asyncio.sleep(0.9)
        assert bodies(served) == [b"two hours"]
        await asyncio.sleep(0.2)
        assert bodies(served)[1:] == [b"one second"]
        await asyncio.sleep(1.8)
        assert len(stored(served)) == 2
        await asyncio.sleep(0.2)
        assert bodies(served)[2:] == [b"three seconds"]
        assert served.broker.topics.table[SCHEDULE].write_queue_nums == 20
        answer = await caller.call(25, {}, b"messageDelayLevel=soon")
        assert answer.code == 29

    in_virtual_time(tmp_path, main)


def test_levels_that_are_new_have_a_queue_from_the_start(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with turn(tmp_path, clock, message_delay_level="1s") as (served, _):
            assert served.broker.topics.table[SCHEDULE].write_queue_nums == 1
        async with turn(tmp_path, clock, message_delay_level="1s 1s 1s") as (served, caller):
            await caller.sent(b"x", i=delayed(3))
            await asyncio.sleep(1.1)
            assert bodies(served) == [b"x"]

    loop.run(main)


def test_levels_that_are_no_more_are_delivered_nevertheless(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with turn(tmp_path, clock) as (_, caller):
            await caller.sent(b"x", i=delayed(5))
        async with turn(tmp_path, clock, message_delay_level="1s") as (served, _):
            await asyncio.sleep(55)
            assert bodies(served) == []
            await asyncio.sleep(6)
            assert bodies(served) == [b"x"]

    loop.run(main)


# --- what keeps them ---


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_delivers_what_waits_once(tmp_path: Path, kind: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async with turn(tmp_path, clock, store_type=kind) as (served, caller):
            await caller.sent(b"before", i=delayed(1))
            await asyncio.sleep(1.5)
            await caller.sent(b"meanwhile", i=delayed(1))
            await caller.sent(b"after", i=delayed(3))
            assert bodies(served) == [b"before"]
        assert set(offsets_in(tmp_path)) == {"dataVersion", "offsetTable"}
        assert offsets_in(tmp_path)["offsetTable"] == {1: 1}
        await asyncio.sleep(5)
        async with turn(tmp_path, clock, store_type=kind) as (served, _):
            await asyncio.sleep(0.01)
            assert bodies(served) == [b"before", b"meanwhile"]
            await asyncio.sleep(6)
            assert bodies(served) == [b"before", b"meanwhile", b"after"]
        async with turn(tmp_path, clock, store_type=kind) as (served, _):
            await asyncio.sleep(20)
            assert len(stored(served)) == 3

    loop.run(main)


def test_a_kill_delivers_nothing_twice(tmp_path: Path) -> None:
    """The file is ten seconds old then, but its journal has each step."""

    async def main(clock: VirtualClock) -> None:
        async with turn(tmp_path / "a", clock) as (served, caller):
            for number in range(40):
                await caller.sent(b"%d" % number, i=delayed(1 + number % 2))
                await asyncio.sleep(0.25)
            count = len(stored(served))
            assert 10 < count < 40
            left_by_kill(tmp_path / "a", tmp_path / "b")
        async with turn(tmp_path / "b", clock) as (served, _):
            await asyncio.sleep(20)
            assert sorted(map(int, bodies(served))) == list(range(40))

    loop.run(main)


def test_what_the_disk_did_not_get_is_delivered_again(tmp_path: Path) -> None:
    """A loss of power takes the delivered messages, which the log had not on the disk yet, but not
    the journal that says that they were delivered."""

    async def main(clock: VirtualClock) -> None:
        lazy = {"flush_interval_commit_log": 600_000}
        async with turn(tmp_path / "a", clock, **lazy) as (served, caller):
            store = served.broker.store
            await caller.sent(b"x", i=delayed(1))
            store._log_flush.flush()
            end = store.log_end_offset
            await asyncio.sleep(15)
            assert bodies(served) == [b"x"]
            assert offsets_in(tmp_path / "a")["offsetTable"] == {}
            assert list(offsets_in(tmp_path / "a")["deliveredTable"].values()) == [[1, store.log_end_offset]]
            left_by_kill(tmp_path / "a", tmp_path / "b")
        (tmp_path / "b" / "settled").unlink()
        with (tmp_path / "b" / "commitlog" / f"{0:020d}").open("r+b") as log_file:
            log_file.seek(end)
            log_file.write(bytes(4096))
        async with turn(tmp_path / "b", clock) as (served, _):
            await asyncio.sleep(1)
            assert bodies(served) == [b"x"]

    loop.run(main)


def test_a_full_disk_puts_deliveries_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"x", i=delayed(1))
        await caller.sent(b"y", i=delayed(1))
        served.broker.store.log.refuse("no room")
        await asyncio.sleep(8)
        assert bodies(served) == []
        assert served.broker.troubles == {"delayed messages": "no room"}
        served.broker.store.log.refuse(None)
        await asyncio.sleep(1.1)
        assert bodies(served) == [b"x", b"y"]
        assert served.broker.troubles == {}

    in_virtual_time(tmp_path, main)
    lines = [(line["event"], line["error"]) for line in told(caplog) if line.get("service") == "delayed messages"]
    assert lines == [("service can't do its work now, and retries", "no room")]


def test_a_topic_that_was_deleted_meanwhile_gets_its_messages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for number in range(3):
            await caller.sent(b"%d" % number, i=delayed(1))
        assert (await caller.call(215, {"topic": "T"})).code == 0
        await asyncio.sleep(2)
        assert bodies(served) == [b"0", b"1", b"2"]
        assert served.broker.topics.get("T") is None

    in_virtual_time(tmp_path, main)
    lines = [line for line in told(caplog) if "is not there any more" in str(line["event"])]
    assert [line["topic"] for line in lines] == ["T"]


BAD: list[dict[str, str]] = [
    {},
    {"REAL_TOPIC": "T"},
    {"REAL_TOPIC": "T", "REAL_QID": "-1"},
    {"REAL_TOPIC": "T", "REAL_QID": "2147483648"},
    {"REAL_TOPIC": "../T", "REAL_QID": "0"},
    {"REAL_TOPIC": "%LMQ%../T", "REAL_QID": "0"},
    {"REAL_TOPIC": SCHEDULE, "REAL_QID": "0"},
    {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"},
]


def test_what_can_never_be_delivered_keeps_nothing_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Halves too, as in RocketMQ; a record of which only the body is damaged stays as it is."""
    monkeypatch.setattr(delays, "FAILURES_LOGGED_MAX", len(BAD))

    async def main(served: Serving, caller: Caller) -> None:
        store = served.broker.store
        now_ms = served.broker._clock.now_ms()
        for bad in BAD:
            append(store, b"bad", SCHEDULE, properties={"DELAY": "1", **bad}, now_ms=now_ms)
        good = {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0"}
        at = append(store, b"damaged", SCHEDULE, properties=good, now_ms=now_ms)
        gone = append(store, b"gone", SCHEDULE, properties=good, now_ms=now_ms)
        append(store, b"good", SCHEDULE, properties=good, now_ms=now_ms)
        settle(store)
        segment = store.log.segments.find(at)
        assert segment is not None
        segment.map[at + 88] ^= 1
        segment.map[gone + 4] ^= 1
        end = store.log_end_offset
        await asyncio.sleep(2)
        assert bodies(served) == [b"good"]
        assert store.log_end_offset - end < 200
        assert served.broker.delay_offsets.table == {1: len(BAD) + 3}

    in_virtual_time(tmp_path, main)
    lines = [line for line in told(caplog) if "can't be delivered" in str(line["event"])]
    *named, counted = lines
    assert [line["queue_offset"] for line in named] == list(range(len(BAD)))
    assert counted["count"] == 2


ODD_PAIRS = [
    "a\x01b", "a\x01c", "UNIQ_KEY\x01U", "DELAY\x01x", "REAL_TOPIC\x01U", "REAL_TOPIC\x01", "x", "",
    "REAL_QID\x012", "XREAL_QID\x013", "TRAN_MSG\x01true", "INNER_MULTI_DISPATCH\x01%LMQ%a",
    "TIMER_DELAY_SEC\x019", "WAIT\x01true", "é\x01ü",
]  # fmt: skip


def test_what_is_left_unread_is_delivered_as_if_it_were_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Random(1)
    texts: list[str] = []
    for _ in range(150):
        pairs = chance.sample(ODD_PAIRS, chance.randrange(4))
        pairs += ["REAL_TOPIC\x01T", "REAL_QID\x011"][: chance.choice([1, 2, 2, 2])]
        chance.shuffle(pairs)
        texts.append("\x02".join(pairs) + "\x02" * (chance.random() < 0.8))
    found: list[list[Content]] = []
    unread = [0]

    def counted(*about: Any) -> NewMessage:
        unread[-1] += 1
        return again(*about)

    async def main(served: Serving, caller: Caller) -> None:
        store = served.broker.store
        for number, text in enumerate(texts):
            host = bytes(16 * (number % 2) or 4) + b"\0\0\0\1"
            queue, flags = store.queue(SCHEDULE, 0), (number, chance.choice([0, 1, 8]))
            now_ms = served.broker._clock.now_ms()
            store.put(queue, b"%d" % number, text.encode(), *flags, 5, host, now_ms, number % 3, 7)
        store.catch_up()
        end = store.log_end_offset
        await asyncio.sleep(2)
        assert served.broker.delay_offsets.table == {1: len(texts)}
        log = b"".join(bytes(file.map) for file in store.log.segments.files)
        views = list(iter_records(log[: store.log_end_offset], end))
        found.append([store.content_at(view.physical_offset) for view in views])

    sizes = {"mapped_file_size_commit_log": 1 << 20}
    monkeypatch.setattr(delays, "again", counted)
    for name, lmqs in ("unread", delays._LMQS), ("read", (b"",)):
        monkeypatch.setattr(delays, "_LMQS", lmqs)
        chance.seed(2)
        in_virtual_time(tmp_path / name, main, store=sizes)
        unread.append(0)
    assert unread[0] > 50
    assert unread[1:] == [0, 0]
    assert len(found[0]) == len(found[1]) > 50
    for one, other in zip(*found, strict=True):
        stored, expected = one.properties, other.properties
        assert properties.parse(stored) == properties.parse(expected)
        if properties.encode(properties.parse(texts[int(one.body)])) == texts[int(one.body)].encode():
            assert stored == expected
        alike: Any = {"physical_offset": 0, "properties": b""}
        assert replace(one, **alike) == replace(other, **alike)


def test_offsets_outside_of_their_queues_are_corrected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        async with turn(tmp_path, clock) as (_, caller):
            await caller.sent(b"x", i=delayed(1))
        offsets = tmp_path / "config" / "delayOffset.json"
        offsets.write_text('{"offsetTable":{1:7,2:-3,9999999:1,0:4}}')
        async with turn(tmp_path, clock) as (served, caller):
            assert served.broker.delay_offsets.table == {1: 1, 2: 0, 9999999: 1, 0: 4}
            await caller.sent(b"y", i=delayed(1))
            await caller.sent(b"z", i=delayed(2))
            await asyncio.sleep(6)
            assert bodies(served) == [b"y", b"z"]

    loop.run(main)
    assert sum("goes on at another offset" in str(line["event"]) for line in told(caplog)) == 2


def test_lmqs_get_a_delayed_message_when_it_is_delivered(tmp_path: Path) -> None:
    lmqs = {"enable_lmq": True, "enable_multi_dispatch": True}
    wants = delayed(1, "INNER_MULTI_DISPATCH\x01%LMQ%a\x02")

    async def main(clock: VirtualClock) -> None:
        async with turn(tmp_path, clock) as (_, caller):
            assert (await caller.send(b"no", i=wants)).code == 13
        async with turn(tmp_path, clock, **lmqs) as (served, caller):
            await caller.sent(b"x", i=wants)
            await asyncio.sleep(1.1)
            assert bodies(served, "%LMQ%a") == [b"x"]
            assert stored(served)[0].properties["INNER_MULTI_QUEUE_OFFSET"] == "0"

    loop.run(main)


def test_a_message_that_there_are_too_many_lmqs_for_goes_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    few = {"enable_lmq_quota": True, "max_lmq_consume_queue_num": 1}

    async def main(clock: VirtualClock) -> None:
        lmqs = {"enable_lmq": True, "enable_multi_dispatch": True} | few
        async with turn(tmp_path, clock, **lmqs) as (served, caller):
            await caller.sent(b"x", i=delayed(1, "INNER_MULTI_DISPATCH\x01%LMQ%a\x02"))
            await caller.sent(b"first", i=f"{UNIQUE}INNER_MULTI_DISPATCH\x01%LMQ%b\x02")
            await caller.sent(b"y", i=delayed(1))
            await asyncio.sleep(1.1)
            assert bodies(served) == [b"first", b"x", b"y"]
            assert bodies(served, "%LMQ%a") == []

    loop.run(main)
    [line] = [line for line in told(caplog) if "can't be delivered" in str(line["event"])]
    assert "maxLmqConsumeQueueNum" in str(line["error"])


def test_a_store_of_rocketmq_goes_on(tmp_path: Path) -> None:
    """See the README beside the golden stores: three messages of two hours wait in it."""
    root = extract("waiting", tmp_path)

    async def main(clock: VirtualClock) -> None:
        async with turn(root, clock, **GOLDEN_SIZES) as (served, _):
            waited = stored(served, SCHEDULE, 17)
            assert len(waited) == 3
            start_ms = max(view.store_timestamp_ms for view in waited) + LEVELS_MS[17]
            clock.start_ms = start_ms - 60_000
            real = waited[0].properties["REAL_TOPIC"]
            ids = {view.unique_key for view in waited}
            await asyncio.sleep(75)
            topic = served.broker.topics.table[real]
            arrived = [
                view
                for queue_id in range(topic.write_queue_nums)
                for view in stored(served, real, queue_id)
                if view.properties.get("DELAY") == "18"
            ]
            assert {view.unique_key for view in arrived} == ids
            assert len(arrived) == 3

    loop.run(main)


# --- many at once ---


def test_a_hundred_thousand_that_are_due_at_once_come_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they are due, and a send meanwhile waits for few of them."""
    count = 100_000
    sizes = {
        "mapped_file_size_commit_log": 1 << 26,
        "mapped_file_size_consume_queue": 6_000_000,
        "message_index_enable": False,
    }

    async def main(served: Serving, caller: Caller) -> None:
        broker = served.broker
        broker.topics.put(TopicConfig("T", 4, 4))
        first_ms = broker._clock.now_ms() + 4000
        for level in (2, 1):
            real = {"DELAY": str(level), "REAL_TOPIC": "T", "REAL_QID": "0"}
            for number in range(level - 1, count, 2):
                at_ms = first_ms + number // 200 - LEVELS_MS[level - 1]
                queue = SCHEDULE, level - 1
                append(broker.store, b"%d" % number, *queue, properties=real, now_ms=at_ms)
            await asyncio.sleep(3.6 if level == 2 else 0)
        settle(broker.store)
        offsets = broker.delay_offsets
        steps: list[int] = []
        note = offsets.note

        def noted(delivered: dict[int, int], *places: int) -> None:
            note(delivered, *places)
            steps.append(sum(offsets.table.values()))

        monkeypatch.setattr(offsets, "note", noted)
        await asyncio.sleep(0.4 + 0.25)
        between = sum(offsets.table.values())
        assert 0 < between < count
        await caller.sent(b"meanwhile", queue_id=1)
        assert sum(offsets.table.values()) - between <= 4 * TURN_STEPS_MAX
        await asyncio.sleep(1)
        assert steps[-1] == count
        taken = [after - before for before, after in zip([0, *steps], steps, strict=False)]
        assert max(taken) <= TURN_STEPS_MAX
        arrived = stored(served)
        due = [(int(view.body) // 200) for view in arrived]
        assert due == sorted(due)
        assert len(due) == count
        assert arrived[-1].store_timestamp_ms == first_ms + 499

    in_virtual_time(tmp_path, main, store=sizes)
