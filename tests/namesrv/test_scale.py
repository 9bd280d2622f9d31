"""No request keeps others waiting for long, however many topics a name server has, or is sent."""

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from firearrow.namesrv.config import NamesrvConfig
from firearrow.namesrv.kv import KvConfig
from firearrow.namesrv.processor import Processor
from firearrow.namesrv.routes import RouteTables
from firearrow.net.server import Handler
from firearrow.wire.command import FieldValue
from firearrow.wire.registerbody import REGISTER_BODY_BYTES_MAX, REGISTER_TOPICS_MAX
from tests.namesrv.strategies import ManualClock
from tests.stepping import LARGE_BODIES, LONG, Stepping
from tests.worsttexts import feed, watch, worst_texts

COUNT = 10_000
BROKER: dict[str, FieldValue] = {
    "brokerName": "broker-a", "clusterName": "C", "brokerAddr": "1.1.1.1:10911", "brokerId": 0,
}  # fmt: skip
NAMES = ("topic", "cluster", "clusterName", "brokerName", "brokerAddr", "namespace", "key", "value")


def registration(count: int, version: int) -> dict[str, Any]:
    topics = {f"T{n}": {"topicName": f"T{n}"} for n in range(count)}
    data_version = {"counter": version, "timestamp": 0, "stateVersion": 0}
    table = {"topicConfigTable": topics, "dataVersion": data_version}
    return {"topicConfigSerializeWrapper": table, "filterServerList": []}


def name_server(tmp_path: Path) -> tuple[RouteTables, Mapping[int, Handler]]:
    config = NamesrvConfig(kv_config_path=str(tmp_path / "kv.json"), config_store_path=str(tmp_path / "namesrv"))
    clock = ManualClock()
    routes = RouteTables(clock, lambda: config)
    return routes, Processor(config, clock, routes, KvConfig(tmp_path / "kv.json")).handlers()


def test_no_request_takes_a_long_step(tmp_path: Path) -> None:
    routes, handlers = name_server(tmp_path)
    stepping = Stepping(handlers, object())
    with stepping.watching():
        for version in (1, 2):
            stepping.ask(103, BROKER, registration(COUNT, version))
        assert len(routes.topics()) == COUNT
        for code, fields in (
            (105, {"topic": "T1"}),
            (224, {"cluster": "C"}),
            (205, {"brokerName": "broker-a"}),
            (327, {"brokerName": "broker-a"}),
            *((code, {}) for code in handlers),
        ):
            stepping.ask(code, fields)
        for code in handlers:
            for body in LARGE_BODIES:
                stepping.ask(code, dict.fromkeys(NAMES, LONG), body)
        stepping.ask(104, BROKER)
    assert routes.topics() == []


@pytest.mark.timeout(600)  # thousands of texts take minutes on a slow machine
def test_no_body_takes_a_long_step(tmp_path: Path) -> None:
    _, handlers = name_server(tmp_path)
    feed(Stepping(handlers, object()), handlers, BROKER)


def test_no_registration_takes_a_long_step(tmp_path: Path) -> None:
    """It may be as long as a frame, or be unpacked to twice as much."""
    routes, handlers = name_server(tmp_path)
    stepping = Stepping(handlers, object())
    for name, plain in packed():
        watch(stepping, 103, BROKER | {"compressed": True}, zlib.compress(plain, 1), name)
    count = 75_000  # as many as fit into a frame, with their names alone in a fifth of that
    watch(stepping, 103, BROKER, json.dumps(registration(count, 7)).encode(), "many topics")
    assert routes.topics()[:count] == [f"T{number}" for number in range(count)]


def packed() -> Iterator[tuple[str, bytes]]:
    """Give registrations before they are compressed, with what they are."""
    yield "zeros", bytes(REGISTER_BODY_BYTES_MAX + 1)
    line = b"T%d 4 4 6 SINGLE_TAG {}"
    for text in (line, line.replace(b"}", b"'a':'b'}"), line.replace(b"}", b'"a":"\\q"}')):
        topics = [part(text % number) for number in range(REGISTER_TOPICS_MAX)]
        yield f"many of {text!r}", b"".join((part(b"{}"), len(topics).to_bytes(4), *topics))
    for name, text in worst_texts(REGISTER_BODY_BYTES_MAX // 4):
        yield f"attributes of {name}", part(b"{}") + (1).to_bytes(4) + part(b"T 1 1 6 S " + text)
    for name, text in worst_texts(16_000):
        topics = [part(b"T%d 4 4 6 S %b" % (number, text)) for number in range(100)]
        yield f"attributes, each of {name}", b"".join((part(b"{}"), (100).to_bytes(4), *topics))


def part(data: bytes) -> bytes:
    return len(data).to_bytes(4) + data
