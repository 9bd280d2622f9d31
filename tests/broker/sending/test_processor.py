"""Sends: what is stored, what is answered, what is refused."""

import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from firearrow.message.batch import encode_batch, split_batch
from firearrow.message.ids import decode_offset_id
from firearrow.message.properties import PROPERTIES_BYTES_MAX
from firearrow.message.record import decode_record, iter_records
from firearrow.store.fs import FileSystem
from firearrow.wire import fastjson
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.command import FieldValue, request
from tests.broker.serving import Caller, Serving, calling, pull_fields, send_fields
from tests.message.writing import decode_unique_id

UNIQUE = "UNIQ_KEY\x01U1\x02"
ADDED = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "C"}


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_a_message_is_stored_and_its_ids_are_answered(tmp_path: Path, binary: bool) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for number in range(3):
            fields = await caller.sent(b"hello %d" % number, queue_id=2)
            place = decode_offset_id(fields.pop("msgId"))
            assert place.store_host == ("127.0.0.1", served.port)
            assert fields == {
                "queueId": "2", "queueOffset": str(number), "transactionId": "U1",
                "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
            }  # fmt: skip
            record = served.broker.store.record_at(place.physical_offset)
            assert record is not None
            view = decode_record(record, check_body_crc=True)
            assert (view.topic, view.queue_id, view.queue_offset) == ("T", 2, number)
            assert (view.body, view.flag, view.sys_flag) == (b"hello %d" % number, 7, 0)
            assert view.properties == {"TAGS": "A", "UNIQ_KEY": "U1", **ADDED}
            assert view.born_timestamp_ms == 1_795_000_000_000
            host, _, port = caller.talker.address.rpartition(":")
            assert view.born_host == (host, int(port))
            assert record.endswith(b"\x02")

    calling(tmp_path, main, binary=binary)


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("unique", ["U1", "U" * 300], ids=["short", "long"])
def test_a_region_may_be_any_text(tmp_path: Path, unique: str, binary: bool) -> None:
    region = '%d "north"\\ 北' + "x" * 22  # 37 bytes in all: as a length that is a percent sign

    async def main(served: Serving, caller: Caller) -> None:
        for number in range(2):
            fields = await caller.sent(i=f"UNIQ_KEY\x01{unique}\x02")
            assert fields.pop("msgId")
            assert fields == {
                "queueId": "0", "queueOffset": str(number), "transactionId": unique,
                "MSG_REGION": region, "TRACE_ON": "true",
            }  # fmt: skip
        batch = encode_batch([(0, b"a", b"")] * 3)
        answer = await caller.call(320, send_fields(), batch)
        assert (answer.ext["MSG_REGION"], answer.ext["queueOffset"]) == (region, "2")

    calling(tmp_path, main, binary=binary, region_id=region)


def test_the_long_form_is_the_same(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        fields: dict[str, FieldValue] = {
            "producerGroup": "p", "topic": "T", "defaultTopic": "TBW102",
            "defaultTopicQueueNums": 4, "queueId": 1, "sysFlag": 0, "bornTimestamp": 5, "flag": 3,
            "properties": UNIQUE, "reconsumeTimes": 0, "unitMode": False, "batch": False,
        }  # fmt: skip
        answer = await caller.call(10, fields, b"long")
        assert (answer.code, answer.ext["queueOffset"]) == (0, "0")
        [view] = await caller.stored(queue_id=1)
        assert (view.body, view.flag, view.born_timestamp_ms) == (b"long", 3, 5)

    calling(tmp_path, main)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("", {}),
        ("TAGS\x01A", {"TAGS": "A"}),
        ("TAGS\x01A\x02", {"TAGS": "A"}),
        ("UNIQ_KEY\x01\x02TAGS\x01A\x02", {"TAGS": "A"}),
        ("MYUNIQ_KEY\x01x\x02", {"MYUNIQ_KEY": "x"}),
        ("a_b\x01x\x02", {"a_b": "x"}),
        ("nothing", {}),
        ("标签\x01值\x02", {"标签": "值"}),
    ],
)
def test_a_message_without_unique_key_gets_one(tmp_path: Path, sent: str, kept: dict[str, str]) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        unique = {(await caller.sent(i=sent))["transactionId"] for _ in range(3)}
        views = await caller.stored()
        assert {view.properties.pop("UNIQ_KEY") for view in views} == unique
        assert len(unique) == 3
        assert {decode_unique_id(key).ip for key in unique} == {"127.0.0.1"}
        assert all(view.properties == kept | ADDED for view in views)

    calling(tmp_path, main)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (UNIQUE.rstrip("\x02"), {}),
        (f"TAGS\x01A\x02{UNIQUE}KEYS\x01a b\x02", {"TAGS": "A", "KEYS": "a b"}),
        (f"{UNIQUE}POP_CK\x01x\x02", {}),
        (f"{UNIQUE}__RMQ.TRANSIENT.x\x01y\x02", {}),
        (f"{UNIQUE}MSG_REGION\x01other\x02CLUSTER\x01other\x02", {}),
        (f"{UNIQUE}DELAY\x010\x02", {"DELAY": "0"}),
        (f"{UNIQUE}WAIT\x01false\x02", {"WAIT": "false"}),
        (f"{UNIQUE}标签\x01值\x02", {"标签": "值"}),
    ],
)
def test_properties_are_stored_as_sent(tmp_path: Path, sent: str, kept: dict[str, str]) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        assert (await caller.sent(i=sent))["transactionId"] == "U1"
        [view] = await caller.stored()
        assert view.properties == {"UNIQ_KEY": "U1", **kept, **ADDED}

    calling(tmp_path, main)


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_a_unique_key_may_be_any_text(tmp_path: Path, binary: bool) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for unique in ('"\\', "a b", "键", "x_y", "%d"):
            fields = await caller.sent(i=f"UNIQ_KEY\x01{unique}\x02")
            assert fields["transactionId"] == unique
        assert [view.unique_key for view in await caller.stored()] == ['"\\', "a b", "键", "x_y", "%d"]

    calling(tmp_path, main, binary=binary)


def test_an_unknown_topic_is_created(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        assert served.broker.topics.table.get("New") is None
        await caller.sent(topic="New", d=3)
        config = served.broker.topics.table["New"]
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 3, 6)
        await caller.sent(topic="Many", d=100)
        assert served.broker.topics.table["Many"].write_queue_nums == 8

    calling(tmp_path, main)


def test_a_queue_id_below_zero_leaves_the_choice_to_the_broker(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        chosen = {(await caller.sent(queue_id=-1))["queueId"] for _ in range(60)}
        assert chosen == {"0", "1", "2", "3"}

    calling(tmp_path, main)


MISSING = "not there"

REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"b": ""}, 29, "blank"),
    ({"b": "a b"}, 29, "illegal characters"),
    ({"b": "t" * 128}, 29, "128 characters long"),
    ({"b": "SCHEDULE_TOPIC_XXXX"}, 16, "forbidden"),
    ({"b": "RMQ_SYS_TRANS_HALF_TOPIC"}, 16, "forbidden"),
    ({"b": "SELF_TEST_TOPIC"}, 16, "forbidden"),
    ({"b": "New", "c": "nothing"}, 17, "topic.New. not exist"),
    ({"e": 8}, 29, "queueId.8. is illegal"),
    ({"e": 2**31 - 1}, 29, "is illegal"),
    ({"f": 4}, 13, "sysFlag 4"),
    ({"f": 0x10}, 13, "sysFlag 16"),
    ({"f": 0x80}, 13, "sysFlag 128"),
    ({"f": -1}, 13, "sysFlag -1"),
    ({"i": UNIQUE + "TIMER_DELAY_SEC\x01soon\x02"}, 13, "timer message illegal"),
    ({"i": UNIQUE + "INNER_NUM\x013\x02"}, 13, "inner-batch"),
    ({"i": UNIQUE + "k\x01" + "v" * PROPERTIES_BYTES_MAX}, 13, "limit 32767"),
    ({"i": "k_k\x01" + "v" * PROPERTIES_BYTES_MAX}, 13, "32767"),
    ({"i": "k_k\x01a\x01b\x02"}, 13, "separator"),
    ({"e": "x"}, 1, "bad header"),
    ({"e": 2**31}, 1, "bad header"),
    ({"b": MISSING}, 1, "`b`"),
]


@pytest.mark.parametrize(("changed", "code", "remark"), REFUSED)
def test_what_is_refused(
    tmp_path: Path, changed: dict[str, Any], code: int, remark: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(d=8)
        fields = send_fields(**changed)
        if fields["b"] is MISSING:
            del fields["b"]
        end = served.broker.store.log.end_offset
        answer = await caller.call(310, fields, b"x")
        assert answer.code == code, answer.remark
        assert re.search(remark, str(answer.remark))
        assert served.broker.store.log.end_offset == end
        caller.tell(310, fields, b"x", oneway=True)
        await caller.sent()
        assert len(await caller.stored()) == 2

    calling(tmp_path, main)
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("code", [310, 320])
def test_a_body_beyond_the_limit_is_refused(tmp_path: Path, code: int) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(bytes(1000))
        body = encode_batch([(0, bytes(979), b"")]) if code == 320 else bytes(1001)
        answer = await caller.call(code, send_fields(), body)
        assert answer.code == 13
        assert "body 1001 B (limit 1000)" in str(answer.remark)

    calling(tmp_path, main, store={"max_message_size": 1000})


def test_a_message_larger_than_a_file_is_refused(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        answer = await caller.send(bytes(70_000))
        assert answer.code == 13
        assert "does not fit a CommitLog file" in str(answer.remark)

    calling(tmp_path, main)


def test_without_automatic_creation_a_topic_must_exist(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        assert (await caller.send()).code == 17
        topic: dict[str, FieldValue] = {
            "topic": "T", "readQueueNums": 2, "writeQueueNums": 1, "perm": 6, "defaultTopic": "",
        }  # fmt: skip
        assert (await caller.call(17, topic)).code == 0
        await caller.sent(queue_id=1)
        assert (await caller.send(queue_id=2)).code == 29

    calling(tmp_path, main, auto_create_topic_enable=False)


def test_before_its_time_nothing_is_accepted(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        answer = await caller.send()
        assert answer.code == 1
        assert "unable to service" in str(answer.remark)

    calling(tmp_path, main, start_accept_send_request_time_stamp=2**50)


def test_a_retry_topic_is_created_for_a_group(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(topic="%RETRY%g", c="")
        assert served.broker.topics.table["%RETRY%g"].write_queue_nums == 1
        long = "%RETRY%" + "g" * 120
        await caller.sent(topic=long, c="")
        assert [view.topic for view in await caller.stored(long)] == [long]

    calling(tmp_path, main)


def test_a_retry_topic_of_no_group_is_refused(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        assert (await caller.send(topic="%RETRY%nobody", c="")).code == 26

    calling(tmp_path, main, auto_create_subscription_group=False)


def test_one_way_sends_are_stored_and_not_answered(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent()
        for number in range(5):
            caller.tell(310, send_fields(), b"%d" % number, oneway=True)
        caller.tell(320, send_fields(), encode_batch([(0, b"5", b"")]), oneway=True)
        assert (await caller.sent(b"6"))["queueOffset"] == "7"
        assert [view.body for view in await caller.stored()][1:] == [b"%d" % n for n in range(7)]

    calling(tmp_path, main)


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_a_batch_is_stored_member_by_member(tmp_path: Path, binary: bool) -> None:
    members = [(n, b"member %d" % n * n, b"UNIQ_KEY\x01U%d\x02" % n) for n in range(5)]

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(queue_id=1)
        answer = await caller.call(320, send_fields(queue_id=1, m=True), encode_batch(members))
        assert answer.code == 0
        assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("1", "1")
        views = (await caller.stored(queue_id=1))[1:]
        assert answer.ext["msgId"].split(",") == [view.offset_message_id for view in views]
        assert [(view.flag, view.body) for view in views] == [(n, body) for n, body, _ in members]
        assert [view.properties for view in views] == [{"UNIQ_KEY": f"U{n}"} for n in range(5)]
        assert [view.queue_offset for view in views] == [1, 2, 3, 4, 5]

    calling(tmp_path, main, binary=binary)


@pytest.mark.parametrize(
    ("changed", "body", "code"),
    [
        ({}, b"", 13),
        ({}, b"no batch", 13),
        ({}, encode_batch([(0, b"a", b"")])[:-1], 13),
        ({}, encode_batch([(0, bytes(30_000), b"")] * 3), 13),
        ({"b": "%RETRY%g"}, encode_batch([(0, b"a", b"")]), 13),
        ({"f": 4}, encode_batch([(0, b"a", b"")]), 13),
        ({"e": 4}, encode_batch([(0, b"a", b"")]), 29),
        ({"b": "SELF_TEST_TOPIC"}, encode_batch([(0, b"a", b"")]), 16),
        ({"b": "New", "c": ""}, encode_batch([(0, b"a", b"")]), 17),
    ],
)
def test_batches_that_are_refused(tmp_path: Path, changed: dict[str, Any], body: bytes, code: int) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent()
        end = served.broker.store.log.end_offset
        answer = await caller.call(320, send_fields(**changed), body)
        assert answer.code == code, answer.remark
        assert answer.remark
        assert served.broker.store.log.end_offset == end

    calling(tmp_path, main)


BORN_MS = send_fields()["g"]
ALIKE = encode_batch([(3, b"alike", b"UNIQ_KEY\x01U1\x02")] * 3)
LONGER = encode_batch([(3, b"longer", b"UNIQ_KEY\x01U1\x02")] * 3)

# What is sent in one write: (changed fields, body, code of the answer).
TOGETHER: list[list[tuple[dict[str, FieldValue], bytes, int]]] = [
    [({"e": n % 3, "g": n}, ALIKE, 0) for n in range(8)],
    [({}, ALIKE, 0), ({}, LONGER, 0), ({}, ALIKE, 0)],
    [({}, ALIKE, 0), ({}, ALIKE[:-1] + b"\x03", 0), ({}, b"n" * len(ALIKE), 13)],
    [({}, ALIKE, 0), ({"e": 4}, ALIKE, 29), ({}, ALIKE, 0)],
    [({}, ALIKE, 0), ({"f": 4}, ALIKE, 13), ({}, ALIKE, 0)],
    [({}, ALIKE, 0), ({"b": "New"}, ALIKE, 0), ({}, ALIKE, 0)],
    [({}, ALIKE, 0), ({"e": "x"}, ALIKE, 1), ({}, ALIKE, 0)],
    [({}, b"", 13), ({}, b"", 13)],
    [({}, encode_batch([(0, bytes(20_000), b"")]), 0)] * 5,  # of which a file holds three
]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("batches", TOGETHER)
def test_batches_in_one_write_are_stored_one_after_another(
    tmp_path: Path, batches: list[tuple[dict[str, FieldValue], bytes, int]], binary: bool, flush: str
) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent()
        commands = [
            request(320, send_fields() | changed, body, opaque=1000 + number)
            for number, (changed, body, _) in enumerate(batches)
        ]
        for command in commands:
            command.binary = binary
        caller.talker.ask(*commands)
        expected = {("T", 0): 1}
        answers = [await caller.talker.answer() for _ in batches]
        by_opaque = {answer.opaque: answer for answer in answers}
        for number, (changed, body, code) in enumerate(batches):
            answer = by_opaque[1000 + number]
            assert (answer.code, answer.binary) == (code, binary), answer.remark
            if code:
                assert answer.remark
                continue
            queue = str(changed.get("b", "T")), int(changed.get("e", 0))
            first = expected.setdefault(queue, 0)
            assert answer.ext["queueOffset"] == str(first)
            assert answer.ext["queueId"] == str(queue[1])
            members = split_batch(body)
            expected[queue] += len(members)
            views = (await caller.stored(*queue))[first : expected[queue]]
            assert answer.ext["msgId"].split(",") == [view.offset_message_id for view in views]
            assert [(view.flag, view.body) for view in views] == [(member.flag, member.body) for member in members]
            assert {view.born_timestamp_ms for view in views} == {changed.get("g", BORN_MS)}
        for queue, count in expected.items():
            assert len(await caller.stored(*queue)) == count

    calling(tmp_path, main, binary=binary, store={"flush_disk_type": flush})


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_sends_wait_for_the_disk_if_the_broker_is_told_to(tmp_path: Path, binary: bool) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        store = served.broker.store
        await caller.sent()
        assert store.runtime_facts()["remainHowManyDataToFlush"] == "0 B"
        batch = encode_batch([(0, b"a", b"")] * 3)
        assert (await caller.call(320, send_fields(), batch)).code == 0
        assert store.runtime_facts()["remainHowManyDataToFlush"] == "0 B"
        await caller.sent(i=f"{UNIQUE}WAIT\x01false\x02")
        assert len(await caller.stored()) == 5

    options = {"flush_disk_type": "SYNC_FLUSH", "flush_interval_commit_log": 60_000}
    calling(tmp_path, main, store=options, binary=binary)


def test_a_disk_that_is_too_slow_is_told_and_the_message_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moving = threading.Event()

    def stalled(fs: FileSystem, path: Path) -> None:
        assert moving.wait(10)

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"makes the file", queue_id=1)
        monkeypatch.setattr(FileSystem, "sync_file", stalled)
        answer = await caller.send(b"slow")
        assert answer.code == 10
        assert answer.remark == "the message is stored, the disk did not confirm it"
        assert [view.body for view in await caller.stored()] == [b"slow"]
        moving.set()

    options = {"flush_disk_type": "SYNC_FLUSH", "sync_flush_timeout": 500}
    calling(tmp_path, main, store=options)


# --- LMQs ---

LMQ: dict[str, Any] = {"enable_lmq": True, "enable_multi_dispatch": True}
LMQ_PROPERTIES = "TAGS\x01A\x02UNIQ_KEY\x01U1\x02INNER_MULTI_DISPATCH\x01"


def test_a_lmq_group_consumes_a_lmq(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for number, lmq in enumerate(("%LMQ%a", "%LMQ%a,%LMQ%b", "%LMQ%b")):
            sent = await caller.sent(b"%d" % number, i=f"{LMQ_PROPERTIES}{lmq}\x02")
            assert (sent["queueOffset"], sent["transactionId"]) == (str(number), "U1")
        await served.dispatched()
        answer = await caller.pull(topic="%LMQ%b", consumerGroup="%LMQ%g")
        assert [view.body for view in iter_records(answer.body)] == [b"1", b"2"]
        assert (answer.ext["nextBeginOffset"], answer.ext["maxOffset"]) == ("2", "2")
        [_, last] = iter_records(answer.body)
        assert last.properties["INNER_MULTI_QUEUE_OFFSET"] == "1"
        answer = await caller.pull(topic="%LMQ%b", consumerGroup="%LMQ%g", queueId=1)
        assert answer.code == 29
        place: dict[str, FieldValue] = {"topic": "%LMQ%b", "consumerGroup": "%LMQ%g", "queueId": 0}
        assert (await caller.call(15, {**place, "commitOffset": 2})).code == 0
        assert (await caller.call(14, place)).ext["offset"] == "2"
        assert not [name for name in served.broker.topics.table if name.startswith("%LMQ%")]
        assert "%LMQ%g" not in served.broker.groups.table

    calling(tmp_path, main, store=LMQ)
    content = fastjson.loads((tmp_path / "config/lmqConsumerOffset.json").read_bytes())
    assert content["lmqOffsetTable"] == {"%LMQ%b@%LMQ%g": 2}
    assert "%LMQ%b@%LMQ%g" not in content["offsetTable"]


def test_a_message_may_be_sent_to_a_lmq(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(b"0", i=f"{LMQ_PROPERTIES}%LMQ%a\x02")
        assert (await caller.sent(b"1", topic="%LMQ%a"))["queueOffset"] == "1"
        assert (await caller.send(b"2", topic="%LMQ%a", queue_id=1)).code == 29
        await served.dispatched()
        answer = await caller.pull(topic="%LMQ%a")
        assert [view.body for view in iter_records(answer.body)] == [b"0", b"1"]

    calling(tmp_path, main, store=LMQ)


def test_a_pull_waits_at_a_lmq(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        waits = pull_fields(0, topic="%LMQ%a", sysFlag=2 | 4, suspendTimeoutMillis=3_600_000)
        async with served.caller() as consumer:
            consumer.tell(11, waits)
            await served.holding(1)
            await caller.sent(b"come", i=f"{LMQ_PROPERTIES}%LMQ%a\x02")
            answer = await consumer.talker.answer()
            assert [view.body for view in iter_records(answer.body)] == [b"come"]

    calling(tmp_path, main, store=LMQ)


@pytest.mark.parametrize(
    ("store", "lmq", "code", "part"),
    [
        ({}, "%LMQ%a", 13, "needs enableLmq=true and enableMultiDispatch=true"),
        ({"enable_lmq": True}, "%LMQ%a", 13, "needs enableLmq=true"),
        (LMQ, "a", 13, "'a' must be %LMQ% and a name"),
        (LMQ, "%LMQ%a/b", 13, "illegal characters"),
        (
            {**LMQ, "enable_lmq_quota": True, "max_lmq_consume_queue_num": 1},
            "%LMQ%a,%LMQ%b",
            2017,
            "there are 1 LMQs already (maxLmqConsumeQueueNum)",
        ),
    ],
)
def test_what_cannot_be_dispatched_is_refused(
    tmp_path: Path, store: dict[str, Any], lmq: str, code: int, part: str
) -> None:
    async def main(_: Serving, caller: Caller) -> None:
        answer = await caller.send(i=f"{LMQ_PROPERTIES}{lmq}\x02")
        assert answer.code == code
        assert part in (answer.remark or "")
        assert await caller.stored() == []

    calling(tmp_path, main, store=store)


def test_a_retried_message_keeps_the_property(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.pull()  # makes the group
        await caller.sent(topic="%RETRY%g", i=f"{LMQ_PROPERTIES}%LMQ%a\x02")
        await served.dispatched()
        assert served.broker.store.max_queue_offset("%LMQ%a", 0) == 0

    calling(tmp_path, main, store=LMQ)


BATCH_TOPIC: dict[str, FieldValue] = {
    "topic": "B", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4,
    "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
    "attributes": "+queue.type=BatchCQ",
}  # fmt: skip


# --- priorities ---

P = "_SYS_MSG_PRIORITY_"


@pytest.mark.parametrize(
    ("priority", "queue_id"),
    [
        *(("2", 2), ("9", 3), ("+1", 1), ("01", 1), ("١", 1), ("2147483647", 3), ("-0", 0)),
        *(("-1", 2), ("x", 2), (" 1", 2), ("1_0", 2), ("1.0", 2), ("0x1", 2), ("2147483648", 2)),
    ],
)
def test_a_priority_is_a_queue(tmp_path: Path, priority: str, queue_id: int) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        fields = await caller.sent(queue_id=2, i=f"{UNIQUE}{P}\x01{priority}\x02")
        assert fields["queueId"] == str(queue_id)
        [view] = await caller.stored(queue_id=queue_id)
        assert view.properties[P] == priority

    calling(tmp_path, main)


@pytest.mark.parametrize("other", ["DELAY\x010", "TIMER_DELAY_SEC\x010", "__SHARDINGKEY\x01k", "TIMER_DELIVER_MS\x011"])
def test_a_message_of_another_kind_has_no_priority(tmp_path: Path, other: str) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        fields = await caller.sent(queue_id=1, i=f"{UNIQUE}{P}\x012\x02{other}\x02")
        assert fields["queueId"] == "1"
        [view] = await caller.stored(queue_id=1)
        assert P not in view.properties
        await caller.sent(queue_id=1, i=f"{UNIQUE}{P}\x01-2\x02{other}\x02")
        assert [P in view.properties for view in await caller.stored(queue_id=1)] == [False, True]

    calling(tmp_path, main)


@pytest.mark.parametrize(("prepared", "queue_id"), [("TRUE", 0), ("false", 2)])
def test_a_half_has_no_priority(tmp_path: Path, prepared: str, queue_id: int) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        text = f"{UNIQUE}{P}\x012\x02TRAN_MSG\x01{prepared}\x02PGROUP\x01p\x02"
        fields = await caller.sent(i=text)
        assert fields["queueId"] == str(queue_id)

    calling(tmp_path, main)


def test_a_priority_is_above_what_is_written_to(tmp_path: Path) -> None:
    """Java: without a queue to write to, it stores the message in queue -1."""

    async def main(served: Serving, caller: Caller) -> None:
        for topic, write_queues, queue_id in (("T", 2, 1), ("U", 0, 3)):
            served.broker.topics.put(TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=write_queues))
            fields = await caller.sent(topic=topic, queue_id=3, i=f"{UNIQUE}{P}\x017\x02")
            assert fields["queueId"] == str(queue_id)
            assert len(await caller.stored(topic, queue_id)) == 1

    calling(tmp_path, main)


async def make_batch_topic(caller: Caller) -> None:
    """Create a topic whose queues are of batches."""
    answer = await caller.call(17, BATCH_TOPIC)
    assert answer.code == 0, answer.remark


INNER = encode_batch([(1, b"a", b"TAGS\x01A\x02"), (0, b"bb", b""), (0, b"", b"KEYS\x01k\x02")])
INNER_FIELDS = send_fields("B", m=True, i=UNIQUE + "WAIT\x01true\x02POP_CK\x01x\x02INNER_NUM\x017")
BATCH_FILES: dict[str, Any] = {"mapper_file_size_batch_consume_queue": 46 * 20}


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_a_batch_to_a_topic_of_batches_is_one_record(tmp_path: Path, binary: bool, flush: str) -> None:
    """As RocketMQ 5.5.0 stores it and answers."""

    async def main(served: Serving, caller: Caller) -> None:
        await make_batch_topic(caller)
        for base in (0, 3):
            answer = await caller.call(320, INNER_FIELDS, INNER)
            place = decode_offset_id(answer.ext.pop("msgId")).physical_offset
            assert (answer.code, answer.ext) == (0, {
                "queueId": "0", "queueOffset": str(base), "transactionId": "U1",
                "batchUniqId": "U1", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
            })  # fmt: skip
            record = served.broker.store.record_at(place)
            assert record is not None
            view = decode_record(record, check_body_crc=True)
            assert (view.body, view.queue_offset, view.flag, view.sys_flag) == (INNER, base, 7, 0xC0)
            assert view.properties == {
                "UNIQ_KEY": "U1", "WAIT": "true", "INNER_NUM": "3", "INNER_BASE": str(base), **ADDED
            }  # fmt: skip
        single = await caller.sent(b"single", topic="B")
        assert single["queueOffset"] == "6"
        assert "batchUniqId" not in single
        await served.dispatched()
        pulled = await caller.pull(4, topic="B")
        assert [view.queue_offset for view in iter_records(pulled.body)] == [3, 6]
        assert (pulled.ext["nextBeginOffset"], pulled.ext["maxOffset"]) == ("7", "7")
        offsets = await caller.call(30, {"topic": "B", "queueId": 0})
        assert offsets.ext == {"offset": "7"}

    store = BATCH_FILES | {"flush_disk_type": flush}
    calling(tmp_path, main, binary=binary, store=store)
    [file] = (tmp_path / "batchconsumequeue/B/0").iterdir()
    assert file.read_bytes()[3 * 46 :] == bytes(17 * 46)
    assert not (tmp_path / "consumequeue/B").exists()


def test_batches_to_a_topic_of_batches_in_one_write(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await make_batch_topic(caller)
        commands = [request(320, INNER_FIELDS, INNER, opaque=n) for n in range(4)]
        caller.talker.ask(*commands)
        answers = [await caller.talker.answer() for _ in commands]
        assert [answer.ext["queueOffset"] for answer in answers] == ["0", "3", "6", "9"]
        assert [answer.ext["batchUniqId"] for answer in answers] == ["U1"] * 4

    calling(tmp_path, main, store=BATCH_FILES)


def test_a_batch_without_unique_key_is_stored_member_by_member(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await make_batch_topic(caller)
        assert (await caller.call(320, INNER_FIELDS, INNER)).code == 0
        answer = await caller.call(320, send_fields("B", m=True, i="WAIT\x01true\x02"), INNER)
        assert answer.ext["queueOffset"] == "3"
        await served.dispatched()
        pulled = await caller.pull(topic="B")
        views = list(iter_records(pulled.body))
        assert [view.queue_offset for view in views] == [0, 3, 4, 5]
        assert [view.sys_flag for view in views] == [0xC0, 0, 0, 0]

    calling(tmp_path, main, store=BATCH_FILES)


@pytest.mark.parametrize(
    ("properties", "body", "remark"),
    [
        (UNIQUE, b"no batch", "8 bytes are too few"),
        (UNIQUE, INNER[:-1], "size at byte"),
        (UNIQUE, encode_batch([(0, b"", b"")]) * 32768, "has 32768 messages, at most 32767 are"),
        (UNIQUE + "DELAY\x013\x02", INNER, "delayed messages"),
        (UNIQUE + "INNER_MULTI_DISPATCH\x01%LMQ%a\x02", INNER, "a batch goes to no LMQ"),
        (UNIQUE + f"x\x01{'x' * 32_700}\x02", INNER, "limit 32767"),
    ],
)
def test_inner_batches_that_are_refused(tmp_path: Path, properties: str, body: bytes, remark: str) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await make_batch_topic(caller)
        await caller.sent(topic="B")
        end = served.broker.store.log.end_offset
        answer = await caller.call(320, send_fields("B", m=True, i=properties), body)
        assert answer.code == 13
        assert remark in str(answer.remark)
        assert served.broker.store.log.end_offset == end

    log_bytes = {"mapped_file_size_commit_log": 1 << 20}
    calling(tmp_path, main, store=BATCH_FILES | log_bytes)


def test_a_topic_of_batches_outlives_restarts_and_its_deletion(tmp_path: Path) -> None:
    async def first(served: Serving, caller: Caller) -> None:
        await make_batch_topic(caller)
        assert (await caller.call(320, INNER_FIELDS, INNER)).code == 0

    async def second(served: Serving, caller: Caller) -> None:
        answer = await caller.call(320, INNER_FIELDS, INNER)
        assert answer.ext["queueOffset"] == "3"
        assert (await caller.call(215, {"topic": "B"})).code == 0
        await caller.sent(topic="B")  # made again, now of the usual kind
        answer = await caller.call(320, INNER_FIELDS, INNER)
        assert (answer.ext["queueOffset"], answer.ext["msgId"].count(",")) == ("1", 2)

    calling(tmp_path, first, store=BATCH_FILES)
    shutil.rmtree(tmp_path / "batchconsumequeue")  # rebuilt from the log, by the attribute
    (tmp_path / "abort").touch()
    calling(tmp_path, second, store=BATCH_FILES)
    assert not (tmp_path / "batchconsumequeue/B").exists()
    assert (tmp_path / "consumequeue/B/0").is_dir()


def test_what_a_loss_of_power_makes_again_of_a_deleted_topic_is_deleted_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its attribute is gone with it, so its records come to usual queues before that."""

    async def first(served: Serving, caller: Caller) -> None:
        await make_batch_topic(caller)
        for _ in range(2):
            assert (await caller.call(320, INNER_FIELDS, INNER)).code == 0
        assert (await caller.call(215, {"topic": "B"})).code == 0
        await caller.sent(topic="T")
        await served.dispatched()
        shutil.copytree(tmp_path / "first", tmp_path / "left")

    async def second(served: Serving, caller: Caller) -> None:
        assert served.broker.topics.get("B") is None
        assert served.broker.store.max_queue_offset("B", 0) == 0
        await make_batch_topic(caller)
        caplog.clear()
        for base in (0, 3, 6):
            answer = await caller.call(320, INNER_FIELDS, INNER)
            assert answer.ext["queueOffset"] == str(base)
        await third(served, caller)
        assert not [record for record in caplog.records if record.levelname == "ERROR"]

    async def third(served: Serving, caller: Caller) -> None:
        await served.dispatched()
        pulled = await caller.pull(topic="B")
        assert [view.queue_offset for view in iter_records(pulled.body)] == [0, 3, 6]
        assert pulled.ext["maxOffset"] == "9"

    calling(tmp_path / "first", first, store=BATCH_FILES)
    for main in (second, third):
        calling(tmp_path / "left", main, store=BATCH_FILES)


def test_a_topic_of_batches_is_deleted_with_what_is_not_dispatched_yet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for _ in range(2):
            await make_batch_topic(caller)
            sends = [request(320, INNER_FIELDS, INNER, opaque=n) for n in range(2)]
            caller.talker.ask(*sends, request(215, {"topic": "B"}, opaque=2))
            answers = [await caller.talker.answer() for _ in range(3)]
            assert [answer.ext.get("queueOffset") for answer in answers] == ["0", "3", None]
            assert answers[2].code == 0

    calling(tmp_path, main, store=BATCH_FILES)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert not (tmp_path / "consumequeue/B").exists()
