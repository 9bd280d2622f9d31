"""A master, two slaves that may act for it, and a master of another name; see `tests.crash.cuts`.

To the first one go messages, too, that are to come four seconds later. Where slaves act for it,
those go to the other name; so it is there or here that each of them has to come, at least once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from firearrow.errors import FirearrowError
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import HaStatus
from firearrow.wire.codes import RequestCode as Code
from tests.crash.cuts import QUEUES, Cuts, port_of
from tests.crash.victim import bodies_of_queue
from tests.crash.wires import INSIDE, OUTSIDE, TESTER
from tests.interop.controllers import OurBroker, log_of
from tests.interop.servers import BROKER_NAME
from tests.net.talker import talking

NAME_SERVER: Final = "names"
MASTER, FIRST, SECOND = BROKERS = ("a", "b", "c")  # of one name, by their numbers
OTHER: Final = "d"

NAME_SERVER_KEYS: Final = {
    "supportActingMaster": "true", "notifyMinBrokerIdChanged": "true",
    "scanNotActiveBrokerInterval": "300",
}  # fmt: skip
KEYS: Final = {
    "enableControllerMode": "false", "brokerIP1": OUTSIDE, "brokerIP2": OUTSIDE,
    "defaultTopicQueueNums": str(QUEUES), "brokerFastFailureEnable": "false",
    "messageDelayLevel": "1s 4s", "brokerNotActiveTimeoutMillis": "2000",
}  # fmt: skip
KEYS_OF_ONE_NAME: Final = {
    "enableSlaveActingMaster": "true", "enableRemoteEscape": "true", "slaveReadEnable": "true",
    "totalReplicas": "3", "inSyncReplicas": "2", "slaveTimeout": "1000",
    "haHousekeepingInterval": "2000", "haSendHeartbeatInterval": "500",
}  # fmt: skip


class ActingCuts(Cuts):
    """All of them. Whoever a cut leaves, the master goes on or a slave acts for it soon."""

    delays_at = MASTER

    def __init__(self, seed: int, directory: Path, namesrv: str) -> None:
        names = namesrv.replace(INSIDE, OUTSIDE)
        brokers = {
            name: OurBroker(
                directory / name, names, "", **KEYS, **KEYS_OF_ONE_NAME, brokerId=str(number),
                brokerRole="SLAVE" if number else "SYNC_MASTER",
            )
            for number, name in enumerate(BROKERS)
        }  # fmt: skip
        keys = {**KEYS, "brokerName": "broker-b"}
        brokers[OTHER] = OurBroker(directory / OTHER, names, "", **keys)
        super().__init__(seed, brokers, {NAME_SERVER: port_of(namesrv)})
        self._namesrv = namesrv
        self._topics_made = False
        own = (
            self.master_alone, self.master_is_unknown, self.master_without_slaves,
            self.master_and_first_alone, self.slave_alone, self.name_server_alone,
            self.name_server_is_not_heard, self.nobody_reaches_the_other_name,
        )  # fmt: skip
        self.faults = {it.__name__: it for it in own} | self.faults

    # --- what is known ---

    async def leads(self) -> str | None:
        """Which broker name servers show in the master's place; None if there is none."""
        fields: dict[str, Any] = {"topic": "T", "acceptStandardJsonOnly": True}
        with suppress(OSError, FirearrowError):
            answer = await self.client.answer(self._namesrv, Code.GET_ROUTEINFO_BY_TOPIC, fields)
            if answer.code == 0:
                for broker in fastjson.loads(answer.body)["brokerDatas"]:
                    if broker["brokerName"] == BROKER_NAME:
                        place = broker["brokerAddrs"].get("0", "").replace(OUTSIDE, INSIDE)
                        return next((it for it in BROKERS if self.brokers[it].address == place), "")
        return None

    async def acts(self, name: str) -> None:
        """Wait until a broker acts for the master, or is it."""

        async def does() -> bool:
            return await self.leads() == name

        await self.until(does, f"{name} in the master's place")

    async def settle(self) -> None:
        async def are_in_sync() -> bool:
            if not self._topics_made:
                await self._make_topics()
            status = await self._status()
            return status is not None and sum(it.in_sync for it in status.ha_connection_info) >= 2

        await self.until(are_in_sync, "both slaves in sync")
        await self.acts(MASTER)

    async def _make_topics(self) -> None:
        """Have both names have the topic of what comes later."""
        with suppress(OSError, FirearrowError):
            for name in (MASTER, OTHER):
                fields: dict[str, Any] = {
                    "topic": "D", "defaultTopic": "TBW102", "readQueueNums": QUEUES,
                    "writeQueueNums": QUEUES, "perm": 6, "topicFilterType": "SINGLE_TAG",
                    "topicSysFlag": 0, "order": False,
                }  # fmt: skip
                await self.client.call(self.brokers[name].address, Code.UPDATE_AND_CREATE_TOPIC, fields)
            self._topics_made = True

    async def _status(self) -> HaStatus | None:
        with suppress(OSError, FirearrowError):
            answer = await self.client.call(self.brokers[MASTER].address, Code.GET_BROKER_HA_STATUS)
            return fastjson.decode(answer.body, HaStatus)
        return None

    # --- what happens ---

    async def master_alone(self) -> None:
        """Only clients reach the master: the first slave acts for it, and sends what is due to the
        other name."""
        await self._some_wait()
        self.wires.part({MASTER}, self.all)
        await self.acts(FIRST)
        await self._escaped()

    async def master_and_first_alone(self) -> None:
        """The second slave acts. The first one hears of its master still."""
        self.wires.part({MASTER, FIRST}, {*self.all} - {MASTER, FIRST})
        await self.acts(SECOND)
        await self.acknowledged({MASTER})

    async def master_is_unknown(self) -> None:
        """The name server alone does not hear it; it goes on, and its slaves with it."""
        self.wires.part({MASTER}, {NAME_SERVER})
        await self.acts(FIRST)
        await self.acknowledged({MASTER})

    async def master_without_slaves(self) -> None:
        """It acknowledges nothing, as nobody else has it."""
        self.wires.part({MASTER}, {FIRST, SECOND})
        before = self.clients.acknowledged[MASTER]
        await asyncio.sleep(self.chance.uniform(2, 5))
        # What was under way may have been copied and not been answered yet.
        assert self.clients.acknowledged[MASTER] <= before + 1

    async def slave_alone(self) -> None:
        """The others go on without it."""
        self.wires.part({self.chance.choice([FIRST, SECOND])}, self.all)
        await self.acknowledged({MASTER})

    async def name_server_alone(self) -> None:
        """Brokers go on as they were."""
        self.wires.part({NAME_SERVER}, self.all)
        await self.acknowledged({MASTER})

    async def name_server_is_not_heard(self) -> None:
        """It hears of all brokers, who get no answer."""
        self.wires.cut({NAME_SERVER}, self.all)
        await self.acknowledged({MASTER})

    async def nobody_reaches_the_other_name(self) -> None:
        """What is due while the master is away waits for a way."""
        self.wires.part({MASTER}, self.all)
        self.wires.part({OTHER}, {*self.all} - {NAME_SERVER})
        await self.acts(FIRST)
        await self.for_a_while()

    async def lose_master(self) -> None:
        """Kill it: a slave acts until it comes back."""
        await self.settle()
        await self._some_wait()
        self.happened.append("the master is killed")
        self.brokers[MASTER].kill()
        await self.acts(FIRST)
        await self._escaped()
        self.start(MASTER)
        await self.acknowledged({MASTER})

    async def _some_wait(self) -> None:
        """Wait until slaves have messages that are to come later: the master has sent five of them
        within a second, and of the first ones both slaves know."""
        enough = len(self.clients.delayed) + 5

        async def are_enough() -> bool:
            return len(self.clients.delayed) >= enough

        await self.until(are_enough, "messages that are to come later")

    async def _escaped(self) -> None:
        """Wait until the other name has more of what is due."""
        before = len(await self._later(OTHER))

        async def is_more() -> bool:
            return len(await self._later(OTHER)) > before

        await self.until(is_more, "what is due at the other name")

    # --- what is left ---

    async def _later(self, name: str) -> list[bytes]:
        """What a broker has of messages that came later."""
        async with talking(self.ports[name]) as talker:
            found = [await bodies_of_queue(talker, at, 0, "D") for at in range(QUEUES)]
        return [body for bodies in found for body in bodies]

    async def _log(self, name: str) -> bytes:
        broker = self.brokers[name]
        answer = await self.client.call(broker.address, Code.GET_BROKER_RUNTIME_INFO)
        end = int(fastjson.loads(answer.body)["table"]["commitLogMaxOffset"])
        return await asyncio.to_thread(log_of, broker, end)

    async def check(self) -> None:
        async def have_one_log() -> bool:
            first, *others = [await self._log(name) for name in BROKERS]
            return all(log == first for log in others)

        async def are_all_there() -> bool:
            found = [*await self._later(MASTER), *await self._later(OTHER)]
            return self.clients.delayed <= {*found}

        await self.until(are_all_there, "all that was to come later")
        await self.until(have_one_log, "brokers with one log")
        self.clients.history.compare(await self.queues_of(MASTER))
        acknowledged = self.clients.acknowledged
        assert not acknowledged[FIRST] + acknowledged[SECOND], "slaves acknowledge messages"
        assert len(self.clients.delayed) > 10
        wanted = {(slave, MASTER) for slave in (FIRST, SECOND)} | {(FIRST, OTHER)}
        wanted |= {(name, NAME_SERVER) for name in self.brokers}
        wanted |= {(TESTER, name) for name in BROKERS}
        assert wanted <= self.wires.passed, "somebody speaks to another one past the proxy"
