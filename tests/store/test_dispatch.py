"""What is dispatched record by record is what columns make of it, byte for byte."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firearrow.message.hosts import Host, pack_host
from firearrow.store.dispatch import FEW_RECORDS_MAX, dispatched_alone
from firearrow.store.queuefiles import FileConsumeQueues
from tests.store.stores import BORN_MS, append, contents, opened, settle

HOSTS = [pack_host(Host(address, 1)) for address in ("127.0.0.1", "::1")]
NAMES = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "DELAY", "INNER_MULTI_DISPATCH", "INNER_NUM", "x"])
VALUES = st.text("abü \U0001f680#:1,", max_size=8)


class Sent(NamedTuple):
    """A message that is put."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    sys_flag: int
    born_host: bytes


SENT = st.builds(
    Sent,
    st.sampled_from(["T", "U", "SCHEDULE_TOPIC_XXXX", "%LMQ%a", "T" * 140]),
    st.integers(0, 1),
    st.sampled_from([b"", b"x", b"x" * 200]),
    st.lists(st.tuples(NAMES, VALUES), max_size=4).map(
        lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
    ),
    st.sampled_from([0, 0, 0, 0, 2, 1, 8]),
    st.sampled_from([HOSTS[0], HOSTS[0], HOSTS[1]]),
)


def derived(root: Path, sent: list[Sent], at_a_time: int, *, lmq: bool) -> dict[str, bytes]:
    """Put messages and have so many at a time dispatched; give the files of queues and index."""
    with opened(root, enable_lmq=lmq, enable_multi_dispatch=lmq) as store:
        for number, one in enumerate(sent):
            append(
                store, one.body, one.topic, one.queue_id, properties=one.properties,
                sys_flag=one.sys_flag, born_host=one.born_host, now_ms=BORN_MS + 400 * number,
            )  # fmt: skip
            if (number + 1) % at_a_time == 0:
                store.catch_up()
        store.catch_up()
    files = contents(root)
    return {name: files[name] for name in files if name.startswith(("consumequeue/", "index/"))}


@settings(max_examples=60)
@given(st.lists(SENT, min_size=1, max_size=40), st.integers(1, FEW_RECORDS_MAX), st.booleans())
def test_few_at_a_time_give_the_same_files_as_all_at_once(sent: list[Sent], at_a_time: int, lmq: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        few, all_at_once = Path(directory, "few"), Path(directory, "all")
        found = derived(few, sent, at_a_time, lmq=lmq)
        assert found
        assert found == derived(all_at_once, sent, len(sent) + 1, lmq=lmq)


LMQ = {"INNER_MULTI_DISPATCH": "%LMQ%a"}


@pytest.mark.parametrize(
    ("message", "is_usual"),
    [
        ({}, True),
        ({"properties": {"UNIQ_KEY": "U", "KEYS": "a b", "TAGS": "t"}}, True),
        ({"sys_flag": 2}, True),
        ({"sys_flag": 1}, False),
        ({"sys_flag": 8}, False),
        ({"born_host": HOSTS[1]}, False),
        ({"queue_id": 1}, False),  # it has no file yet
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, False),
        ({"properties": LMQ}, False),
    ],
)
def test_what_is_dispatched_by_itself(tmp_path: Path, message: dict[str, Any], is_usual: bool) -> None:
    topic = message.get("topic", "T")
    with opened(tmp_path) as store:
        append(store, b"x", topic)
        store.catch_up()
        at = append(store, b"y", **message)
        assert isinstance(store.queues, FileConsumeQueues)
        segment = store.log.segments.files[0]
        place = segment.map, at, store.log.end_offset
        found = dispatched_alone(*place, store.queues, None, lmq=True)
        assert (found is not None) is is_usual
        assert store.queue(topic, 0).max_offset == 1 + is_usual
        if found is not None:
            assert (found[0], found[1].physical_offset) == ("T", at)
            assert dispatched_alone(*place, store.queues, None, lmq=True) is None, "it is there already"


def test_a_record_across_the_limit_waits_until_the_limit_is_behind_it(tmp_path: Path) -> None:
    """Other brokers confirm any byte of the log, also one within a record."""
    with opened(tmp_path, background=False) as store:
        append(store, b"x")
        at = append(store, b"y" * 100, properties={"KEYS": "k" * 50})
        for limit in range(at, store.log_end_offset):
            store.dispatching.limit_to(limit)
            settle(store)
            assert store.queue("T", 0).max_offset == 1, limit
            assert not store.dispatching.trouble
        store.dispatching.limit_to(store.log_end_offset)
        settle(store)
        assert store.queue("T", 0).max_offset == 2
