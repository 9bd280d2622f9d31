"""No request keeps others waiting for long, however many topics a name server has, or is sent."""

from pathlib import Path
from typing import Any

from firearrow.namesrv.config import NamesrvConfig
from firearrow.namesrv.kv import KvConfig
from firearrow.namesrv.processor import Processor
from firearrow.namesrv.routes import Routes
from firearrow.wire.command import FieldValue
from tests.namesrv.strategies import ManualClock
from tests.stepping import LARGE_BODIES, LONG, Stepping

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


def test_no_request_takes_a_long_step(tmp_path: Path) -> None:
    config = NamesrvConfig(
        kv_config_path=str(tmp_path / "kv.json"), config_store_path=str(tmp_path / "namesrv")
    )
    clock = ManualClock()
    routes = Routes(clock, lambda: config)
    handlers = Processor(config, clock, routes, KvConfig(tmp_path / "kv.json")).handlers()
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
