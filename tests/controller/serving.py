"""Controllers in virtual time, and brokers that do nothing but what concerns them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from firearrow.controller.app import Controller
from firearrow.controller.config import ControllerConfig
from firearrow.net.client import Client
from firearrow.net.server import Server
from firearrow.testing.loop import VirtualClock, VirtualLoop
from firearrow.wire import fastjson
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.frame import AnyCommand

CLUSTER: Final = "C"
NAME: Final = "broker-a"
WITHIN_SECONDS: Final = 600


class Group:
    """Controllers n0, n1, … that are asked by name."""

    def __init__(self, directory: Path, size: int, clock: VirtualClock, **keys: Any) -> None:
        self.addresses = {f"n{number}": f"127.0.0.1:{9800 + number}" for number in range(size)}
        self.running: dict[str, Controller] = {}
        self.client = Client()
        self._directory = directory
        self._clock = clock
        self._keys = keys

    def config(self, name: str) -> ControllerConfig:
        """The configuration of a controller."""
        peers = ";".join(f"{one}-{address}" for one, address in self.addresses.items())
        return ControllerConfig(
            controller_d_leger_group="group",
            controller_d_leger_peers=peers,
            controller_d_leger_self_id=name,
            controller_store_path=str(self._directory / name),
            config_store_path=str(self._directory / f"{name}.properties"),
            **self._keys,
        )

    async def start(self, *names: str) -> None:
        """Start some of them; none named: all."""
        for name in names or self.addresses:
            self.running[name] = Controller(self.config(name), self._clock)
            await self.running[name].start()

    async def stop(self, *names: str) -> None:
        """Stop some of them; none named: all that run."""
        for name in names or tuple(self.running):
            await self.running.pop(name).stop()

    async def close(self) -> None:
        """Stop all, and the client."""
        await self.client.close()
        await self.stop()

    async def leader(self) -> str:
        """Wait until one of them leads, and give its name."""
        while True:
            for name in self.running:
                answer = await self.ask(name, Code.CONTROLLER_GET_METADATA_INFO)
                if answer.ext["isLeader"] == "true":
                    return name
            await asyncio.sleep(0.05)

    async def ask(self, name: str, code: int, body: bytes = b"", **fields: Any) -> AnyCommand:
        """Ask one of them, and give its answer, whatever its code."""
        return await self.client.answer(self.addresses[name], code, fields, body)

    async def ask_leader(self, code: int, body: bytes = b"", **fields: Any) -> AnyCommand:
        """Ask the one that leads."""
        return await self.ask(await self.leader(), code, body, **fields)

    async def state(self, name: str = NAME) -> dict[str, Any]:
        """What is known of the brokers of a name (1006)."""
        answer = await self.ask_leader(Code.CONTROLLER_GET_SYNC_STATE_DATA, fastjson.dumps([name]))
        table: dict[str, Any] = fastjson.loads(answer.body)["replicasInfoTable"][name]
        return table


class FakeBroker:
    """A broker of a group: it registers, beats each second, and hears notices."""

    def __init__(self, group: Group, clock: VirtualClock, broker_id: int) -> None:
        self.group = group
        self.broker_id = broker_id
        self.heard: asyncio.Queue[AnyCommand] = asyncio.Queue()
        self.epoch, self.max_offset = 0, 0
        self._client = Client()
        self._server = Server(
            {Code.NOTIFY_BROKER_ROLE_CHANGED: lambda _, command: self.heard.put_nowait(command)}, clock
        )
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Register, and begin to beat."""
        self.address = f"127.0.0.1:{await self._server.start('127.0.0.1', 0)}"
        code = f"{self.address};{self.broker_id}"
        await self.ask(Code.CONTROLLER_APPLY_BROKER_ID, appliedBrokerId=self.broker_id, registerCheckCode=code)
        await self.ask(Code.CONTROLLER_REGISTER_BROKER, brokerId=self.broker_id, brokerAddress=self.address)
        await self.beat()
        self._beating = asyncio.get_running_loop().create_task(self._beat())

    async def elect(self) -> AnyCommand:
        """Ask to be master."""
        return await self.ask(Code.CONTROLLER_ELECT_MASTER, brokerId=self.broker_id)

    async def say_in_sync(self, *ids: int) -> AnyCommand:
        """As the master, tell who has all its messages."""
        state = await self.group.state()
        body = {"syncStateSet": list(ids), "syncStateSetEpoch": state["syncStateSetEpoch"]}
        return await self.group.ask_leader(
            Code.CONTROLLER_ALTER_SYNC_STATE_SET,
            fastjson.dumps(body),
            brokerName=NAME,
            masterBrokerId=self.broker_id,
            masterEpoch=state["masterEpoch"],
        )

    async def ask(self, code: int, **fields: Any) -> AnyCommand:
        """Ask the controller that leads."""
        named: dict[str, Any] = {"clusterName": CLUSTER, "brokerName": NAME}
        return await self.group.ask_leader(code, **named, **fields)

    async def beat(self) -> None:
        """Be heard by all controllers that run."""
        for name in tuple(self.group.running):
            await self._client.call(
                self.group.addresses[name],
                Code.BROKER_HEARTBEAT,
                {
                    "clusterName": CLUSTER, "brokerName": NAME, "brokerId": self.broker_id,
                    "brokerAddr": self.address, "epoch": self.epoch, "maxOffset": self.max_offset,
                    "heartbeatTimeoutMills": 10_000,
                },
            )  # fmt: skip

    async def fall_silent(self) -> None:
        """Beat no more, with its connections as they are."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None

    async def die(self) -> None:
        """Be gone, with all connections."""
        await self.fall_silent()
        await self._client.close()
        await self._server.stop()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(1)
            try:
                await self.beat()
            except OSError:  # a controller has just stopped
                continue


class Stage:
    """A group of controllers with its brokers, for one test."""

    def __init__(self, group: Group, clock: VirtualClock) -> None:
        self.group = group
        self.brokers: dict[int, FakeBroker] = {}
        self._clock = clock

    async def broker(self, broker_id: int) -> FakeBroker:
        """Start a broker."""
        broker = self.brokers[broker_id] = FakeBroker(self.group, self._clock, broker_id)
        await broker.start()
        return broker

    async def pair(self) -> tuple[FakeBroker, FakeBroker]:
        """Start a master, 1, and a slave in sync, 2."""
        master, slave = await self.broker(1), await self.broker(2)
        await master.elect()
        await master.say_in_sync(1, 2)
        await asyncio.sleep(0.1)
        for broker in (master, slave):
            while not broker.heard.empty():
                broker.heard.get_nowait()
        return master, slave


def staged(directory: Path, size: int, main: Any, **keys: Any) -> None:
    """Run ``main``, made for a stage with so many controllers, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        clock = VirtualClock(runner.get_loop())
        runner.run(_staged(directory, size, clock, main, keys))


async def _staged(directory: Path, size: int, clock: VirtualClock, main: Any, keys: dict[str, Any]) -> None:
    group = Group(directory, size, clock, **keys)
    stage = Stage(group, clock)
    async with asyncio.timeout(WITHIN_SECONDS):
        await group.start()
        coroutine: Coroutine[Any, Any, None] = main(stage)
        await coroutine
        for broker in stage.brokers.values():
            await broker.die()
        await group.close()
