"""The name server as a process: what it does unasked, and how it begins and ends."""

import asyncio
import logging
from pathlib import Path

import pytest

from firearrow.clock import SystemClock
from firearrow.errors import ConfigError
from firearrow.namesrv.app import NameServer
from firearrow.namesrv.config import NamesrvConfig
from firearrow.net.client import Client
from firearrow.net.server import Server
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.command import request
from firearrow.wire.frame import AnyCommand
from firearrow.wire.registerbody import body_crc32
from tests.namesrv.serving import Asker, asking
from tests.namesrv.strategies import TWO, ManualClock, body, header
from tests.net.talker import talking


async def topics_of(asker: Asker) -> bytes:
    return (await asker.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body


def test_a_broker_is_forgotten_with_its_connection(tmp_path: Path) -> None:
    async def main(asker: Asker) -> None:
        other = Asker(asker.server, asker.port)
        await other.register(header(), body(*TWO))
        assert await topics_of(asker) == b'{"topicList":["T1","T2"]}'
        await other.client.close()
        while await topics_of(asker) != b'{"topicList":[]}':
            pass

    asking(tmp_path, main)


def test_a_silent_broker_is_forgotten_and_its_connection_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()

    async def main(asker: Asker) -> None:
        async with talking(asker.port) as talker:
            data = body(*TWO).encode()
            fields: dict[str, str | int | bool] = {
                "brokerName": "b", "brokerAddr": "1.1.1.1:1", "clusterName": "C", "brokerId": 0,
                "bodyCrc32": body_crc32(data),
            }  # fmt: skip
            talker.ask(request(Code.REGISTER_BROKER, fields, data))
            await talker.answer()
            clock.seconds += 121
            assert await talker.end() == b""
        assert await topics_of(asker) == b'{"topicList":[]}'

    asking(tmp_path, main, clock=clock, scan_not_active_broker_interval=1)
    assert "has not registered in time" in caplog.text


def test_brokers_are_told_of_a_new_smallest_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heard: asyncio.Queue[AnyCommand] = asyncio.Queue()

    async def main(asker: Asker) -> None:
        broker = Server(
            {Code.NOTIFY_MIN_BROKER_ID_CHANGE: lambda peer, command: heard.put_nowait(command)}, SystemClock()
        )
        slave = f"127.0.0.1:{await broker.start('127.0.0.1', 0)}"
        await asker.register(header(slave, 1, acting=True), body())
        await asker.register(header("127.0.0.1:1", 2), body())
        await asker.register(header("1.1.1.1:10911", 0), body(*TWO))
        notice = await heard.get()
        assert notice.is_oneway
        assert notice.ext == {
            "minBrokerId": "0",
            "brokerName": "broker-a",
            "minBrokerAddr": "1.1.1.1:10911",
            "haBrokerAddr": "ha-of-1.1.1.1:10911",
        }
        await broker.stop()

    asking(tmp_path, main, notify_min_broker_id_changed=True)


def test_what_was_configured_is_there_after_a_restart(tmp_path: Path) -> None:
    async def put(asker: Asker) -> None:
        await asker.ask(Code.PUT_KV_CONFIG, namespace="n", key="k", value="v")

    async def get(asker: Asker) -> None:
        answer = await asker.ask(Code.GET_KV_CONFIG, namespace="n", key="k")
        assert answer.ext == {"value": "v"}

    asking(tmp_path, put)
    asking(tmp_path, get)


def test_it_does_not_start_with_a_file_that_it_can_not_read(tmp_path: Path) -> None:
    (tmp_path / "kv.json").write_text("{")
    server = NameServer(NamesrvConfig(kv_config_path=str(tmp_path / "kv.json")), SystemClock())
    with pytest.raises(ConfigError, match=r"kv\.json"):
        asyncio.run(server.start("127.0.0.1", 0))


def test_a_taken_port_is_an_error(tmp_path: Path) -> None:
    async def main(asker: Asker) -> None:
        second = NameServer(NamesrvConfig(kv_config_path=str(tmp_path / "x.json")), SystemClock())
        with pytest.raises(OSError, match=str(asker.port)):
            await second.start("127.0.0.1", asker.port)
        await second.stop()

    asking(tmp_path, main)


def test_a_stopped_server_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    left: list[str] = []

    async def main(asker: Asker) -> None:
        await topics_of(asker)
        left.append(asker.address)

    asking(tmp_path, main)

    async def again() -> None:
        with pytest.raises(ConnectionError):
            await Client().call(left[0], Code.GET_BROKER_CLUSTER_INFO)

    asyncio.run(again())
    assert not caplog.records
