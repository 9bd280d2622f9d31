"""A broker registers with every name server, also after failures of it."""

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from firearrow.broker.registering import registration as module
from firearrow.broker.registering.registration import BrokerIdentity, Registration, addresses_of
from firearrow.clock import SystemClock
from firearrow.errors import BrokerError
from firearrow.net.server import Answer, Peer, Server
from firearrow.wire import headers
from firearrow.wire.bodies import DataVersion, TopicConfig
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.registerbody import RegisterBody, body_crc32
from tests.loglines import told

IDENTITY = BrokerIdentity("C", "broker-a", 0, "1.1.1.1:10911", "1.1.1.1:10912")


class NameServerStub:
    """Records registrations; refuses them while ``refusing``."""

    def __init__(self) -> None:
        self.refusing = False
        self.silent = False
        self.bodies: asyncio.Queue[tuple[headers.RegisterBroker, RegisterBody]] = asyncio.Queue()
        self.left: list[headers.UnregisterBroker] = []
        self.peers: list[Peer] = []
        self.server = Server(
            {RequestCode.REGISTER_BROKER: self.register, RequestCode.UNREGISTER_BROKER: self.unregister}, SystemClock()
        )

    def register(self, peer: Peer, request: AnyCommand) -> Answer:
        self.peers.append(peer)
        header = fields_of(request, headers.RegisterBroker)
        assert header.body_crc32 == body_crc32(request.body)
        self.bodies.put_nowait((header, RegisterBody.decode(request.body, header.compressed)))
        if self.refusing:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "register broker failed")
        return None if self.silent else Response()

    def unregister(self, peer: Peer, request: AnyCommand) -> Answer:
        self.left.append(fields_of(request, headers.UnregisterBroker))
        return None if self.silent else Response()

    async def topics(self) -> list[str]:
        """Return the topics of the next registration."""
        _, body = await self.bodies.get()
        return list(body.topic_config_serialize_wrapper.topic_config_table)


class Broker:
    """The state of a broker that is registered."""

    def __init__(self) -> None:
        self.topics = {name: TopicConfig(name, 4, 4, 6) for name in ("T1", "T2")}
        self.version = DataVersion(0, 5, 1)

    def change(self, name: str) -> None:
        self.topics[name] = TopicConfig(name, 8, 8, 6)
        self.version = self.version.next_version(6)


@asynccontextmanager
async def registered(stub: NameServerStub, broker: Broker, *more: str, **options: Any) -> AsyncIterator[Registration]:
    port = await stub.server.start("127.0.0.1", 0)
    registration = Registration(
        [f"127.0.0.1:{port}", *more], IDENTITY, lambda: broker.topics, lambda: broker.version, **options
    )
    try:
        await registration.start()
        yield registration
        await registration.stop()
    finally:
        await stub.server.stop()


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await main()

    asyncio.run(limited())


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once."""
    monkeypatch.setattr(module, "RETRY_MS", 1)


@pytest.mark.parametrize("compressed", [False, True])
def test_the_start_registers_all_and_the_stop_takes_leave(compressed: bool) -> None:
    async def main() -> None:
        stub, broker = NameServerStub(), Broker()
        async with registered(stub, broker, compressed=compressed):
            header, body = stub.bodies.get_nowait()
            assert msgspec.to_builtins(header) == {
                **msgspec.to_builtins(IDENTITY),
                "heartbeatTimeoutMillis": None,
                "enableActingMaster": False,
                "compressed": compressed,
                "bodyCrc32": header.body_crc32,
                "__ZONE_NAME": None,
            }
            table = body.topic_config_serialize_wrapper
            assert table.topic_config_table == broker.topics
            assert table.data_version == broker.version
        [leave] = stub.left
        assert msgspec.to_builtins(leave) == {
            "brokerName": "broker-a",
            "brokerAddr": "1.1.1.1:10911",
            "clusterName": "C",
            "brokerId": 0,
        }

    run(main)


def test_the_plain_body_is_what_a_java_broker_sends() -> None:
    async def main() -> None:
        stub, broker = NameServerStub(), Broker()
        del broker.topics["T2"]
        async with registered(stub, broker):
            _, body = stub.bodies.get_nowait()
            assert body.encode().decode() == (
                '{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,'
                '"stateVersion":0,"timestamp":5},"mappingDataVersion":{"counter":0,'
                '"stateVersion":0,"timestamp":5},"topicConfigTable":{"T1":{"attributes":{},'
                '"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
                '"topicName":"T1","topicSysFlag":0,"writeQueueNums":4}},'
                '"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}'
            )

    run(main)


def test_a_changed_topic_is_told_at_once_and_alone() -> None:
    async def main() -> None:
        stub, broker = NameServerStub(), Broker()
        async with registered(stub, broker) as registration:
            assert await stub.topics() == ["T1", "T2"]
            broker.change("T2")
            registration.topics_changed(["T2"])
            _, body = await stub.bodies.get()
            table = body.topic_config_serialize_wrapper
            assert table.topic_config_table == {"T2": TopicConfig("T2", 8, 8, 6)}
            assert table.data_version == DataVersion(0, 6, 2)
            del broker.topics["T1"]
            registration.topics_changed(["T1"])
            assert await stub.topics() == []

    run(main)


def test_changes_at_the_same_time_go_together() -> None:
    async def main() -> None:
        stub, broker = NameServerStub(), Broker()
        async with registered(stub, broker) as registration:
            await stub.topics()
            for name in ("T3", "T4"):
                broker.change(name)
                registration.topics_changed([name])
            assert sorted(await stub.topics()) == ["T3", "T4"]
        assert stub.bodies.empty()

    run(main)


def test_all_is_told_again_after_the_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PERIOD_MS_MIN", 1)

    async def main() -> None:
        stub, broker = NameServerStub(), Broker()
        async with registered(stub, broker, period_ms=1):
            for _ in range(3):
                assert await stub.topics() == ["T1", "T2"]

    run(main)


def test_all_is_told_again_when_the_connection_is_lost() -> None:
    """Not 30 s later: a name server that was restarted, or had no registration for long, has no route to the broker."""

    async def main() -> None:
        stub, broker = NameServerStub(), Broker()
        async with registered(stub, broker):
            assert await stub.topics() == ["T1", "T2"]
            for _ in range(2):
                stub.peers.pop().close("test")
                assert await stub.topics() == ["T1", "T2"]
        assert stub.bodies.empty()

    run(main)


def test_what_has_not_changed_is_not_formatted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[list[str]] = []
    encode = RegisterBody.encode

    def noted(body: RegisterBody, compressed: bool = False) -> bytes:
        assert threading.current_thread() is not threading.main_thread(), "others would wait"
        encoded.append(list(body.topic_config_serialize_wrapper.topic_config_table))
        return encode(body, compressed)

    async def main() -> None:
        stub, broker = NameServerStub(), Broker()
        async with registered(stub, broker):
            for _ in range(4):
                assert await stub.topics() == ["T1", "T2"]
            assert encoded == [["T1", "T2"]]
            broker.change("T3")
            while await stub.topics() == ["T1", "T2"]:
                pass
            assert encoded == [["T1", "T2"], ["T1", "T2", "T3"]]

    monkeypatch.setattr(RegisterBody, "encode", noted)
    monkeypatch.setattr(module, "PERIOD_MS_MIN", 0)
    monkeypatch.setattr(module, "PERIOD_MS_MAX", 10)
    run(main)


@pytest.mark.parametrize(("period_ms", "seconds"), [(1, 10), (10_000, 10), (30_000, 30), (60_000, 60), (90_000, 60)])
def test_the_period_is_held_between_bounds(period_ms: int, seconds: float) -> None:
    registration = Registration([], IDENTITY, dict, DataVersion, period_ms=period_ms)
    assert registration.period_seconds == seconds


def test_a_refusal_is_followed_by_all_topics() -> None:
    async def main() -> None:
        stub, broker = NameServerStub(), Broker()
        async with registered(stub, broker) as registration:
            await stub.topics()
            stub.refusing = True
            registration.topics_changed(["T2"])
            assert await stub.topics() == ["T2"]
            assert await stub.topics() == ["T1", "T2"]
            stub.refusing = False
            while await stub.topics() != ["T1", "T2"]:
                pass

    run(main)


def test_a_name_server_that_is_away_harms_nothing_and_is_found_later(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="firearrow.broker.registering.registration")

    async def main() -> None:
        with socket.socket() as place:
            place.bind(("127.0.0.1", 0))
            away = f"127.0.0.1:{place.getsockname()[1]}"
            stub, broker, late = NameServerStub(), Broker(), NameServerStub()
            async with registered(stub, broker, away):
                assert await stub.topics() == ["T1", "T2"]
                place.close()
                await late.server.start("127.0.0.1", int(away.partition(":")[2]))
                assert await late.topics() == ["T1", "T2"]
                stub.refusing = True
            assert (len(stub.left), len(late.left)) == (1, 1)
            await late.server.stop()

        first, second = told(caplog)
        assert first.pop("error")
        assert first == {"event": "registration with a name server failed: retrying", "address": away}
        assert second == {"event": "registration with a name server works again", "address": away}

    run(main)


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:1"])
def test_an_address_that_is_none_is_logged_once(address: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        stub = NameServerStub()
        async with registered(stub, Broker(), address) as registration:
            await stub.topics()
            registration.topics_changed(["T1"])
            await stub.topics()

    run(main)
    [line] = told(caplog)
    assert line["address"] == address


def test_a_stop_does_not_wait_for_a_silent_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNREGISTER_SECONDS_MAX", 0.01)

    async def main() -> None:
        stub = NameServerStub()
        async with registered(stub, Broker()):
            await stub.topics()
            stub.silent = True
        assert len(stub.left) == 1

    run(main)


def test_a_silent_name_server_is_given_up_after_the_timeout(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        stub = NameServerStub()
        stub.silent = True
        async with registered(stub, Broker(), timeout_ms=10):
            await stub.topics()
        assert len(stub.left) == 1

    run(main)
    assert "did not answer in 0.01 s" in caplog.text


def test_a_start_waits_a_while_for_a_silent_name_server_and_says_who_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "START_SECONDS_MAX", 0.5)

    async def main() -> None:
        mute, stub = NameServerStub(), NameServerStub()
        mute.silent = True
        address = f"127.0.0.1:{await mute.server.start('127.0.0.1', 0)}"
        try:
            async with registered(stub, Broker(), address) as registration:
                assert registration.missing == [address]
                await mute.topics()
                assert await stub.topics() == ["T1", "T2"]
        finally:
            await mute.server.stop()

    monkeypatch.setattr(module, "UNREGISTER_SECONDS_MAX", 0.01)
    run(main)


@pytest.mark.parametrize(("permission", "perm"), [(6, 7), (7, 7), (4, 4), (2, 2), (0, 0)])
def test_topics_are_registered_with_no_more_than_the_broker_permits(permission: int, perm: int) -> None:
    async def main() -> None:
        stub, broker = NameServerStub(), Broker()
        broker.topics["T1"] = TopicConfig("T1", 4, 4, 7)
        async with registered(stub, broker, permission=lambda: permission):
            _, body = stub.bodies.get_nowait()
            table = body.topic_config_serialize_wrapper.topic_config_table
            assert table["T1"].perm == perm

    run(main)


@pytest.mark.parametrize(("setting", "addresses"), [("", []), ("a:1", ["a:1"]), (" a:1 ; b:2;;a:1;", ["a:1", "b:2"])])
def test_the_setting_of_addresses(setting: str, addresses: list[str]) -> None:
    assert addresses_of(setting) == addresses
