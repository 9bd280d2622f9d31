"""What was popped and not acknowledged comes again: when, where, and after whatever happened."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.pop import revivequeue
from firearrow.broker.pop.retries import Retries
from firearrow.errors import MessageError
from firearrow.message.model import MessageView
from firearrow.message.names import REVIVE_GROUP, revive_topic
from firearrow.message.record import Content
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.command import FieldValue
from firearrow.wire.pop import Handle
from firearrow.wire.poprecords import Acknowledgement, PopCheckpoint
from tests.broker.popping import REVIVE_TOPIC, ack, ack_fields, popped
from tests.broker.serving import Caller, Serving, left_by_kill, serving, stored
from tests.golden import extract
from tests.loglines import told
from tests.store.stores import GOLDEN_SIZES, append

RETRY = "%RETRY%g_T"
LATE_SECONDS = 4.5  # two of being late, a slot of the timer, and what gathers
FLUSH_SECONDS = 12  # until the disk has everything, and that is noticed
PATIENT: dict[str, Any] = {
    "server_channel_max_idle_time_seconds": 10**6, "channel_expired_timeout": 10**9
}  # fmt: skip

Main = Callable[[Serving, Caller], Coroutine[Any, Any, None]]


def lives(root: Path, *mains: Main, **options: Any) -> None:
    """Run tests on one store in virtual time, each with a broker of its own."""

    async def run(clock: VirtualClock) -> None:
        for main in mains:
            async with (
                serving(root, clock=clock, background=False, **PATIENT, **options) as served,
                served.caller() as caller,
            ):
                await main(served, caller)

    loop.run(run)


async def sent_and_popped(
    served: Serving, caller: Caller, count: int, **changed: FieldValue
) -> list[tuple[MessageView, Handle]]:
    """Send messages 0 to n-1 to queue 0, and pop them together."""
    for number in range(count):
        await caller.sent(b"%d" % number)
    await served.dispatched()
    taken = await popped(caller, **changed)
    assert [view.body for view, _ in taken] == [b"%d" % number for number in range(count)]
    return taken


async def passed(served: Serving, visible_ms: int) -> None:
    """Let time pass until what was popped must have come again."""
    ahead_ms = visible_ms - served.broker._clock.now_ms()
    await asyncio.sleep(max(ahead_ms, 0) / 1000 + LATE_SECONDS)


def again(served: Serving, topic: str = RETRY, queue_id: int = 0) -> list[bytes]:
    """The bodies in a retry topic."""
    return [view.body for view in stored(served, topic, queue_id)]


def committed(served: Serving) -> dict[int, int]:
    """Where the group of the broker is in the revive queues."""
    return dict(served.broker.offsets.queues(REVIVE_GROUP, REVIVE_TOPIC))


def checkpoint(now_ms: int, count: int = 1, start_offset: int = 0, **changed: Any) -> PopCheckpoint:
    """Messages of queue 0 that are visible in a minute."""
    fields: dict[str, Any] = {
        "broker_name": "broker-a", "group": "g", "invisible_ms": 60_000, "count": count,
        "pop_ms": now_ms, "queue_id": 0, "visible_ms": now_ms + 60_000, "topic": "T",
        "start_offset": start_offset, "deltas": list(range(count)),
    }  # fmt: skip
    return PopCheckpoint(**fields | changed)


def put(served: Serving, *checkpoints: PopCheckpoint, queue_id: int = 0) -> None:
    """Write checkpoints into a revive queue."""
    for each in checkpoints:
        served.broker.popping.books.revive_log.put_checkpoint(each, queue_id, served.broker._clock.now_ms())


# --- what comes again ---


def test_what_is_not_acknowledged_comes_again_once(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 4)
        for at in (0, 2):
            await ack(caller, taken[at][1])
        view, handle = taken[1]
        await asyncio.sleep(61)
        assert again(served) == []
        await passed(served, handle.visible_ms)
        first, second = stored(served, RETRY)
        assert [first.body, second.body] == [b"1", b"3"]
        assert first.store_timestamp_ms >= handle.visible_ms + 2000
        assert first.reconsume_times == 1
        assert first.properties == view.properties | {
            "1ST_POP_TIME": str(handle.pop_ms), "ORIGIN_GROUP": "g"
        }  # fmt: skip
        assert first.born_host == view.store_host
        assert (first.born_timestamp_ms, first.flag) == (view.born_timestamp_ms, view.flag)
        assert served.broker.topics.table[RETRY].write_queue_nums == 1
        await asyncio.sleep(600)
        assert len(again(served)) == 2
        assert committed(served) == {handle.revive_queue_id: 2}  # checkpoint and acknowledgements

    lives(tmp_path, main)


def test_what_is_acknowledged_does_not_come_again(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 3)
        await asyncio.sleep(1)  # else nothing of it gets to the revive topic
        for _, handle in taken:
            await ack(caller, handle)
        await passed(served, handle.visible_ms)
        assert RETRY not in served.broker.topics.table
        await asyncio.sleep(FLUSH_SECONDS)
        assert committed(served) == {handle.revive_queue_id: 3}

    lives(tmp_path, main)


@pytest.mark.parametrize("stops", [1, 2])
def test_what_is_acknowledged_before_a_long_stop_does_not_come_again(tmp_path: Path, stops: int) -> None:
    """The checkpoint is in the revive queue already; its acknowledgement waits for its time, which
    is over when the next start finds it, or the one after that."""

    async def popping(served: Serving, caller: Caller) -> None:
        [(_, handle)] = await sent_and_popped(served, caller, 1, invisibleTime=500)
        await ack(caller, handle)

    async def stopping(served: Serving, caller: Caller) -> None:
        await asyncio.sleep(0.01)

    async def main(served: Serving, caller: Caller) -> None:
        await asyncio.sleep(20)
        assert await popped(caller) == []

    async def run(clock: VirtualClock) -> None:
        for test in (popping, *[stopping] * (stops - 1), main):
            async with serving(tmp_path, clock=clock, background=False) as served, served.caller() as caller:
                await test(served, caller)
            clock.start_ms += 100_000

    loop.run(run)


def test_it_comes_again_until_it_is_acknowledged(tmp_path: Path) -> None:
    """In the same retry topic, with what was noted first."""

    async def main(served: Serving, caller: Caller) -> None:
        [(_, handle)] = await sent_and_popped(served, caller, 1)
        first_ms = handle.pop_ms
        for times in (1, 2, 3):
            await passed(served, handle.visible_ms)
            [(view, handle)] = await popped(caller)
            assert view.reconsume_times == times
            assert view.properties["1ST_POP_TIME"] == str(first_ms)
        await ack(caller, handle)
        await passed(served, handle.visible_ms)
        assert again(served) == [b"0"] * 3
        assert await popped(caller) == []

    lives(tmp_path, main)


def test_what_is_to_be_visible_at_another_time_comes_again_then(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 2)
        now_ms = served.broker._clock.now_ms()
        for (_, handle), invisible_ms in zip(taken, (10_000, 120_000), strict=True):
            fields = ack_fields(handle, invisibleTime=invisible_ms, suspend=invisible_ms == 10_000)
            assert (await caller.call(200053, fields)).code == 0
        await passed(served, now_ms + 10_000)
        [view] = stored(served, RETRY)
        assert (view.body, view.reconsume_times) == (b"0", 0)
        await passed(served, taken[1][1].visible_ms)
        assert len(again(served)) == 1
        await passed(served, now_ms + 120_000)
        _, view = stored(served, RETRY)
        assert (view.body, view.reconsume_times) == (b"1", 1)

    lives(tmp_path, main)


def test_a_time_may_be_changed_in_the_millisecond_of_its_pop(tmp_path: Path) -> None:
    """What is acknowledged then is the last pop of the message, whose time is the one that counts.

    Bodies say what becomes of a message: acknowledged, or visible again.
    """

    async def main(served: Serving, caller: Caller) -> None:
        for number in range(2):
            await caller.sent(b"%d" % number, queue_id=number)
        await served.dispatched()
        now_ms = served.broker._clock.now_ms()
        taken = await popped(caller, invisibleTime=500)
        for view, first in taken:
            handle = first
            for invisible_ms in (1, 20_000):
                changed = ack_fields(handle, invisibleTime=invisible_ms)
                answer = await caller.call(200053, changed)
                times = [int(answer.ext[name]) for name in ("popTime", "invisibleTime")]
                assert sum(times) == now_ms + invisible_ms
                handle = handle._replace(pop_ms=times[0], invisible_ms=times[1])
            if view.body == b"0":
                assert (await ack(caller, handle)).code == 0
        assert served.broker._clock.now_ms() == now_ms
        await passed(served, now_ms + 15_000)
        assert again(served) == []
        await passed(served, now_ms + 20_000)
        assert again(served) == [b"1"]
        await asyncio.sleep(100)
        assert again(served) == [b"1"]

    lives(tmp_path, main)


@pytest.mark.parametrize("late_seconds", [-0.5, 0.1, 1.8])
def test_what_is_acknowledged_a_little_late_still_counts(tmp_path: Path, late_seconds: float) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 2)
        handle = taken[0][1]
        ahead_ms = handle.visible_ms - served.broker._clock.now_ms()
        await asyncio.sleep(ahead_ms / 1000 + late_seconds)
        await ack(caller, handle)
        await passed(served, handle.visible_ms)
        assert again(served) == [b"1"]

    lives(tmp_path, main)


def test_an_acknowledgement_may_come_before_its_checkpoint(tmp_path: Path) -> None:
    """As when the timer was slow: the one had to wait for it, the other had not."""

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"0")
        now_ms = served.broker._clock.now_ms()
        popped_ms = now_ms - 59_000 - 100
        record = Acknowledgement(queue_offset=0, group="g", pop_ms=popped_ms, queue_id=0, start_offset=0, topic="T")
        served.broker.groups.find("g")
        served.broker.popping.books.revive_log.put_acknowledgement(record, 0, now_ms, now_ms)
        put(served, checkpoint(popped_ms))
        await asyncio.sleep(LATE_SECONDS + FLUSH_SECONDS)
        assert RETRY not in served.broker.topics.table
        assert committed(served) == {0: 1}

    lives(tmp_path, main)


# --- where to ---


def test_the_second_form_of_retry_topics(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        [(_, handle)] = await sent_and_popped(served, caller, 1)
        await passed(served, handle.visible_ms)
        [(_, handle)] = await popped(caller)
        await passed(served, handle.visible_ms)
        assert again(served, "%RETRY%g+T") == [b"0"] * 2
        assert served.broker.offsets.query("g", "%RETRY%g+T", 0) == 1

    options = {"enable_retry_topic_v2": True, "retrieve_message_from_pop_retry_topic_v1": False}
    lives(tmp_path, main, **options)


def test_messages_may_keep_their_queue(tmp_path: Path) -> None:
    """What priority topics need: their queues are the priorities."""

    async def main(served: Serving, caller: Caller) -> None:
        for queue_id in (0, 3):
            await caller.sent(b"%d" % queue_id, queue_id=queue_id)
        await served.dispatched()
        [*_, (_, handle)] = await popped(caller)
        await passed(served, handle.visible_ms)
        assert [again(served, RETRY, queue_id) for queue_id in range(4)] == [[b"0"], [], [], [b"3"]]
        assert served.broker.topics.table[RETRY].write_queue_nums == 4
        assert served.broker.offsets.queues("g", RETRY) == dict.fromkeys(range(4), 0)
        served.broker.topics.put(TopicConfig("T", 6, 6))
        await caller.sent(b"5", queue_id=5)
        await served.dispatched()
        [*_, (_, handle)] = await popped(caller)
        await passed(served, handle.visible_ms)
        assert again(served, RETRY, 5) == [b"5"]
        assert served.broker.topics.table[RETRY].read_queue_nums == 6

    lives(tmp_path, main, use_separate_retry_queue=True)


def test_nothing_comes_again_for_a_topic_or_group_that_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        served.broker.groups.find("h")
        for gone in ("topic", "group"):
            name = f"of-{gone}"
            served.broker.topics.create(name, 1)
            await caller.sent(b"0", topic=name)
        now_ms = served.broker._clock.now_ms()
        put(served, checkpoint(now_ms, topic="of-topic", group="h"))
        put(served, checkpoint(now_ms, topic="of-group", group="unknown"))
        served.broker.topics.delete("of-topic")
        await asyncio.sleep(70)
        assert not [topic for topic in served.broker.topics.table if topic.startswith("%RETRY%")]
        assert committed(served) == {0: 1}

    lives(tmp_path, main, auto_create_subscription_group=False)
    gone = [line for line in told(caplog) if "are gone" in str(line) or "is gone" in str(line)]
    assert len(gone) == 2


# --- what the original does wrong ---


def test_a_message_that_can_not_be_read_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """apache/rocketmq#10985: a read that fails loses the message."""
    tried_ms: list[int] = []

    async def main(served: Serving, caller: Caller) -> None:
        store = served.broker.store
        read = store.content_at
        taken = await sent_and_popped(served, caller, 3)
        broken = taken[1][0].physical_offset
        clock = served.broker._clock

        def fails(physical_offset: int) -> Content:
            if physical_offset == broken and len(tried_ms) < 3:
                tried_ms.append(clock.now_ms())
                raise MessageError("damaged", "record")
            return read(physical_offset)

        monkeypatch.setattr(store, "content_at", fails)
        await passed(served, taken[0][1].visible_ms)
        assert again(served) == [b"0", b"2"]
        for seconds in (10, 20, 30):
            assert len(tried_ms) == {10: 1, 20: 2, 30: 3}[seconds]
            await passed(served, clock.now_ms() + seconds * 1000 - 1000)
        assert again(served) == [b"0", b"2", b"1"]
        gaps = [after - before for before, after in itertools.pairwise(tried_ms)]
        assert [gap // 1000 in (12, 13, 22, 23) for gap in gaps] == [True, True]
        view = stored(served, RETRY)[-1]
        assert view.reconsume_times == 1

    lives(tmp_path, main)


@pytest.mark.parametrize("before", ["", "ORIGIN_GROUP\x01other\x02"])
def test_a_message_without_room_for_notes_comes_without(tmp_path: Path, before: str) -> None:
    """Java: it never comes, as it can't be put."""

    async def main(served: Serving, caller: Caller) -> None:
        text = f"UNIQ_KEY\x01U\x02{before}a\x01"
        await caller.sent(i=text + "x" * (32_710 - len(text)) + "\x02")
        [(view, handle)] = await popped(caller)
        await passed(served, handle.visible_ms)
        [came] = stored(served, RETRY)
        assert (came.properties, came.reconsume_times) == (view.properties, 1)

    lives(tmp_path, main)


def test_a_message_that_is_put_again_stays_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java: it counts as failed if it could not be put into its retry topic at first."""
    once = iter([MessageError("damaged", "record")])
    put_one = Retries.put

    def fails(retries: Retries, *args: Any) -> None:
        for error in once:
            raise error
        put_one(retries, *args)

    async def main(served: Serving, caller: Caller) -> None:
        [(_, handle)] = await sent_and_popped(served, caller, 1)
        now_ms = served.broker._clock.now_ms()
        fields = ack_fields(handle, invisibleTime=10_000, suspend=True)
        assert (await caller.call(200053, fields)).code == 0
        monkeypatch.setattr(Retries, "put", fails)
        await passed(served, now_ms + 10_000)
        assert again(served) == []
        await passed(served, now_ms + 24_000)
        [view] = stored(served, RETRY)
        assert view.reconsume_times == 0

    lives(tmp_path, main)


def test_what_can_never_be_read_may_be_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"0")
        served.broker.groups.find("g")

        def fails(*_: object) -> None:
            raise MessageError("damaged", "record")

        monkeypatch.setattr(Retries, "put", fails)
        now_ms = served.broker._clock.now_ms()
        put(served, checkpoint(now_ms, put_again="16"))
        await asyncio.sleep(7000)
        assert committed(served) == {0: 0}
        await asyncio.sleep(400)
        assert committed(served) == {0: 1}
        assert served.broker.store.max_queue_offset(REVIVE_TOPIC, 0) == 2

    lives(tmp_path, main, skip_when_ck_re_put_reach_max_times=True)
    assert "is given up" in str(told(caplog))


def test_very_many_checkpoints_of_one_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """apache/rocketmq#9956: nothing comes again. Here there is not even room for all of them."""
    monkeypatch.setattr(revivequeue, "OPEN_MAX", 10)

    async def main(served: Serving, caller: Caller) -> None:
        for number in range(100):
            await caller.sent(b"%d" % number)
        served.broker.groups.find("g")
        now_ms = served.broker._clock.now_ms()
        put(served, *(checkpoint(now_ms, start_offset=number) for number in range(100)))
        for number in range(0, 100, 3):
            record = Acknowledgement(
                queue_offset=number, group="g", pop_ms=now_ms, queue_id=0,
                start_offset=number, topic="T", broker_name="broker-a",
            )  # fmt: skip
            served.broker.popping.books.revive_log.put_acknowledgement(record, 0, now_ms + 60_000, now_ms)
        await passed(served, now_ms + 60_000)
        await asyncio.sleep(FLUSH_SECONDS)
        wanted = [b"%d" % number for number in range(100) if number % 3]
        assert again(served) == wanted
        assert committed(served) == {0: 133}

    lives(tmp_path, main)


def test_nothing_is_lost_while_the_disk_is_full(tmp_path: Path) -> None:
    """apache/rocketmq#10667: what can't be put is dropped."""

    async def main(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 3)
        handle = taken[0][1]
        await asyncio.sleep(61.5)
        served.broker.store.log.refuse("no room")
        await passed(served, handle.visible_ms)
        assert "no room" in served.broker.troubles["popped messages"]
        assert committed(served) == {}
        served.broker.store.log.refuse(None)
        await asyncio.sleep(2)
        assert again(served) == [b"0", b"1", b"2"]
        assert served.broker.troubles == {}
        await asyncio.sleep(FLUSH_SECONDS)
        assert committed(served) == {handle.revive_queue_id: 0}

    lives(tmp_path, main, store={"clean_resource_interval": 600_000})


def test_order_is_kept(tmp_path: Path) -> None:
    """Of messages that were popped one after another, each noted in another revive queue."""

    async def main(served: Serving, caller: Caller) -> None:
        for number in range(20):
            await caller.sent(b"%d" % number)
        await served.dispatched()
        for number in range(20):
            [(_, handle)] = await popped(caller, maxMsgNums=1)
            assert handle.queue_offset == number
        await passed(served, handle.visible_ms)
        assert again(served) == [b"%d" % number for number in range(20)]
        await asyncio.sleep(FLUSH_SECONDS)
        assert len(committed(served)) == 8

    lives(tmp_path, main)


def test_records_that_can_not_be_read_stop_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"0")
        served.broker.groups.find("g")
        store = served.broker.store
        now_ms = served.broker._clock.now_ms()
        for tag in ("ck", "ack", "bAck", "other"):
            for body in (b"", b"no JSON", b"[]", b"{}", b'{"t":"T","c":"g","n":300}', b"\xff"):
                append(store, body, REVIVE_TOPIC, properties={"TAGS": tag}, now_ms=now_ms)
        put(served, checkpoint(now_ms))
        await asyncio.sleep(70)
        assert again(served) == [b"0"]
        assert committed(served) == {0: 24}

    lives(tmp_path, main)
    assert caplog.text.count("is skipped") == 18


# --- whatever happens ---


def test_what_came_again_does_not_with_the_next_broker(tmp_path: Path) -> None:
    """Though a checkpoint before its own is open still, which a start reads."""

    async def main(served: Serving, caller: Caller) -> None:
        for number in range(3):
            await caller.sent(b"%d" % number)
        await served.dispatched()
        first = await popped(caller, invisibleTime=1000, maxMsgNums=2)
        assert (await ack(caller, first[1][1])).code == 0
        assert len(await popped(caller, invisibleTime=1)) == 1
        await asyncio.sleep(2.5)
        assert again(served) == [b"2"]

    async def after(served: Serving, caller: Caller) -> None:
        await asyncio.sleep(20)
        assert again(served) == [b"2", b"0"]

    lives(tmp_path, main, after, revive_queue_num=1)


def test_what_is_open_goes_on_with_the_next_broker(tmp_path: Path) -> None:
    """Not early, and nothing twice."""
    handles: list[Handle] = []

    async def first(served: Serving, caller: Caller) -> None:
        taken = await sent_and_popped(served, caller, 3)
        handles.extend(handle for _, handle in taken)
        await ack(caller, handles[1])
        await asyncio.sleep(30)

    async def second(served: Serving, _: Caller) -> None:
        await asyncio.sleep(30.5)  # the checkpoint is read by now
        assert again(served) == []

    async def third(served: Serving, _: Caller) -> None:
        assert again(served) == []
        await passed(served, handles[0].visible_ms)
        assert again(served) == [b"0", b"2"]

    async def last(served: Serving, _: Caller) -> None:
        await asyncio.sleep(100)
        assert again(served) == [b"0", b"2"]
        assert committed(served) == {handles[0].revive_queue_id: 1}

    lives(tmp_path, first, second, third, last)


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_the_clock_may_be_set(tmp_path: Path, step_ms: int) -> None:
    """Nothing comes again before its time, by whatever the clock says."""

    async def run(clock: VirtualClock) -> None:
        async with serving(tmp_path, clock=clock, background=False, **PATIENT) as served, served.caller() as caller:
            [(_, handle)] = await sent_and_popped(served, caller, 1)
            await asyncio.sleep(61)
            clock.start_ms += step_ms
            await asyncio.sleep(20)
            assert again(served) == ([b"0"] if step_ms > 0 else [])
            await passed(served, handle.visible_ms)
            await asyncio.sleep(10)
            [view] = stored(served, RETRY)
            assert view.store_timestamp_ms >= handle.visible_ms

    loop.run(run)


def test_an_offset_beyond_the_queue_passes_no_record(tmp_path: Path) -> None:
    """Power may take records that a group has passed; others get their places."""

    async def before(served: Serving, caller: Caller) -> None:
        await caller.sent(b"0")
        served.broker.groups.find("g")
        served.broker.offsets.commit(REVIVE_GROUP, REVIVE_TOPIC, 0, 5)

    async def after(served: Serving, _: Caller) -> None:
        assert committed(served) == {0: -1}
        put(served, checkpoint(served.broker._clock.now_ms()))
        await asyncio.sleep(70)
        assert again(served) == [b"0"]

    lives(tmp_path, before, after)


def test_a_store_of_rocketmq_goes_on(tmp_path: Path) -> None:
    """Four messages that a POP consumer took wait in it; two of them are on the wheel, and of the
    next three one is acknowledged. Its cluster has another name here."""
    root = extract("waiting", tmp_path)

    async def run(clock: VirtualClock) -> None:
        clock.start_ms = 1_795_324_234_000  # some of them were popped for that time
        store = GOLDEN_SIZES
        async with serving(root, clock=clock, background=False, store=store) as served:
            before = stored(served, "%RETRY%popg_T")
            assert len(before) == 2
            await asyncio.sleep(LATE_SECONDS + 1)
            came = stored(served, "%RETRY%popg_T")[2:]
            assert [view.properties["1ST_POP_TIME"] for view in came] == [
                "1795320634397", "1795320634397", "1795320634609", "1795320634609",
            ]  # fmt: skip
            taken = {view.unique_key: view.queue_offset for view in stored(served, "T")}
            assert [taken[view.unique_key] for view in came] == [0, 1, 5, 6]
            await asyncio.sleep(FLUSH_SECONDS)
            topic = revive_topic("DefaultCluster")
            assert served.broker.offsets.queues(REVIVE_GROUP, topic) == {0: 0, 1: 0, 2: 1}

    loop.run(run)


def test_without_a_wheel_nothing_is_touched(tmp_path: Path) -> None:
    """Nobody can pop then, and acknowledgements may be on the wheel."""

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"0")
        append(
            served.broker.store, b'{"t":"T","c":"g","q":0,"so":0,"pt":1,"it":1,"n":1}',
            REVIVE_TOPIC, properties={"TAGS": "ck"},
        )  # fmt: skip
        await asyncio.sleep(30)
        assert RETRY not in served.broker.topics.table
        assert committed(served) == {}

    lives(tmp_path, main, store={"timer_wheel_enable": False})


def test_at_rest_nothing_runs(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        [reviving] = [each for each in served.broker.services if each.name == "popped messages"]
        [(_, handle)] = await sent_and_popped(served, caller, 1)
        await passed(served, handle.visible_ms)
        await asyncio.sleep(FLUSH_SECONDS)
        assert again(served) == [b"0"]
        assert not reviving._alarm.is_set  # type: ignore[attr-defined]

    lives(tmp_path, main)


def test_what_is_due_after_a_kill_waits_for_no_other_timer(tmp_path: Path) -> None:
    """The checkpoint is in the revive queue already, and nothing else is due for an hour."""

    async def before(served: Serving, caller: Caller) -> None:
        await caller.sent(b"later", topic="L", i="UNIQ_KEY\x01U\x02TIMER_DELAY_SEC\x013600\x02")
        await sent_and_popped(served, caller, 1, invisibleTime=5000)
        await asyncio.sleep(5.5)
        left_by_kill(tmp_path / "store", tmp_path / "killed")

    async def after(served: Serving, _: Caller) -> None:
        await asyncio.sleep(5)
        assert again(served) == [b"0"]

    async def run(clock: VirtualClock) -> None:
        for name, main in (("store", before), ("killed", after)):
            async with (
                serving(tmp_path / name, clock=clock, background=False, **PATIENT) as served,
                served.caller() as caller,
            ):
                await main(served, caller)

    loop.run(run)
