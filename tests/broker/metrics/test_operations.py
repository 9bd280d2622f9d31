"""The status pages of a broker by HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.config import BrokerConfig
from firearrow.broker.metrics.families import ROWS, labels_of
from firearrow.clock import SystemClock
from firearrow.errors import CannotListen, ConfigError
from firearrow.net import operations
from tests import scrapes
from tests.broker.replicated import ha_address, replica
from tests.broker.serving import Caller, Serving, calling, serving, until
from tests.scrapes import get

ON: dict[str, Any] = {"metrics_exporter_type": "PROM", "metrics_prom_exporter_port": 0}


def port_of(served: Serving) -> int:
    return served.broker.operations.port


def test_every_message_is_counted_once_by_its_kind(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for size in (10, 3000, 3000, 5_000):
            await caller.sent(bytes(size))
        await caller.sent(i="TAGS\x01A\x02UNIQ_KEY\x01U2\x02__SHARDINGKEY\x01s\x02")
        await caller.sent(i="DELAY\x015\x02UNIQ_KEY\x01U3\x02")
        assert (await caller.pull()).code == 0
        families = scrapes.parse((await get(port_of(served)))[1])
        count = families["rocketmq_messages_in_total"].value
        assert count(topic="T", message_type="normal") == 4
        assert count(topic="T", message_type="fifo") == 1
        assert count(topic="SCHEDULE_TOPIC_XXXX", message_type="delay") == 1
        got = families["rocketmq_messages_out_total"].value
        assert got(topic="T", consumer_group="g") == 5
        sizes = families["rocketmq_message_size"].value
        labels = {"topic": "T", "message_type": "normal"}
        assert [sizes(**labels, le=bound) for bound in ("1024.0", "4096.0", "524288.0", "+Inf")] == [1, 3, 4, 4]
        took = families["rocketmq_rpc_latency_milliseconds"].values
        sends = {dict(key[1]).get("le"): value for key, value in took.items()
                 if ("request_code", "send_message_v2") in key[1]}  # fmt: skip
        assert sends["+Inf"] == 6

    calling(tmp_path, main, **ON)


def test_labels_are_escaped_and_those_of_the_configuration_added(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        _, text = await get(port_of(served))
        assert "rocketmq_broker_permission{room:" not in text
        [line] = [line for line in text.splitlines() if line.startswith("rocketmq_topic_number{")]
        assert line.startswith(
            'rocketmq_topic_number{room="a \\"b\\" \\\\c",aggregation="delta",cluster="C",'
            'node_id="broker-a",node_type="broker",otel_scope_name="broker-meter"} '
        )

    label = 'room:a "b" \\c,topic:taken'
    calling(tmp_path, main, **ON, metrics_label=label, metrics_in_delta=True)


def test_names_that_mean_something_are_no_labels_of_the_configuration() -> None:
    config = BrokerConfig(broker_cluster_name="C", broker_name="b", metrics_label="topic:x,le:y,cluster:z,dc:1")
    assert labels_of(config) == {
        "dc": "1", "cluster": "C", "node_id": "b", "node_type": "broker",
        "otel_scope_name": "broker-meter",
    }  # fmt: skip


def test_each_sample_has_the_labels_of_the_table(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent()
        families = scrapes.parse((await get(port_of(served)))[1])
        table = {row.family.name: row.family for row in ROWS}
        assert families.keys() - table.keys() == {"target_info"}
        for name in families.keys() & table.keys():
            assert families[name].labels - {"le"} == set(table[name].labels), name
            assert families[name].kind == table[name].kind

    calling(tmp_path, main, **ON)


def test_the_table_is_that_of_the_original() -> None:
    golden = {
        name: (family.kind, family.labels - {"le"})
        for name, family in scrapes.golden().items()
        if name not in ("target_info", "rocketmq_pop_buffer_scan_time_consume_milliseconds")
    }
    table = {row.family.name: (row.family.kind, set(row.family.labels)) for row in ROWS}
    assert table == golden


def test_says_whether_and_why_it_is_not_ready(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        port = port_of(served)
        assert await get(port, "/healthz") == (200, "ok\n")
        assert await get(port, "/readyz") == (200, "ok\n")
        log = served.broker.store.log
        log.refuse("the disk is full")
        assert await get(port, "/readyz") == (503, "store: writes are refused: the disk is full\n")
        assert (await get(port, "/healthz"))[0] == 200
        log.refuse(None)
        assert await get(port, "/readyz") == (200, "ok\n")

    calling(tmp_path, main, **ON)


def test_a_slave_is_ready_while_it_follows_its_master_and_has_room(tmp_path: Path) -> None:
    async def main() -> None:
        clock = SystemClock()
        async with (
            asyncio.timeout(30),
            replica(tmp_path / "m", clock) as master,
            replica(tmp_path / "s", clock, role="SLAVE", **ON) as slave,
        ):
            port, broker = port_of(slave), slave.broker
            status, text = await get(port, "/readyz")
            assert (status, text.splitlines()[0]) == (503, "replication: no connection yet")
            broker.replicas.follow(ha_address(master))
            broker.replication.sync.follow(f"127.0.0.1:{master.port}")
            await until(lambda: not broker.troubles)
            assert await get(port, "/readyz") == (200, "ok\n")
            broker.store.log.refuse("the disk is full")
            assert await get(port, "/readyz") == (503, "store: writes are refused: the disk is full\n")

    asyncio.run(main())


def test_a_broker_that_no_name_server_knows_is_not_ready(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        status, text = await get(port_of(served), "/readyz")
        assert status == 503
        assert text == "registration: no name server knows the broker: 127.0.0.1:1\n"

    calling(tmp_path, main, **ON, namesrv_addr="127.0.0.1:1")


def test_tells_of_itself_in_json(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent()
        port = port_of(served)
        various = json.loads((await get(port, "/varz"))[1])
        assert various["brokerName"] == "broker-a"
        assert various["traffic"]["putMessageTimesTotal"] == "1"
        assert various["connections"] == 1
        found = json.loads((await get(port, "/connz"))[1])
        assert [it["address"] for it in found["connections"]] == [caller.talker.address]
        assert json.loads((await get(port, "/connz?offset=1"))[1])["connections"] == []
        assert (await get(port, "/connz?offset=x"))[0] == 400
        store = json.loads((await get(port, "/storez"))[1])
        assert store["logEnd"] == served.broker.store.log_end_offset
        status, text = await get(port, "/others")
        assert (status, "/metrics" in text) == (404, True)

    calling(tmp_path, main, **ON)


def test_without_the_key_nothing_listens_and_nothing_is_counted(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent()
        assert port_of(served) == 0
        assert served.broker.stats.tally is None

    calling(tmp_path, main)


def test_a_broker_that_does_not_start_leaves_nothing_that_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[None] = []
    sender = (lambda *_: None), lambda: closed.append(None)
    monkeypatch.setattr(operations, "otlp_sender", lambda _: sender)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text("{")
    target: dict[str, Any] = {
        "metrics_exporter_type": "OTLP_GRPC", "metrics_grpc_exporter_target": "http://127.0.0.1:1"
    }  # fmt: skip

    async def main() -> None:
        with pytest.raises(ConfigError):
            async with serving(tmp_path, **target):
                pass
        assert len(closed) == 1

    asyncio.run(main())


def test_a_port_in_use_is_why_a_broker_does_not_start(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        port = port_of(served)
        options: dict[str, Any] = {**ON, "metrics_prom_exporter_port": port}
        with pytest.raises(CannotListen) as caught:
            async with serving(tmp_path / "other", **options):
                pass
        assert caught.value.filename == f"127.0.0.1:{port}"

    calling(tmp_path / "one", main, **ON)
