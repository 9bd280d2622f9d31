"""LMQs: one message in several queues, in the way of the original broker."""

from pathlib import Path
from typing import Any

import pytest

from firearrow.clock import SystemClock
from firearrow.errors import MessageError
from firearrow.store import MessageStore, lmq_names
from firearrow.store.offline import Layout, rebuild, verify
from tests import golden
from tests.store.stores import BORN_HOST, BORN_MS, abandon, append, bodies, make_store, opened, settle

pytestmark = pytest.mark.usefixtures("kind")

LMQ: dict[str, Any] = {"enable_lmq": True, "enable_multi_dispatch": True}
PLACES = {"%LMQ%a": 30, "%LMQ%b": 30, "%LMQ%c@3": 8, "%LMQ%c@7": 7}
"""The LMQs of the golden stores and how many messages each has."""


def send(store: MessageStore, body: bytes, names: str, topic: str = "T", queue_id: int = 0) -> None:
    """Append a message to a queue and to LMQs."""
    assert store.lmq is not None
    together = store.lmq.join(store.queue(topic, queue_id), lmq_names(names))
    assert together is not None
    text = (f"INNER_MULTI_DISPATCH\x01{names}\x02INNER_MULTI_QUEUE_OFFSET\x01{together.lmq_offsets}\x02").encode()
    store.log.append(together, body, text, 0, 0, BORN_MS, BORN_HOST, BORN_MS, 0)


def fill(store: MessageStore) -> None:
    """Five messages, of which four go to LMQs too."""
    send(store, b"1", "%LMQ%a")
    send(store, b"2", "%LMQ%a,%LMQ%b", queue_id=1)
    append(store, b"3")
    send(store, b"4", "%LMQ%b")
    send(store, b"5", "%LMQ%b,%LMQ%a", topic="U")
    settle(store)


def assert_filled(store: MessageStore) -> None:
    assert bodies(store, "%LMQ%a") == [b"1", b"2", b"5"]
    assert bodies(store, "%LMQ%b") == [b"2", b"4", b"5"]
    assert bodies(store) == [b"1", b"3", b"4"]
    assert (bodies(store, "T", 1), bodies(store, "U")) == ([b"2"], [b"5"])


def test_a_message_is_in_each_queue_that_it_names(tmp_path: Path) -> None:
    arrived: list[tuple[str, int, int, int]] = []
    with opened(tmp_path, **LMQ) as store:
        store.messages_arrived.listen(arrived.extend)
        fill(store)
        assert_filled(store)
        view = store.get("%LMQ%a", 0, 2, 1)
        assert b"INNER_MULTI_QUEUE_OFFSET\x012,2\x02" in view.records
        assert {one for one in arrived if one[0] == "%LMQ%a"} == {("%LMQ%a", 0, 0, 3)}
    with opened(tmp_path, **LMQ) as store:
        send(store, b"6", "%LMQ%a")
        settle(store)
        assert bodies(store, "%LMQ%a") == [b"1", b"2", b"5", b"6"]


def test_a_message_may_be_sent_to_a_lmq_itself(tmp_path: Path) -> None:
    with opened(tmp_path, **LMQ) as store:
        send(store, b"1", "%LMQ%a")
        append(store, b"2", "%LMQ%a")
        send(store, b"3", "%LMQ%a")
        settle(store)
        assert bodies(store, "%LMQ%a") == [b"1", b"2", b"3"]


def test_without_the_setting_nothing_is_dispatched(tmp_path: Path) -> None:
    with opened(tmp_path, **LMQ) as store:
        fill(store)
        text = b"INNER_MULTI_DISPATCH\x01%LMQ%z\x02INNER_MULTI_QUEUE_OFFSET\x010\x02"
    with opened(tmp_path, enable_multi_dispatch=True) as store:
        assert store.lmq is None
        append(store, b"more", properties=text)
        settle(store)
        assert store.queues.find("%LMQ%z", 0) is None


@pytest.mark.parametrize(
    "text",
    [
        b"INNER_MULTI_DISPATCH\x01%LMQ%z\x02",
        b"INNER_MULTI_QUEUE_OFFSET\x010\x02",
        b"INNER_MULTI_DISPATCH\x01%LMQ%z,%LMQ%y\x02INNER_MULTI_QUEUE_OFFSET\x010\x02",
        b"INNER_MULTI_DISPATCH\x01%LMQ%z\x02INNER_MULTI_QUEUE_OFFSET\x01-1\x02",
        b"INNER_MULTI_DISPATCH\x01%LMQ%../z\x02INNER_MULTI_QUEUE_OFFSET\x010\x02",
        b"INNER_MULTI_DISPATCH\x01z\x02INNER_MULTI_QUEUE_OFFSET\x010\x02",
    ],
)
def test_properties_that_lead_nowhere(tmp_path: Path, text: bytes) -> None:
    with opened(tmp_path, **LMQ) as store:
        append(store, b"odd", properties=text)
        send(store, b"sound", "%LMQ%a")
        settle(store)
        assert bodies(store) == [b"odd", b"sound"]
        assert {queue.topic for queue in store.queues.ranges()} == {"T", "%LMQ%a"}


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX"])
def test_a_retried_message_is_not_dispatched_again(tmp_path: Path, topic: str) -> None:
    with opened(tmp_path, **LMQ) as store:
        send(store, b"1", "%LMQ%a")
        text = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x010\x02"
        append(store, b"again", topic, properties=text)
        settle(store)
        assert bodies(store, "%LMQ%a") == [b"1"]
        assert bodies(store, topic) == [b"again"]


def test_a_killed_store_finds_its_lmqs(tmp_path: Path) -> None:
    store = make_store(tmp_path, **LMQ)
    store.open()
    fill(store)
    send(store, b"6", "%LMQ%a,%LMQ%new")  # not dispatched
    abandon(store)
    with opened(tmp_path, **LMQ) as store:
        assert bodies(store, "%LMQ%new") == [b"6"]
        assert bodies(store, "%LMQ%a") == [b"1", b"2", b"5", b"6"]


def test_what_cannot_be_appended_takes_no_place(tmp_path: Path) -> None:
    with opened(tmp_path, **LMQ) as store:
        assert store.lmq is not None
        together = store.lmq.join(store.queue("T", 0), ["%LMQ%a"])
        assert together is not None
        with pytest.raises(MessageError):
            store.log.append(together, bytes(1 << 20), b"", 0, 0, 1, BORN_HOST, BORN_MS, 0)
        fill(store)
        assert_filled(store)


def test_unused_topics_are_deleted_but_lmqs_stay(tmp_path: Path) -> None:
    with opened(tmp_path, **LMQ) as store:
        fill(store)
        assert list(store.delete_unused_topics(["T"])) == ["U"]
        assert bodies(store, "%LMQ%b") == [b"2", b"4", b"5"]


def test_there_are_no_more_lmqs_than_allowed(tmp_path: Path) -> None:
    quota = {**LMQ, "enable_lmq_quota": True, "max_lmq_consume_queue_num": 2}
    with opened(tmp_path, **quota) as store:
        fill(store)
        lmq, queue = store.lmq, store.queue("T", 0)
        assert lmq is not None
        assert lmq.join(queue, ["%LMQ%c"]) is None
        assert lmq.join(queue, ["%LMQ%a", "%LMQ%c"]) is None
        assert lmq.join(queue, ["%LMQ%a", "%LMQ%b"]) is not None
        store.delete_topic("%LMQ%b")
        assert lmq.join(queue, ["%LMQ%c"]) is not None


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("a", "'a' must be %LMQ% and a name"),
        ("%LMQ%", "must be"),
        ("%LMQ%a,", "must be"),
        ("%LMQ%a/b", "illegal characters"),
        ("%LMQ%a\n", "illegal characters"),
        ("%LMQ%" + "x" * 251, "256 bytes long, the limit is 255"),
        ("%LMQ%a,%LMQ%b,%LMQ%a", "named twice"),
    ],
)
def test_names_that_are_refused(value: str, part: str) -> None:
    with pytest.raises(MessageError, match=part):
        lmq_names(value)


def test_names_that_are_taken() -> None:
    assert lmq_names("%LMQ%a,%LMQ%p2p%G@@@dev,%LMQ%$x$y") == ["%LMQ%a", "%LMQ%p2p%G@@@dev", "%LMQ%$x$y"]


# --- stores of the original ---


def golden_name(kind: str) -> str:
    return "light-file" if kind == "default" else "light-rocksdb"


def test_a_store_of_the_original_goes_on(tmp_path: Path, kind: str) -> None:
    root = golden.extract(golden_name(kind), tmp_path)
    with opened(root, mapped_file_size_commit_log=1 << 20, **LMQ) as store:
        for name, count in PLACES.items():
            assert store.max_queue_offset(name, 0) == count
            end = store.queue(name, 0).next_offset
            send(store, b"more", name)
            settle(store)
            assert (end, bodies(store, name)[-1]) == (count, b"more")


def test_its_lmqs_are_rebuilt_as_they_were(tmp_path: Path) -> None:
    root = golden.extract("light-file", tmp_path)
    assert verify(Layout(root)).findings == []
    rebuild(Layout(root), SystemClock(), to=tmp_path / "made")
    lmq = {
        path.relative_to(root / "consumequeue"): path.read_bytes()
        for path in (root / "consumequeue").rglob("0*")
        if path.is_file()
    }
    assert len(lmq) == 10
    made = tmp_path / "made/consumequeue"
    assert {name: (made / name).read_bytes() for name in lmq} == lmq


def test_verify_misses_a_lmq(tmp_path: Path) -> None:
    root = golden.extract("light-file", tmp_path)
    for path in (root / "consumequeue/%LMQ%a/0").iterdir():
        path.unlink()
    found = {(one.invariant, one.topic, one.times) for one in verify(Layout(root)).findings}
    assert ("queue-entry-missing", "%LMQ%a", 30) in found


def test_lmqs_are_deleted_together(tmp_path: Path) -> None:
    names = [f"%LMQ%{number}" for number in range(6)]
    left = [names[0], *names[4:]]
    with opened(tmp_path, **LMQ) as store:
        for name in names:
            send(store, b"1", name)
        settle(store)
        assert sorted(filter(None, store.topics_from("%LMQ%"))) == names
        gone: list[str] = []
        store.queues_deleted.listen(lambda event: gone.append(event.topic))
        store.delete_lmqs(names[1:4])
        store.delete_lmqs([])
        assert gone == names[1:4]
        assert sorted(filter(None, store.topics_from("%LMQ%"))) == left
    with opened(tmp_path, **LMQ) as store:
        assert sorted(filter(None, store.topics_from(""))) == [*left, "T"]
        assert set(store.topics_from("%LMQ%none")) == {None}


def test_ranges_may_leave_lmqs_out(tmp_path: Path) -> None:
    with opened(tmp_path, **LMQ) as store:
        fill(store)
        every = {(one.topic, one.queue_id) for one in store.queues.ranges()}
    with opened(tmp_path, **LMQ) as store:
        others = {(one.topic, one.queue_id) for one in store.queues.ranges(lmqs=False)}
        assert others == {one for one in every if not one[0].startswith("%LMQ%")}
        assert len(every) > len(others) > 0
        for topic, queue_id in every:
            store.queue(topic, queue_id)
        used = {(one.topic, one.queue_id) for one in store.queues.ranges(lmqs=False)}
        assert used == others
