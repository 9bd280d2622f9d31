"""Brokers in controller mode, their controller and name server, in one loop of virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from firearrow.broker.config import BrokerConfig
from firearrow.broker.control.controlled import ControlledBroker
from firearrow.namesrv.app import NameServer
from firearrow.namesrv.config import NamesrvConfig
from firearrow.net.client import Client
from firearrow.testing.fs import copy_whole
from firearrow.testing.loop import VirtualClock, VirtualLoop
from firearrow.wire import fastjson
from firearrow.wire.codes import RequestCode
from tests.broker.serving import Serving, bodies
from tests.controller.serving import CLUSTER, NAME, Group
from tests.store.stores import small_config

NAME_SERVER_PORT: Final = 9700
BROKER_PORT: Final = 11000
WITHIN_SECONDS: Final = 600


class Member:
    """One broker: started, stopped, killed and started again on its store, at its port; ``store``
    are keys of its own."""

    def __init__(self, field: Field, number: int, **store: Any) -> None:
        self.field = field
        self.store = store
        self.number = number
        self.port = BROKER_PORT + 10 * number
        self.address = f"127.0.0.1:{self.port}"
        self.root = field.directory / f"store{number}"
        self._broker: ControlledBroker | None = None
        self._lives = 0

    @property
    def broker(self) -> ControlledBroker:
        """The broker, which runs."""
        assert self._broker is not None, f"broker {self.number} does not run"
        return self._broker

    @property
    def runs(self) -> bool:
        """Whether it runs."""
        return self._broker is not None

    @property
    def is_master(self) -> bool:
        """Whether it runs and is master."""
        return self._broker is not None and self._broker.is_open and self._broker.is_master

    @property
    def serving(self) -> Serving:
        """The broker for the helpers of `tests.broker.serving`."""
        return Serving(self.broker, self.port)

    async def start(self) -> None:
        """Start it, or start it again, when nothing is left of the last time."""
        await asyncio.gather(*self.field.ending)
        usual: dict[str, Any] = {
            "broker_name": NAME,
            "broker_cluster_name": CLUSTER,
            "broker_fast_failure_enable": False,
            "enable_controller_mode": True,
            "controller_addr": ";".join(self.field.group.addresses.values()),
            "namesrv_addr": f"127.0.0.1:{NAME_SERVER_PORT}",
        }
        config = BrokerConfig(**usual | dict(self.field.config))
        store = small_config(self.root, **{**self.field.store, **self.store})
        self._broker = ControlledBroker(config, store, self.field.clock, background=False)
        await self._broker.start("127.0.0.1", self.port)

    async def stop(self) -> None:
        """Stop it in order."""
        broker, self._broker = self.broker, None
        await broker.stop()

    async def kill(self) -> None:
        """Have it end at once; its store is as it was at this moment."""
        broker, self._broker = self.broker, None
        left = self.root.with_name(f"{self.root.name}.{self._lives}")
        self._lives += 1
        copy_whole(self.root, left)
        broker.cut()
        if broker.control is not None:
            await broker.control.stop()
        master = broker.replicas.master
        if master is not None:
            for slave in tuple(master.slaves):
                slave.close()
        broker.replicas.close()
        self.field.ending.append(asyncio.get_running_loop().create_task(broker.stop()))
        self.root = left
        await asyncio.sleep(0)

    def bodies(self) -> list[bytes]:
        """What its log has, in order."""
        return bodies(self.serving)


class Field:
    """A name server, controllers, and brokers of one name."""

    def __init__(
        self,
        directory: Path,
        clock: VirtualClock,
        config: Mapping[str, Any],
        store: Mapping[str, Any],
        controllers: int,
    ) -> None:
        self.directory = directory
        self.clock = clock
        self.config = config
        self.store = store
        self.group = Group(directory, controllers, clock)
        self.members: list[Member] = []
        self.ending: list[asyncio.Task[None]] = []  # what is left of brokers that were killed
        self.client = Client()
        self._name_server = NameServer(
            NamesrvConfig(
                kv_config_path=str(directory / "kv.json"), config_store_path=str(directory / "namesrv.properties")
            ),
            clock,
        )

    async def start(self, brokers: int) -> None:
        """Start all, and wait until all brokers are in sync."""
        await self._name_server.start("127.0.0.1", NAME_SERVER_PORT)
        await self.group.start()
        for number in range(brokers):
            member = Member(self, number)
            self.members.append(member)
            await member.start()
        if brokers:
            await self.in_sync(brokers)

    async def in_sync(self, count: int) -> dict[str, Any]:
        """Wait until so many brokers are in sync; give what the controller knows."""
        return await self.state(lambda it: len(it["inSyncReplicas"]) == count)

    async def state(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the controller knows what is wanted of it."""
        async with asyncio.timeout(60):
            while True:
                state = await self.group.state()
                if is_wanted(state):
                    return state
                await asyncio.sleep(0.05)

    async def master(self, but: Member | None = None) -> Member:
        """Wait until a broker is master, another one than a certain one."""
        async with asyncio.timeout(60):
            while True:
                for member in self.members:
                    if member.is_master and member is not but:
                        return member
                await asyncio.sleep(0.02)

    async def route(self) -> dict[int, str]:
        """Where name servers say that the brokers of the name are, by number."""
        answer = await self.client.call(
            f"127.0.0.1:{NAME_SERVER_PORT}",
            RequestCode.GET_BROKER_MEMBER_GROUP,
            {"clusterName": CLUSTER, "brokerName": NAME},
        )
        found = fastjson.loads(answer.body)["brokerMemberGroup"]["brokerAddrs"]
        return {int(number): address for number, address in found.items()}

    async def stop(self) -> None:
        """Stop all."""
        for member in self.members:
            if member.runs:
                await member.stop()
        await asyncio.gather(*self.ending)
        await self.client.close()
        await self.group.close()
        await self._name_server.stop()


def fielded(
    directory: Path,
    brokers: int,
    main: Callable[[Field], Awaitable[None]],
    *,
    store: Mapping[str, Any] | None = None,
    controllers: int = 1,
    **config: Any,
) -> None:
    """Run ``main`` with so many brokers in virtual time."""

    async def run(clock: VirtualClock) -> None:
        field = Field(directory, clock, config, store or {}, controllers)
        async with asyncio.timeout(WITHIN_SECONDS):
            await field.start(brokers)
            await main(field)
            await field.stop()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        clock = VirtualClock(runner.get_loop())
        runner.run(run(clock))
