"""Administration of controllers, and of the history that brokers keep of their masters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from firearrow.client.admin.calls import Calls, read_body
from firearrow.client.session.answers import read_number
from firearrow.config import properties
from firearrow.errors import NotFound
from firearrow.wire import fastjson, headers
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.codes import ResponseCode
from firearrow.wire.controller_bodies import EpochsOfBroker, ReplicasTable


class ControllerGroup(NamedTuple):
    """A group of controllers as one of them knows it; without a leader two fields are None."""

    name: str
    leader: str | None
    leader_address: str | None
    peers: list[str]


class Elected(NamedTuple):
    """The master that was elected, and its epoch and that of who is in sync."""

    address: str
    epoch: int
    in_sync_epoch: int


class Controllers:
    """Controllers; an address is that of any of a group, whose leader is asked."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def group(self, address: str) -> ControllerGroup:
        """Give the leader and the members of the group."""
        answer = await self._calls.call(address, Code.CONTROLLER_GET_METADATA_INFO)
        found = answer.ext
        return ControllerGroup(
            found.get("group", ""),
            found.get("controllerLeaderId"),
            found.get("controllerLeaderAddress"),
            [peer for peer in found.get("peers", "").split(";") if peer],
        )

    async def _leader(self, address: str) -> str:
        leader = (await self.group(address)).leader_address
        if leader is None:
            why = f"controller {address} knows of no leader of its group"
            raise NotFound(ResponseCode.CONTROLLER_NOT_LEADER, why)
        return leader

    async def replicas(self, address: str, brokers: Sequence[str]) -> ReplicasTable:
        """Master, epochs and who is in sync of some broker names."""
        leader = await self._leader(address)
        about = f"brokers {', '.join(brokers)}"
        body = fastjson.dumps(list(brokers))
        answer = await self._calls.call(leader, Code.CONTROLLER_GET_SYNC_STATE_DATA, body=body, about=about)
        return read_body(answer, ReplicasTable, f"{about}: {leader}")

    async def elect(self, address: str, cluster: str, broker: str, broker_id: int) -> Elected:
        """Have a broker of a name become its master; BrokerError if it can't be."""
        leader = await self._leader(address)
        header = headers.ElectMaster(broker, cluster, broker_id, designate_elect=True)
        answer = await self._calls.call(leader, Code.CONTROLLER_ELECT_MASTER, header, about=f"broker {broker!r}")
        return Elected(
            answer.ext.get("masterAddress", ""),
            read_number(answer, "masterEpoch", leader),
            read_number(answer, "syncStateSetEpoch", leader),
        )

    async def forget(
        self, address: str, cluster: str | None, broker: str, broker_ids: str | None, *, living: bool = False
    ) -> None:
        """Forget brokers of a name, by ids joined by ``;`` or all; ``living``: also who lives."""
        leader = await self._leader(address)
        header = headers.CleanBrokerData(broker, cluster, broker_ids, clean_living_broker=living)
        await self._calls.call(leader, Code.CLEAN_BROKER_DATA, header, about=f"broker {broker!r}")

    async def config(self, address: str) -> dict[str, str]:
        """The configuration of this controller as it is in effect."""
        answer = await self._calls.call(address, Code.GET_CONTROLLER_CONFIG)
        return properties.loads(answer.body.decode())

    async def update_config(self, address: str, changes: Mapping[str, str]) -> None:
        """Change keys of the configuration of this controller."""
        body = properties.dumps(changes).encode()
        about = f"keys {', '.join(changes)}"
        await self._calls.call(address, Code.UPDATE_CONTROLLER_CONFIG, body=body, about=about)

    async def epochs(self, broker_address: str) -> EpochsOfBroker:
        """Give the stretches of a broker's log by the masters that wrote them."""
        return await self._calls.read(broker_address, Code.GET_BROKER_EPOCH_CACHE, EpochsOfBroker)
