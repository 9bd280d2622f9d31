"""`firearrow mqadmin` prints what upstream's mqadmin prints, on the original broker and on ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.interop.driver import Driver
from tests.interop.javaclient import ARRIVAL_TIMEOUT_S, JavaClient, Outgoing
from tests.interop.servers import Kind, Server, serve
from tests.interop.waiting import wait_until
from tests.mqadminscript import (
    CREATE,
    LOOK,
    SEND,
    SETTINGS,
    STAGES_OF_ORIGINAL,
    USERS,
    WAITED_FOR,
    Place,
    golden,
    masked,
    ours,
    printed,
    run_ours,
    write_golden,
    writes_golden,
)

COUNTED_TIMEOUT_S: Final = 30  # brokers note what they counted every ten seconds
HEARTBEAT_TIMEOUT_S: Final = 60  # a second after its start, or 30 s later if it knew no broker then
WITH_CONSUMER: Final = """
consumerProgress -g GROUP
consumerProgress -g GROUP -s true
consumerProgress -g GROUP -t TOPIC
consumerConnection -g GROUP
consumerConnection -g GROUP -b BROKER
producerConnection -g interop_producer -t TOPIC
queryCq -t TOPIC -q 0 -i 0 -g GROUP
queryMsgById -t TOPIC -i OFFSETID
queryMsgById -t TOPIC -i UNIQUEKEY -f UTF-8
queryMsgByUniqueKey -t TOPIC -i UNIQUEKEY
queryMsgByUniqueKey -t TOPIC -i UNIQUEKEY -a
queryMsgByOffset -t TOPIC -b broker-a -i 0 -o 0
queryMsgByKey -t TOPIC -k k0
topicList -c
getBrokerConfig -b BROKER
getBrokerConfig -c DefaultCluster
getNamesrvConfig
statsAll -t TOPIC
brokerConsumeStats -b BROKER
consumerStatus -g GROUP -i CLIENT
queryMsgById -t TOPIC -i OFFSETID -g GROUP -d CLIENT
queryMsgByUniqueKey -t TOPIC -i UNIQUEKEY -g GROUP -d CLIENT
queryMsgByUniqueKey -t TOPIC -i UNIQUEKEY -g GROUP -d nobody
topicList
producer -b BROKER
brokerStatus -b BROKER
brokerStatus -c DefaultCluster
"""


@contextmanager
def _client(driver: Driver, kind: Kind, tmp_path: Path) -> Iterator[JavaClient]:
    with serve(kind, tmp_path / "store", tmp_path / "logs", settings=SETTINGS) as server:
        client = JavaClient(driver, server)
        yield client
        client.close()


@pytest.fixture
def original(driver: Driver, tmp_path: Path) -> Iterator[JavaClient]:
    """The official client on an original broker of its own."""
    with _client(driver, "real", tmp_path) as client:
        yield client


@pytest.fixture
def own(driver: Driver, tmp_path: Path) -> Iterator[JavaClient]:
    """The official client on a Firearrow of its own."""
    with _client(driver, "firearrow", tmp_path) as client:
        yield client


def _place(server: Server, directory: Path) -> Place:
    directory.mkdir()
    return Place(server.namesrv, server.broker, directory)


def _known(java: JavaClient) -> Callable[[], None]:
    def wait() -> None:
        wait_until(lambda: set(WAITED_FOR) <= set(java.topics()), ARRIVAL_TIMEOUT_S, "routes of topics")

    return wait


def _compare(found: Mapping[str, str]) -> None:
    for name, text in found.items():
        assert text == golden(name), name


def test_upstream_on_the_original(original: JavaClient, tmp_path: Path) -> None:
    place = _place(original.server, tmp_path / "files")
    found = printed(place, STAGES_OF_ORIGINAL, original.mqadmin_all, _known(original))
    if writes_golden():
        write_golden(found)
    _compare(found)


def test_ours_on_the_original(original: JavaClient, tmp_path: Path) -> None:
    place = _place(original.server, tmp_path / "files")
    found = printed(place, STAGES_OF_ORIGINAL, ours, _known(original))
    _compare(found)


def test_upstream_on_firearrow(own: JavaClient, tmp_path: Path) -> None:
    """Up to the changes, which have tests of their own, as each stage costs seconds; and users."""
    place = _place(own.server, tmp_path / "files")
    stages = CREATE, *SEND, f"{LOOK}\n{USERS[0]}", *USERS[1:]
    found = printed(place, stages, own.mqadmin_all, _known(own))
    for name, text in found.items():
        assert golden(name).startswith(text), name


def test_both_about_clients(java: JavaClient, topic: str, group: str, tmp_path: Path) -> None:
    """With a consumer that is there, on one broker in one state.

    Each queue has a message: a consumer learns the offset of an empty queue only from a pull that waited in vain.
    """
    sent = [Outgoing(body=b"%d" % i, queue=i, tags="A", keys=f"k{i}") for i in range(4)]
    reports = java.producer().send(topic, sent)
    consumer = java.push_consumer(group, topic)
    consumer.wait_for(4)
    java.wait_until_consumed(group, topic, 4)
    place = _place(java.server, tmp_path / "files")
    counts = ["statsAll", "-n", place.namesrv, "-t", topic]
    wait_until(lambda: run_ours(counts)[0].split()[-1:] == ["4"], COUNTED_TIMEOUT_S, "counts")
    producers = ["producer", "-n", place.namesrv, "-b", java.server.broker]
    wait_until(lambda: "(interop_producer)" in run_ours(producers)[0], HEARTBEAT_TIMEOUT_S, "the producer's heartbeat")
    connection = run_ours(["consumerConnection", "-n", place.namesrv, "-g", group])[0]
    values = {
        "CLIENT": connection.splitlines()[1].split()[0],
        "TOPIC": topic,
        "GROUP": group,
        "BROKER": java.server.broker,
        "OFFSETID": reports[0].offset_msg_id,
        "UNIQUEKEY": reports[0].msg_id,
    }
    commands = [
        [name, "-n", place.namesrv, *(values.get(word, word) for word in rest)]
        for name, *rest in map(str.split, WITH_CONSUMER.strip().splitlines())
    ]
    theirs = java.mqadmin_all(commands)
    for words, text in zip(commands, theirs, strict=True):
        own_text, error, _ = run_ours(words)
        assert text, f"upstream's {words} printed nothing"
        assert _steady(own_text, place) == _steady(text, place), f"{words}: {error}"
    consumer.stop()


def _steady(text: str, place: Place) -> str:
    """Leave out what changes while nobody sends: rates, times, and mqadmin itself.

    An mqadmin that takes a second is a producer, too; its name is the time of its start.
    """
    if "(CLIENT_INNER_PRODUCER)" in text:
        lines = masked(text, place).splitlines(keepends=True)
        return "".join(line for line in lines if not re.search(r"@(MS|admin-[\d-]+)(@STREAM)?,", line))
    if "brokerActive" in text:  # what a broker counts
        text = re.sub(r"(?m)(?<=: ).*$", lambda said: re.sub(r"[\d.]+", "N", said[0]), text)
    steady = re.sub(r"\d+\.\d\d\b", lambda rate: "RATE".rjust(len(rate[0])), masked(text, place))
    return re.sub(r"\b\d{17}\b|(?<=spentTimeMills=)\d+", "N", steady)
