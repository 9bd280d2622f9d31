"""Warnings of a start about messages that only RocketMQ's broker delivers."""

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.administration import takeover
from firearrow.broker.administration.takeover import waiting
from firearrow.broker.config import BrokerConfig
from firearrow.broker.core import Broker
from firearrow.clock import SystemClock
from firearrow.message.names import REVIVE_GROUP, revive_topic
from firearrow.store import MessageStore
from firearrow.wire.bodies import TopicConfig
from tests.broker.fakes import FakeBroker
from tests.broker.serving import Caller, Serving, calling
from tests.golden import extract, golden_names
from tests.loglines import told
from tests.store.stores import GOLDEN_SIZES, KINDS, append, opened, settle, small_config

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
REVIVE = revive_topic("C")
TOOK = "messages that POP consumers took and did not acknowledge"


@pytest.fixture(params=KINDS)
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MessageStore]:
    kind: dict[str, Any] = {"store_type": request.param, "timer_wheel_enable": False}
    with opened(tmp_path, background=False, **kind) as store:
        yield store


@pytest.fixture
def state() -> FakeBroker:
    """Topics and offsets."""
    return FakeBroker()


def found(store: MessageStore, state: FakeBroker) -> dict[str, str]:
    settle(store)
    counted = waiting(store, state.topics, state.offsets)
    return {kind: f"{sense}{count}" for kind, count, sense in counted}


def pop_record(tag: str, **fields: Any) -> dict[str, Any]:
    record = {"t": "T", "c": "g", "q": 0, "so": 10, "pt": 1, "it": 1000} | fields
    return {"body": json.dumps(record).encode(), "properties": {"TAGS": tag}}


def test_nothing_waits_in_a_store_of_plain_messages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(_: Serving, caller: Caller) -> None:
        await caller.sent()

    for _ in range(2):
        calling(tmp_path, main)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_halves_that_are_not_checked_count(store: MessageStore, state: FakeBroker) -> None:
    append(store, b"half", HALF)
    assert found(store, state) == {}
    append(store, b"half", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC")
    assert found(store, state) == {"halves of transactions (transRocksDBEnable)": "up to 1"}


def test_what_pop_consumers_took_counts_until_it_is_acknowledged(store: MessageStore, state: FakeBroker) -> None:
    wheel(store)
    append(store, topic=REVIVE, **pop_record("ack", ao=99))  # it was redelivered
    state.offsets.commit(REVIVE_GROUP, REVIVE, 0, 0)
    append(store, topic=REVIVE, **pop_record("ck", n=4, d=[0, 1, 3, 7], bm=0b10))
    append(store, topic=REVIVE, **pop_record("ack", ao=13))
    assert found(store, state) == {TOOK: "2"}
    append(store, topic=REVIVE, queue_id=7, **pop_record("ck", n=3, q=1))
    append(store, topic=REVIVE, queue_id=7, **pop_record("bAck", aol=[10, 12], q=1, ao=-1))
    assert found(store, state) == {TOOK: "3"}
    append(store, b"no JSON", REVIVE, properties={"TAGS": "ck"})
    append(store, topic=REVIVE, **pop_record("ck", n=1 << 40, pt=2))
    append(store, topic=REVIVE, **pop_record("ack", ao=1 << 70, pt=2))
    append(store, topic=REVIVE, **pop_record("ck", n=2, pt=3, startOffset=10, so=None))
    assert found(store, state) == {TOOK: "5"}


def test_what_pop_consumers_are_to_get_again_counts(store: MessageStore, state: FakeBroker) -> None:
    """Messages in %RETRY%g do not count: g reads them."""
    for topic in ("%RETRY%g_T", "%RETRY%g+T", "%RETRY%g", "%RETRY%g_T"):
        state.topics.put(TopicConfig(topic, 1, 1))
        append(store, b"again", topic)
        state.offsets.commit("g", topic, 0, 0)
    kind = "messages that POP consumers must get again"
    assert found(store, state) == {kind: "3"}
    state.offsets.commit("g", "%RETRY%g_T", 0, 2)
    state.offsets.commit("g", "%RETRY%g_T", 1 << 40, 2)
    assert found(store, state) == {kind: "1"}


def wheel(store: MessageStore) -> None:
    """An empty wheel."""
    (store.root / "config").mkdir(exist_ok=True)
    (store.root / "config" / "timercheck").write_bytes(bytes(4096))
    (store.root / "timerwheel").write_bytes(bytes(32 * 10))


def test_timers_that_no_wheel_has_count_by_their_queue(store: MessageStore, state: FakeBroker) -> None:
    for real_topic in ("T", REVIVE, "T"):
        properties = {"REAL_TOPIC": real_topic, "TAGS": "ck"}
        body = pop_record("ck", n=1)["body"]
        append(store, body, "rmq_sys_wheel_timer", properties=properties)
    kind = "messages with a delivery time"
    assert found(store, state) == {kind: "up to 2", TOOK: "about 1"}
    wheel(store)
    assert found(store, state) == {kind: "2", TOOK: "1"}


def test_beyond_a_limit_records_are_not_read(
    store: MessageStore, state: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "RECORDS_MAX", 2)
    wheel(store)
    for number in range(3):
        append(store, topic=REVIVE, **pop_record("ck", n=1, pt=number))
    assert found(store, state)[TOOK] == "about 2"


@pytest.mark.parametrize("name", golden_names)
def test_what_is_delivered_needs_no_word(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In all golden stores."""
    root = extract(name, tmp_path)
    kind = "defaultRocksDB" if name.startswith("rocksdb") else "default"
    assert started(root, caplog, store_type=kind) == []


def test_every_kind_is_counted_in_a_store_of_rocketmq(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The README beside the golden stores lists their contents."""
    lines = started(extract("waiting", tmp_path), caplog, timer_wheel_enable=False)
    assert [(line["kind"], line["count"]) for line in lines] == [
        ("messages with a delivery time", 4),
        (TOOK, 4),
        ("messages that POP consumers must get again", 2),
    ]
    assert {line["sense"] for line in lines} == {"exactly"}


def test_what_a_push_consumer_is_to_get_again_is_pulled(tmp_path: Path) -> None:
    """So its messages need no warning."""
    with opened(tmp_path) as store:
        append(store, b"again", "%RETRY%g")
    (tmp_path / "config").mkdir()
    topic = {"topicName": "%RETRY%g", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    topics = {"dataVersion": {}, "topicConfigTable": {"%RETRY%g": topic}}
    (tmp_path / "config" / "topics.json").write_text(json.dumps(topics))

    async def main(_: Serving, caller: Caller) -> None:
        (view,) = await caller.stored("%RETRY%g")
        assert view.body == b"again"

    calling(tmp_path, main)


def started(root: Path, caplog: pytest.LogCaptureFixture, **changed: Any) -> list[dict[str, object]]:
    """Return the warnings of a broker's start."""
    config = BrokerConfig(broker_name="broker-a", broker_cluster_name="Other")
    broker = Broker(config, small_config(root, **GOLDEN_SIZES | changed), SystemClock())

    async def main() -> None:
        await broker.start("127.0.0.1", 0)
        await broker.stop()

    asyncio.run(main())
    lines = zip(caplog.records, told(caplog), strict=True)
    return [line for record, line in lines if record.name == "firearrow.broker.administration.takeover"]
