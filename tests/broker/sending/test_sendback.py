"""Failed messages: sent back (36), sent again by their consumer (310), and at last dead letters."""

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from firearrow.broker.sending import retrycopies as failures
from firearrow.broker.sending import sendback as send_back
from firearrow.broker.sending.puts import again as put_again
from firearrow.broker.sending.sendback import RecentKeys
from firearrow.broker.topics.table import UNIT_SUBSCRIBED_FLAG
from firearrow.message import properties
from firearrow.message.model import MessageView
from firearrow.message.sysflag import INNER_BATCH
from firearrow.store import NewMessage
from firearrow.testing.loop import START_MS
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.codes import PROTOCOL_VERSION
from firearrow.wire.command import Command, FieldValue, request
from firearrow.wire.frame import encode_request
from tests.broker.serving import Caller, Serving, calling, in_virtual_time, send_fields, stored
from tests.broker.together import Ask, is_the_same_together
from tests.store.stores import append

RETRY, DLQ = "%RETRY%g", "%DLQ%g"
DELAYS_S = [10, 30, *(60 * n for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120))]
PATIENT: dict[str, Any] = {"server_channel_max_idle_time_seconds": 10**6}
SENT = "TAGS\x01A\x02UNIQ_KEY\x01U1\x02KEYS\x01k\x02"


async def back(
    caller: Caller, view: MessageView, version: int | None = None, **changed: FieldValue | None
) -> Command[Any]:
    """Send a message back; ``version`` is that of the client."""
    asked: dict[str, FieldValue | None] = {
        "group": "g", "offset": view.physical_offset, "delayLevel": 0, "originMsgId": "x",
        "originTopic": "T", "unitMode": False, "maxReconsumeTimes": 16,
    }  # fmt: skip
    fields = {name: value for name, value in (asked | changed).items() if value is not None}
    frame = encode_request(request(36, fields, b"", opaque=36))
    if version is not None:
        stated = b'"version":%d' % PROTOCOL_VERSION
        assert stated in frame
        assert len(str(version)) == len(str(PROTOCOL_VERSION))
        frame = frame.replace(stated, b'"version":%d' % version)
    caller.talker.write(frame)
    return await caller.talker.answer()


async def group(caller: Caller, name: str = "g", **fields: Any) -> None:
    body = json.dumps({"groupName": name, **fields}).encode()
    assert (await caller.call(200, {}, body)).code == 0


def test_a_message_that_always_fails_comes_sixteen_times(tmp_path: Path) -> None:
    """At the very times of its levels, and then once into the dead-letter topic."""

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"bad", i=SENT)
        [origin] = stored(served, "T")
        view = origin
        for number, delay_s in enumerate(DELAYS_S):
            assert (await back(caller, view)).code == 0
            sent_ms = served.broker._clock.now_ms()
            await asyncio.sleep(delay_s + 0.2)
            arrived = stored(served, RETRY)
            assert len(arrived) == number + 1
            view = arrived[-1]
            assert 0 <= view.store_timestamp_ms - sent_ms - delay_s * 1000 <= 1
            assert view.reconsume_times == number + 1
            assert view.properties == {
                **origin.properties, "RETRY_TOPIC": "T", "WAIT": "false",
                "ORIGIN_MESSAGE_ID": origin.offset_message_id, "DELAY": str(number + 3),
                "REAL_TOPIC": RETRY, "REAL_QID": "0",
            }  # fmt: skip
            assert (view.body, view.flag) == (b"bad", origin.flag)
            assert view.born_timestamp_ms == origin.born_timestamp_ms
            assert view.born_host == origin.born_host
        assert stored(served, DLQ) == []
        assert (await back(caller, view)).code == 0
        [dead] = stored(served, DLQ)
        assert (dead.body, dead.reconsume_times) == (b"bad", 17)
        assert dead.properties == {**view.properties, "DELAY": "0"}
        await asyncio.sleep(2 * 3600 + 1)
        assert len(stored(served, RETRY)) == 16
        topic = served.broker.topics.table[DLQ]
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)

    in_virtual_time(tmp_path, main, **PATIENT)


ODD_PAIRS = [
    "a\x01b", "a\x01c", "WAIT\x01true", "WAIT\x01false", "XWAIT\x01true", "DELAY\x013", "a\x01",
    "RETRY_TOPIC\x01R", "ORIGIN_MESSAGE_ID\x01O", "ORIGIN_MESSAGE_ID\x01 ", "TRAN_MSG\x01true",
    "TIMER_DELIVER_MS\x011", "INNER_MULTI_DISPATCH\x01q", "REAL_TOPIC\x01Q", "é\x01ü", "", "x",
]  # fmt: skip
WAITED = [
    "WAIT\x01false", "RETRY_TOPIC\x01R", "ORIGIN_MESSAGE_ID\x017F00", "DELAY\x013",
    "REAL_TOPIC\x01%RETRY%h", "REAL_QID\x010",
]  # fmt: skip


@pytest.mark.parametrize("level", [-1, 1, 18, 50])
def test_what_is_left_unread_comes_again_as_if_it_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    """A message is sent back for two groups, once with each of its properties read."""
    chance = Random(level)
    left_unread = plain = 0

    asks_nothing = failures._asks_nothing

    def counted(stored: bytes) -> bool:
        nonlocal left_unread
        left_unread += asks_nothing(stored)
        return asks_nothing(stored)

    def counted_plain(*args: Any) -> NewMessage:
        nonlocal plain
        plain += 1
        return put_again(*args)

    async def main(served: Serving, caller: Caller) -> None:
        store = served.broker.store
        topic = "%DLQ%{}" if level < 0 else "SCHEDULE_TOPIC_XXXX"
        await caller.sent(b"x")
        for number in range(80):
            pairs = ["UNIQ_KEY\x01U", *chance.sample(ODD_PAIRS, chance.randrange(3))]
            pairs += ["WAIT\x01true"] * chance.randrange(2)
            chance.shuffle(pairs)
            if number % 2:
                pairs += WAITED
            text = "\x02".join(pairs) + "\x02" * chance.randrange(2)
            host = chance.choice([bytes(4) + b"\0\0\0\1", bytes(15) + b"\1\0\0\0\1"])
            flags = number, chance.choice([0, 1, 8])
            queue = store.queue("T", 0)
            place = store.put(queue, b"x", text.encode(), *flags, 5, host, START_MS, number % 3)
            view, records = store.view_at(place), []
            for name, asks in ("g", counted), ("h", lambda _: False):
                with monkeypatch.context() as patch:
                    patch.setattr(failures, "_asks_nothing", asks)
                    patch.setattr(send_back, "again", counted_plain)
                    assert (await back(caller, view, delayLevel=level, group=name)).code == 0
                [last] = stored(served, topic.format(name), max(min(level, 18) - 1, 0))[-1:]
                records.append(store.content_at(last.physical_offset))
            one, other = records
            found, expected = (it.properties.replace(b"%RETRY%h", b"%RETRY%g") for it in records)
            assert properties.parse(found) == properties.parse(expected)
            if text.encode() == properties.encode(properties.parse(text)):
                assert found == expected
            alike: Any = {"queue_offset": 0, "physical_offset": 0, "topic": "", "properties": b""}
            assert replace(one, **alike) == replace(other, **alike)
        assert left_unread > 3
        assert (plain > 3) == (level >= 0)

    in_virtual_time(tmp_path, main)


def test_what_is_sent_back_counts(tmp_path: Path) -> None:
    """By the topic that it was sent to, however often it came again; 315 tells."""

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"bad", i=SENT)
        await group(caller)
        [view] = stored(served, "T")
        assert (await back(caller, view, delayLevel=1)).code == 0
        await asyncio.sleep(2)
        [again] = stored(served, "%RETRY%g")
        assert (await back(caller, again, delayLevel=-1)).code == 0
        await asyncio.sleep(20)
        counted = await caller.call(315, {"statsName": "SNDBCK_PUT_NUMS", "statsKey": "T@g"})
        assert json.loads(counted.body)["statsMinute"]["sum"] == 2

    in_virtual_time(tmp_path, main, **PATIENT)


@pytest.mark.parametrize(
    ("version", "stated", "configured", "times", "is_dead"),
    [
        (513, 3, 16, 2, False),
        (513, 3, 16, 3, True),
        (513, None, 5, 4, False),
        (513, None, 5, 5, True),
        (120, 3, 16, 3, False),
        (121, 3, 16, 3, True),
        (513, 0, 16, 0, True),
        (513, -1, 16, 0, True),
        (513, 2**31 - 1, 1, 99, False),
    ],
)
def test_who_says_how_often(
    tmp_path: Path, version: int, stated: int | None, configured: int, times: int, is_dead: bool
) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await group(caller, retryMaxTimes=configured)
        await caller.sent(b"x", i=SENT, j=times)
        [view] = stored(served, "T")
        answer = await back(caller, view, version, maxReconsumeTimes=stated)
        assert (answer.code, answer.remark) == (0, None)
        assert len(stored(served, DLQ)) == is_dead
        waiting = served.broker.store.max_queue_offset
        level = min(3 + times, 18)
        assert waiting("SCHEDULE_TOPIC_XXXX", level - 1) == (not is_dead)

    calling(tmp_path, main)


@pytest.mark.parametrize(("asked", "level"), [(1, 1), (5, 5), (18, 18), (19, 18), (2**31 - 1, 18)])
def test_a_consumer_may_choose_the_level(tmp_path: Path, asked: int, level: int) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"x", i=SENT)
        [view] = stored(served, "T")
        assert (await back(caller, view, delayLevel=asked)).code == 0
        [copy] = stored(served, "SCHEDULE_TOPIC_XXXX", level - 1)
        assert copy.properties["DELAY"] == str(level)

    calling(tmp_path, main)


def test_a_consumer_may_give_a_message_up(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"x", i=SENT)
        [view] = stored(served, "T")
        assert (await back(caller, view, delayLevel=-1)).code == 0
        [dead] = stored(served, DLQ)
        assert (dead.body, dead.reconsume_times) == (b"x", 1)
        assert dead.properties["RETRY_TOPIC"] == "T"

    calling(tmp_path, main)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("case", ["group", "broker", "topic", "gone", "middle", "negative"])
def test_what_is_refused(tmp_path: Path, case: str, known: bool) -> None:
    """Also when the group has sent back others before."""

    async def main(served: Serving, caller: Caller) -> None:
        broker = served.broker
        await caller.sent(b"x", i=SENT)
        [view] = stored(served, "T")
        if known:
            await known_group(caller)
        offset, code, remark = view.physical_offset, 16, "sending message is forbidden"
        if case == "group":
            await caller.call(25, {}, b"autoCreateSubscriptionGroup=false")
            await caller.call(207, {"groupName": "g", "cleanOffset": False})
            code, remark = 26, "subscription group not exist, g"
        elif case == "broker":
            await caller.call(25, {}, b"brokerPermission=4")
        elif case == "topic":
            broker.topics.put(TopicConfig(RETRY, 1, 1, 4))
        else:
            places = {"gone": broker.store.log_end_offset, "middle": offset + 4, "negative": -5}
            offset = places[case]
            code, remark = 1, f"look message by offset failed, {offset}: "
        before = dict(broker.topics.table), dict(broker.groups.table), broker.store.log_end_offset
        answer = await back(caller, view, offset=offset)
        assert answer.code == code
        assert remark in str(answer.remark)
        after = dict(broker.topics.table), dict(broker.groups.table), broker.store.log_end_offset
        assert after == before

    calling(tmp_path, main)


async def known_group(caller: Caller) -> None:
    """Send messages of the group back, so that the broker knows the way of its messages."""
    for number in range(3):
        sent = await caller.sent(b"%d" % number, queue_id=1, i="UNIQ_KEY\x01U\x02WAIT\x01true\x02")
        offset = int(str(sent["msgId"])[-16:], 16)
        asked: dict[str, FieldValue] = {"group": "g", "offset": offset, "delayLevel": 18}
        assert (await caller.call(36, asked)).code == 0


def test_what_changes_counts_for_the_next_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is known of a group, of its retry topic and of levels."""

    async def main(served: Serving, caller: Caller) -> None:
        for number in range(4):
            await caller.sent(b"%d" % number, i=f"{SENT}WAIT\x01true\x02")
        await known_group(caller)
        views = stored(served, "T")
        at_most: Any = {"maxReconsumeTimes": None, "delayLevel": 18}
        assert (await back(caller, views[0], **at_most)).code == 0
        await caller.call(25, {}, b"messageDelayLevel=1s 2s 3s")
        await group(caller, retryQueueNums=2, retryMaxTimes=16)
        served.broker.topics.put(TopicConfig(RETRY, 2, 2))
        monkeypatch.setattr(served.broker._chance, "randrange", lambda queues: queues - 1)
        assert (await back(caller, views[1], **at_most)).code == 0
        [copy] = stored(served, "SCHEDULE_TOPIC_XXXX", 2)
        assert (copy.properties["DELAY"], copy.properties["REAL_QID"]) == ("3", "1")
        await group(caller, retryMaxTimes=0)
        assert (await back(caller, views[2], **at_most)).code == 0
        assert [dead.body for dead in stored(served, DLQ)] == [b"2"]
        await group(caller, retryQueueNums=0)
        end = served.broker.store.log_end_offset
        assert (await back(caller, views[3], **at_most)).code == 0
        assert served.broker.store.log_end_offset == end

    calling(tmp_path, main)


def test_nobody_waits_for_the_disk_which_is_asked_to_hurry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With SYNC_FLUSH, as for any message whose sender does not wait."""
    asked: list[str] = []

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"x", i=SENT)
        await known_group(caller)
        [view] = stored(served, "T")
        monkeypatch.setattr(served.broker.store, "flush_soon", lambda: asked.append("soon"))
        assert (await back(caller, view)).code == 0
        assert asked == ["soon"]

    in_virtual_time(tmp_path, main, store={"flush_disk_type": "SYNC_FLUSH"})


def test_without_room_for_the_next_one_nothing_changes(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await known_group(caller)
        await caller.sent(b"x", i=f"{SENT}WAIT\x01true\x02")
        [view] = stored(served, "T")
        served.broker.store.log.refuse("no room")
        answer = await back(caller, view)
        assert (answer.code, answer.remark) == (14, "no room")
        served.broker.store.log.refuse(None)
        assert (await back(caller, view)).code == 0
        assert served.broker.store.max_queue_offset("SCHEDULE_TOPIC_XXXX", 2) == 1

    calling(tmp_path, main)


def test_without_room_nothing_changes(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"x", i=SENT)
        [view] = stored(served, "T")
        served.broker.store.log.refuse("no room")
        answer = await back(caller, view)
        assert (answer.code, answer.remark) == (14, "no room")
        assert RETRY not in served.broker.topics.table
        served.broker.store.log.refuse(None)
        assert (await back(caller, view)).code == 0
        assert served.broker.store.max_queue_offset("SCHEDULE_TOPIC_XXXX", 2) == 1

    calling(tmp_path, main)


def test_a_batch_that_is_one_record_is_not_sent_back(tmp_path: Path) -> None:
    """Its client sends the message that failed by itself then."""

    async def main(served: Serving, caller: Caller) -> None:
        append(served.broker.store, b"several", sys_flag=INNER_BATCH)
        [view] = stored(served, "T")
        answer = await back(caller, view)
        assert (answer.code, "it is a batch" in str(answer.remark)) == (1, True)

    calling(tmp_path, main)


def test_a_damaged_message_is_not_sent_back(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"x", i=SENT)
        [view] = stored(served, "T")
        segment = served.broker.store.log.segments.find(0)
        assert segment is not None
        segment.map[view.physical_offset + 88] ^= 1
        answer = await back(caller, view)
        assert (answer.code, "CRC" in str(answer.remark)) == (1, True)

    calling(tmp_path, main)


def test_a_group_without_retry_queues_drops_what_fails(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await group(caller, retryQueueNums=0)
        await caller.sent(b"x", i=SENT)
        [view] = stored(served, "T")
        end = served.broker.store.log_end_offset
        assert (await back(caller, view)).code == 0
        assert served.broker.store.log_end_offset == end

    calling(tmp_path, main)


def test_retry_topics_have_the_queues_of_their_group(tmp_path: Path) -> None:
    """A copy only goes where consumers look: where the topic was made smaller, into that."""

    async def main(served: Serving, caller: Caller) -> None:
        await group(caller, retryQueueNums=4)
        await group(caller, "small", retryQueueNums=4)
        served.broker.topics.put(TopicConfig("%RETRY%small", 2, 2))
        for number in range(40):
            await caller.sent(b"%d" % number, i=SENT)
        for view in stored(served, "T"):
            for name in ("g", "small"):
                answer = await back(caller, view, group=name, unitMode=True)
                assert answer.code == 0
        config = served.broker.topics.table[RETRY]
        assert (config.read_queue_nums, config.write_queue_nums) == (4, 4)
        assert config.topic_sys_flag == UNIT_SUBSCRIBED_FLAG
        waiting = stored(served, "SCHEDULE_TOPIC_XXXX", 2)
        chosen = {(view.properties["REAL_TOPIC"], view.properties["REAL_QID"]) for view in waiting}
        assert chosen == {
            *((RETRY, str(number)) for number in range(4)),
            *(("%RETRY%small", str(number)) for number in range(2)),
        }

    calling(tmp_path, main)


# --- who asks again ---


def test_who_asks_again_gets_no_second_copy(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        waiting = served.broker.store.max_queue_offset
        await caller.sent(b"x", i=SENT)
        [view] = stored(served, "T")
        for _ in range(3):
            assert (await back(caller, view)).code == 0
            assert waiting("SCHEDULE_TOPIC_XXXX", 2) == 1
        assert (await back(caller, view, group="other")).code == 0
        assert waiting("SCHEDULE_TOPIC_XXXX", 2) == 2
        assert (await back(caller, view, delayLevel=-1)).code == 0  # that is something else
        assert (await back(caller, view, delayLevel=-1)).code == 0
        assert (await back(caller, view)).code == 0
        assert len(stored(served, DLQ)) == 1
        assert waiting("SCHEDULE_TOPIC_XXXX", 2) == 2

    in_virtual_time(tmp_path, main)


@pytest.mark.parametrize("level", [1, 3])
def test_a_message_that_fails_once_more_is_no_repetition(tmp_path: Path, level: int) -> None:
    """As after a reset of its group: from then on somebody can have consumed the copy."""

    async def main(served: Serving, caller: Caller) -> None:
        waiting = served.broker.store.max_queue_offset
        await caller.sent(b"x", i=SENT)
        [view] = stored(served, "T")
        assert (await back(caller, view, delayLevel=level)).code == 0
        await asyncio.sleep((1 if level == 1 else 10) + 0.01)
        assert (await back(caller, view, delayLevel=level)).code == 0
        assert waiting("SCHEDULE_TOPIC_XXXX", level - 1) == 2
        [copy] = stored(served, RETRY)
        assert (await back(caller, copy, delayLevel=level)).code == 0
        assert waiting("SCHEDULE_TOPIC_XXXX", level - 1) == 3

    in_virtual_time(tmp_path, main)


def test_no_more_are_remembered_than_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_back, "REPEATS_MAX", 2)

    async def main(served: Serving, caller: Caller) -> None:
        waiting = served.broker.store.max_queue_offset
        for number in range(5):
            await caller.sent(b"%d" % number, i=SENT)
        views = stored(served, "T")
        for view in (*views, *views[-2:], views[0]):
            assert (await back(caller, view)).code == 0
        assert waiting("SCHEDULE_TOPIC_XXXX", 2) == 6

    in_virtual_time(tmp_path, main)


# --- what a consumer sends to its retry topic by itself ---


async def again(caller: Caller, times: int, **changed: FieldValue) -> Command[Any]:
    """As clients do when a message can't be sent back."""
    more = f"RETRY_TOPIC\x01T\x02ORIGIN_MESSAGE_ID\x01X\x02DELAY\x01{3 + times}\x02"
    fields = send_fields(RETRY) | {"i": SENT + more, "j": times, "l": 16, "d": 1} | changed
    return await caller.call(310, fields, b"again")


def test_a_consumer_sends_a_failed_message_by_itself(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        answer = await again(caller, 1)
        assert (answer.code, answer.ext["queueId"]) == (0, "0")
        assert (await again(caller, 16)).code == 0
        await asyncio.sleep(31)
        [view] = stored(served, RETRY)
        assert (view.body, view.reconsume_times) == (b"again", 1)
        assert view.properties["RETRY_TOPIC"] == "T"
        assert (await again(caller, 17)).code == 0
        [dead] = stored(served, DLQ)
        assert (dead.properties["DELAY"], dead.reconsume_times) == ("-1", 17)

    in_virtual_time(tmp_path, main)


def test_a_plain_message_to_a_retry_topic_is_looked_at_too(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await group(caller, retryMaxTimes=2)
        for times in (1, 2, 3):
            answer = await caller.send(b"%d" % times, RETRY, d=1, i=SENT, j=times)
            assert answer.code == 0
        assert [view.body for view in stored(served, RETRY)] == [b"1", b"2"]
        assert [view.body for view in stored(served, DLQ)] == [b"3"]
        assert (await caller.send(b"x", RETRY, 1, i=SENT)).code == 29
        await caller.call(25, {}, b"autoCreateSubscriptionGroup=false")
        assert (await caller.send(b"x", "%RETRY%nobody", i=SENT)).code == 26

    calling(tmp_path, main)


def test_what_is_consumed_in_order_is_a_dead_letter_at_once(tmp_path: Path) -> None:
    queue = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
    body = {"consumerGroup": "g", "clientId": "c", "mqSet": [queue]}

    async def main(served: Serving, caller: Caller) -> None:
        assert (await caller.call(41, {}, json.dumps(body).encode())).code == 0
        assert (await again(caller, 1)).code == 0
        assert len(stored(served, DLQ)) == 1
        await asyncio.sleep(60.01)
        assert (await again(caller, 1)).code == 0
        assert len(stored(served, DLQ)) == 1
        assert (await caller.call(41, {}, json.dumps(body).encode())).code == 0
        assert (await caller.call(42, {}, json.dumps(body).encode())).code == 0
        assert (await again(caller, 1)).code == 0
        assert len(stored(served, DLQ)) == 1

    in_virtual_time(tmp_path, main)


def test_a_dead_letter_has_no_priority(tmp_path: Path) -> None:
    """Java: SendMessageProcessor#sendMessage puts it into a queue of the retry topic's number."""

    async def main(served: Serving, caller: Caller) -> None:
        await group(caller, retryMaxTimes=2, retryQueueNums=4)
        served.broker.topics.put(TopicConfig(RETRY, 4, 4))
        text = f"{SENT}_SYS_MSG_PRIORITY_\x013\x02"
        for times in (1, 3):
            assert (await caller.send(b"%d" % times, RETRY, i=text, j=times)).code == 0
        assert [view.body for view in stored(served, RETRY, 3)] == [b"1"]
        assert [view.body for view in stored(served, DLQ)] == [b"3"]

    calling(tmp_path, main)


ODD_ASKS: list[dict[str, FieldValue]] = [
    {"group": "h"}, {"group": "new"}, {"group": "none"}, {"group": "h", "delayLevel": 50},
    {"delayLevel": -1}, {"delayLevel": 5}, {"maxReconsumeTimes": 1}, {"maxReconsumeTimes": 0},
    {"offset": 7}, {"offset": 1 << 40}, {"unitMode": True}, {"delayLevel": "x"},
]  # fmt: skip
USUAL_PAIRS = [
    "UNIQ_KEY\x01U", "UNIQ_KEY\x01U\x02MSG_REGION\x01R\x02TRACE_ON\x01true", "KEYS\x01a_b",
]  # fmt: skip


@pytest.mark.parametrize(
    ("odd", "flush", "file_bytes", "at_once", "least"),
    [
        (0.0, "ASYNC_FLUSH", 1 << 20, 300, send_back.SEVERAL_MAX),
        (0.0, "ASYNC_FLUSH", 1 << 16, 300, 0),  # of which a file holds a hundred or two
        (0.1, "SYNC_FLUSH", 1 << 20, 20, 50),
        (0.5, "ASYNC_FLUSH", 1 << 20, 5, 9),
    ],
)
def test_messages_sent_back_together_come_as_if_each_were_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: float, flush: str, file_bytes: int, at_once: int, least: int
) -> None:
    """Whatever is asked between: of other groups, for the dead ones, again, or in vain."""

    async def prepare(served: Serving, caller: Caller) -> list[Ask]:
        chance = Random(str(odd))
        store = served.broker.store
        await known_group(caller)
        served.broker.topics.put(TopicConfig("%RETRY%h", 2, 2))
        for name, queues in ("h", 2), ("none", 0):
            await group(caller, name, retryQueueNums=queues)
        queue, asked = store.queue("T", 0), list[Ask]()
        for number in range(300):
            pairs = [chance.choice(USUAL_PAIRS), "WAIT\x01true"]
            flags = number, 0
            if chance.random() < odd:
                pairs += chance.sample(ODD_PAIRS, 2) + chance.choice([[], WAITED])
                flags = number, chance.choice([INNER_BATCH, 1, 4, 8])
            text = "\x02".join(pairs) + "\x02" * chance.randrange(2)
            host = bytes(4) + b"\0\0\0\1" if number % 7 else bytes(15) + b"\1\0\0\0\1"
            times = chance.randrange(3)
            place = store.put(queue, b"%d" % number, text.encode(), *flags, 5, host, START_MS, times)
            fields: dict[str, FieldValue] = {"group": "g", "offset": place, "delayLevel": 0}
            fields |= {"maxReconsumeTimes": 16, "originTopic": "T"}
            asked.append((36, fields))
            if chance.random() < odd:
                asked.append((36, fields | chance.choice([*ODD_ASKS, {}])))
        store.catch_up()
        return asked

    def failures_of(served: Serving) -> Any:
        return served.broker.stats._failures, served.broker.topics.table.keys()

    sizes: dict[str, Any] = {"mapped_file_size_commit_log": file_bytes, "flush_disk_type": flush}
    together = is_the_same_together(tmp_path, monkeypatch, prepare, failures_of, at_once, store=sizes)
    assert least <= together < 300


# --- What happened a short while ago ---


notes = st.tuples(st.sampled_from("abcdef"), st.integers(0, 5))


@given(st.lists(notes, max_size=30), st.integers(1, 4), st.integers(0, 5))
def test_the_last_keys_are_known(noted: list[tuple[str, int]], keys_max: int, now: int) -> None:
    recent: RecentKeys[str] = RecentKeys(keys_max)
    for key, until in noted:
        recent.note(key, until)
    latest = dict(noted)
    for place, (key, until) in enumerate(noted):
        if key not in dict(noted[place + 1 :]) and len(noted) - place <= keys_max:
            assert recent.has(key, now) == (until > now)
    assert sum(recent.has(key, now) for key in "abcdef") <= 2 * keys_max
    assert not any(recent.has(key, now) for key in "abcdef" if latest.get(key, 0) <= now)


def test_many_are_noted_at_once() -> None:
    recent: RecentKeys[str] = RecentKeys(2)
    recent.note("a", 9)
    recent.note_all({"b": 5, "c": 6, "a": 1})
    recent.note_all({"d": 5})
    assert [recent.has(key, 5) for key in "abcd"] == [False, False, True, False]
    recent.note_all({"e": 7, "f": 7})
    recent.note_all({"g": 7})
    assert [recent.has(key, 5) for key in "cdefg"] == [False, False, True, True, True]


@given(st.lists(notes, max_size=30), st.lists(st.sampled_from("abcdefgh"), max_size=8))
def test_what_comes_before_the_first_known_key(noted: list[tuple[str, int]], asked: str) -> None:
    recent: RecentKeys[str] = RecentKeys(2)
    for key, until in noted:
        recent.note(key, until)
    expected = 0
    while expected < len(asked) and not recent.has(asked[expected], 3):
        expected += 1
    assert recent.before_known(asked, 3) == expected
