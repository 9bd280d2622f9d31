"""What a controller tells monitoring."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from firearrow.controller.metrics import ROWS
from firearrow.wire.codes import RequestCode as Code
from tests import scrapes
from tests.controller.serving import NAME, Stage, staged

ON: dict[str, Any] = {
    "metrics_exporter_type": "PROM",
    "metrics_prom_exporter_port": 0,
    "bind_address": "127.0.0.1",
    "metrics_label": "dc:1,group:mine",
}


async def ask(stage: Stage, name: str, path: str = "/metrics") -> tuple[int, str]:
    """Ask a controller by HTTP, on the virtual loop."""
    port = stage.group.running[name].operations.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split(b" ")[1]), body.decode()


def test_each_family_is_counted(tmp_path: Path) -> None:
    async def main(stage: Stage) -> None:
        await stage.pair()
        leader = await stage.group.leader()
        refused = await stage.group.ask(leader, Code.CLEAN_BROKER_DATA)
        assert refused.code != 0
        await stage.brokers[2].elect()  # the master lives
        await stage.group.ask_leader(Code.CONTROLLER_ELECT_MASTER, clusterName="C", brokerName=NAME, brokerId=9)
        status, text = await ask(stage, leader)
        assert status == 200
        assert 'group="group"' in text
        assert "mine" not in text  # the name means something else
        families = scrapes.parse(text, scrapes.COMMON_OF_CONTROLLER)
        assert families.keys() == {family.name for family, _ in ROWS} | {"target_info"}
        for family, _ in ROWS:
            own = families[family.name].labels - {"le", "dc"}
            assert own == set(family.labels), family.name
        assert families["role"].value(dc="1") == 3
        assert families["active_broker_num"].value(broker_set=NAME) == 2
        requests, took = families["request_total"], families["request_latency_microseconds"]
        applied = {"request_type": "CONTROLLER_APPLY_BROKER_ID"}
        assert requests.value(**applied, request_handle_status="success") == 2
        assert took.value(**applied, le="+Inf") == 2
        refusals = {"request_type": "CONTROLLER_CLEAN_BROKER_DATA"}
        assert requests.value(**refusals, request_handle_status="success") == 1  # it is an answer
        elections = families["election_total"]
        assert elections.value(broker_set=NAME, election_result="new_master_elected") == 1
        assert elections.value(broker_set=NAME, election_result="keep_current_master") >= 1
        assert families["dledger_op_total"].value(dLedger_operation_status="success") >= 4
        assert families["dledger_disk_usage_bytes"].value() > 100
        followers = [name for name in stage.group.running if name != leader]
        _, text = await ask(stage, followers[0])
        assert scrapes.parse(text, scrapes.COMMON_OF_CONTROLLER)["role"].value() == 2

    staged(tmp_path, 3, main, **ON)


def test_it_says_how_it_is(tmp_path: Path) -> None:
    async def main(stage: Stage) -> None:
        await stage.pair()
        leader = await stage.group.leader()
        assert await ask(stage, leader, "/healthz") == (200, "ok\n")
        assert await ask(stage, leader, "/readyz") == (200, "ok\n")
        told = json.loads((await ask(stage, leader, "/varz"))[1])
        assert (told["leader"], told["leads"], told["brokers"]) == (leader, True, 2)
        assert (told["brokerNames"], told["withoutMaster"], told["notReady"]) == (1, [], [])
        connected = json.loads((await ask(stage, leader, "/connz?limit=1"))[1])
        assert connected["total"] > len(connected["connections"]) == 1
        assert (await ask(stage, leader, "/storez"))[0] == 404
        others = [name for name in stage.group.running if name != leader]
        await stage.group.stop(*others)
        await asyncio.sleep(20)
        status, text = await ask(stage, leader, "/readyz")
        assert status == 503
        assert "no controller is known to lead" in text
        assert others[0] not in text or "messages to" in text

    staged(tmp_path, 3, main, **ON)


def test_without_the_key_there_is_no_port(tmp_path: Path) -> None:
    async def main(stage: Stage) -> None:
        assert stage.group.running["n0"].operations.port == 0

    staged(tmp_path, 1, main)
