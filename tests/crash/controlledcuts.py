"""Three brokers in controller mode and three controllers, see `tests.crash.cuts`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from firearrow.errors import FirearrowError
from tests.crash.cuts import QUEUES, Cuts, port_of
from tests.crash.wires import INSIDE, OUTSIDE, TESTER
from tests.interop.controllers import Controllers, OurBroker, epochs_of, known_by, wait_for_same_log

NAME_SERVER: Final = "names"
BROKERS: Final = ("a", "b", "c")

CONTROLLER_KEYS: Final = {
    "scanNotActiveBrokerInterval": "300", "scanInactiveMasterInterval": "500",
}  # fmt: skip
BROKER_KEYS: Final = {
    "brokerIP1": OUTSIDE, "allAckInSyncStateSet": "true", "slaveReadEnable": "true",
    "defaultTopicQueueNums": str(QUEUES), "brokerFastFailureEnable": "false",
    "controllerHeartBeatTimeoutMills": "2000", "haHousekeepingInterval": "2000",
    "haSendHeartbeatInterval": "500", "slaveTimeout": "1000", "checkSyncStateSetPeriod": "500",
    "syncBrokerMetadataPeriod": "1000", "syncControllerMetadataPeriod": "1000",
    "haMaxTimeSlaveNotCatchup": "3000",
}  # fmt: skip


class ControlledCuts(Cuts):
    """All of them. Whoever a cut leaves without a way to acknowledge, others do it soon."""

    def __init__(self, seed: int, directory: Path, group: Controllers, namesrv: str) -> None:
        names = namesrv.replace(INSIDE, OUTSIDE)
        brokers = {name: OurBroker(directory / name, names, group.all_addresses, **BROKER_KEYS) for name in BROKERS}
        others = {name: port_of(address) for name, address in group.addresses.items()}
        super().__init__(seed, brokers, {NAME_SERVER: port_of(namesrv), **others})
        self.group = group
        own = (
            self.master_alone, self.slaves_are_not_heard, self.leader_alone,
            self.master_is_not_heard, self.master_without_controllers,
            self.master_without_slaves, self.slave_alone, self.controllers_are_not_heard,
        )  # fmt: skip
        self.faults = {it.__name__: it for it in own} | self.faults

    # --- what is known ---

    async def roles(self) -> tuple[str, str, int]:
        """Wait until a controller leads and a broker is master; give both and how many are in
        sync."""

        async def found() -> tuple[str, str, int] | None:
            known: list[tuple[int, str, dict[str, Any]]] = []
            for name in self.group.processes:
                address = self.group.addresses[name].replace(OUTSIDE, INSIDE)
                with suppress(FirearrowError):
                    state = await known_by(self.client, address)
                    known += [(state["masterEpoch"], name, state)] if state else []
            if not known:
                return None
            _, leader, state = max(known, key=lambda it: it[0])
            place = state.get("masterAddress", "").replace(OUTSIDE, INSIDE)
            masters = [name for name, it in self.brokers.items() if it.address == place]
            return (leader, masters[0], len(state["inSyncReplicas"])) if masters else None

        return await self.until(found, "a master")

    async def master(self) -> str:
        """Which broker is master."""
        return (await self.roles())[1]

    async def settle(self) -> None:
        async def are_in_sync() -> bool:
            return (await self.roles())[2] == len(BROKERS)

        await self.until(are_in_sync, "all brokers in sync")

    # --- what happens ---

    async def master_alone(self) -> None:
        """Only clients reach the master."""
        master = await self.master()
        self.wires.part({master}, self.all)
        await self.acknowledged({*BROKERS} - {master})

    async def master_without_controllers(self) -> None:
        """Slaves follow it still."""
        master = await self.master()
        self.wires.part({master}, {*self.group.addresses})
        await self.acknowledged({*BROKERS} - {master})

    async def master_without_slaves(self) -> None:
        """Controllers hear it still: it goes on alone."""
        self.wires.part({await self.master()}, {*BROKERS})
        await self.acknowledged(BROKERS)

    async def master_is_not_heard(self) -> None:
        """Slaves report, and get nothing."""
        self.wires.cut({await self.master()}, {*BROKERS})
        await self.acknowledged(BROKERS)

    async def slaves_are_not_heard(self) -> None:
        """Slaves get the log, and can't say so."""
        self.wires.cut({*BROKERS}, {await self.master()})
        await self.acknowledged(BROKERS)

    async def controllers_are_not_heard(self) -> None:
        """Controllers get signs of life, and decide what nobody hears of."""
        self.wires.cut({*self.group.addresses}, {*BROKERS})
        await self.for_a_while()

    async def slave_alone(self) -> None:
        """The others go on without it."""
        slave = self.chance.choice(sorted({*BROKERS} - {await self.master()}))
        self.wires.part({slave}, self.all)
        await self.acknowledged(BROKERS)

    async def leader_alone(self) -> None:
        """Another controller leads soon."""
        leader, *_ = await self.roles()
        self.wires.part({leader}, self.all)

        async def is_another() -> bool:
            return (await self.roles())[0] != leader

        await self.until(is_another, "another controller that leads")

    async def lose_leader_and_master(self) -> None:
        """Kill the controller that leads, and then the master: another one takes its place, and it
        comes back."""
        await self.settle()
        leader, master, _ = await self.roles()
        self.happened.append("leader and master are killed")
        self.group.kill(leader)
        self.brokers[master].kill()
        await self.acknowledged({*BROKERS} - {master})
        self.start(master)

    # --- what is left ---

    async def check(self) -> None:
        await asyncio.to_thread(wait_for_same_log, list(self.brokers.values()))
        master = await self.master()
        history = self.clients.history
        history.compare(await self.queues_of(master))
        epochs = await asyncio.to_thread(epochs_of, self.brokers[master])
        history.compare_epochs([(it.epoch, it.start_offset) for it in epochs.epoch_list])
        wanted = {(broker, name) for broker in BROKERS for name in self.group.addresses}
        wanted |= {(name, NAME_SERVER) for name in BROKERS} | {(TESTER, name) for name in BROKERS}
        assert wanted <= self.wires.passed, "somebody speaks to another one past the proxy"
