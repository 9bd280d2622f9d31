"""Requests of a broker to controllers: heartbeats to all, other requests to the leader.

Any controller names the leader. If the leader has changed, or does not answer, all are asked again. Each controller
gets a separate heartbeat, so that a dead one delays no other.

Source: RocketMQ's ``ReplicasManager``, ``BrokerOuterAPI``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from firearrow.broker.config import BrokerConfig
from firearrow.clock import Clock
from firearrow.errors import BrokerError, ConfigError, FirearrowError
from firearrow.files import read_newest, replace_atomically, sync_directory
from firearrow.logs import Log
from firearrow.net.access import Access
from firearrow.net.address import addresses_of, first_answer, host_and_port, ipv4_of
from firearrow.net.client import Client
from firearrow.net.tasks import RunningTask, Tasks
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import body_of
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import NO_FIELDS, FieldValue, fields_of
from firearrow.wire.controller_bodies import SyncStateSet
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import BrokerIdThatIsNext, MasterOfName

log: Final = Log(__name__)

CALL_SECONDS_MAX: Final = 3.0
APPLICATIONS_MAX: Final = 5  # for a number that another broker gets meanwhile


class Mastery(NamedTuple):
    """The master of a broker name, its epoch, and the brokers in sync with it."""

    master_id: int | None
    address: str
    epoch: int
    in_sync: frozenset[int]
    in_sync_version: int


def mastery_of(command: AnyCommand) -> Mastery:
    """Read an answer to 1002, 1003 or 1004, or a notice, 1008; BrokerError for any other command."""
    header = fields_of(command, MasterOfName)
    told = body_of(command, SyncStateSet) if command.body else SyncStateSet()
    return Mastery(
        header.master_broker_id if header.master_address else None,
        header.master_address or "",
        header.master_epoch or 0,
        frozenset(told.sync_state_set),
        header.sync_state_set_epoch or told.sync_state_set_epoch,
    )


class ControllerClient:
    """The controllers of a broker. ``address`` is the broker's address for clients."""

    def __init__(self, config: BrokerConfig, clock: Clock, access: Access, address: str) -> None:
        self._config = config
        self._clock = clock
        self._client = Client(access=access, call_seconds=CALL_SECONDS_MAX)
        self._address = address
        self._leader = ""
        self._beating: dict[str, RunningTask] = {}
        self._tasks = Tasks()
        self._deaf: set[str] = set()
        self.addresses: list[str] = []

    @property
    def _named(self) -> dict[str, FieldValue]:
        config = self._config
        return {"clusterName": config.broker_cluster_name, "brokerName": config.broker_name}

    async def find(self) -> None:
        """Look up the addresses of the controllers. Raises OSError if no look-up ever succeeded."""
        config = self._config
        if not config.fetch_controller_addr_by_dns_lookup:
            self.addresses = addresses_of(config.controller_addr)
            return
        host, port = host_and_port(config.controller_addr)
        try:
            self.addresses = [f"{ip}:{port}" for ip in await ipv4_of(host)]
        except OSError as error:
            if not self.addresses:
                raise
            log.warning("controllers are asked at their last known addresses", extra={"error": error})

    async def find_leader(self) -> None:
        """Find the leader. Raises ConnectionError if no controller names it."""
        self._leader = ""
        self._leader = await first_answer(self.addresses, self._leader_by, wanted="controller names the leader")

    async def _leader_by(self, address: str) -> str:
        answer = await self._client.call(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
        leader: str | None = (answer.ext or {}).get("controllerLeaderAddress")
        if not leader:
            raise ConnectionError(f"{address} knows no leader")
        return leader

    async def ask(self, code: int, fields: Mapping[str, FieldValue] = NO_FIELDS, body: bytes = b"") -> AnyCommand:
        """Ask the present leader.

        Raises BrokerError for a refusal, ConnectionError or TimeoutError if it does not answer.
        """
        if not self._leader:
            await self.find_leader()
        asked = {**self._named, "invokeTime": self._clock.now_ms(), **fields}
        try:
            return await self._client.call(self._leader, code, asked, body)
        except BrokerError as error:
            if error.code == ResponseCode.CONTROLLER_NOT_LEADER:
                self._leader = ""
            raise
        except OSError:
            self._leader = ""
            raise

    # --- requests ---

    async def master(self) -> Mastery:
        """1004: the present master."""
        answer = await self.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO)
        return mastery_of(answer)

    async def register(self, broker_id: int) -> Mastery:
        """1003: register the broker's address; return the master."""
        fields: dict[str, FieldValue] = {"brokerId": broker_id, "brokerAddress": self._address}
        answer = await self.ask(RequestCode.CONTROLLER_REGISTER_BROKER, fields)
        return mastery_of(answer)

    async def elect(self, broker_id: int) -> Mastery:
        """1002: trigger an election, with this broker as the preferred one. BrokerError if no broker can be elected."""
        fields: dict[str, FieldValue] = {"brokerId": broker_id, "designateElect": False}
        try:
            answer = await self.ask(RequestCode.CONTROLLER_ELECT_MASTER, fields)
        except BrokerError as error:
            if error.code != ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
                raise
            return await self.master()
        return mastery_of(answer)

    async def agree(self, broker_id: int, epoch: int, members: frozenset[int], version: int) -> SyncStateSet:
        """1001: propose the brokers in sync; return the agreed ones."""
        fields: dict[str, FieldValue] = {"masterBrokerId": broker_id, "masterEpoch": epoch}
        body = fastjson.dumps(SyncStateSet(sorted(members), version))
        answer = await self.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, fields, body)
        return fastjson.decode(answer.body, SyncStateSet)

    async def number(self, file: NumberFile) -> int:
        """Return the broker's number, after applying for one if it has none yet.

        Raises the errors of `ask`, ConfigError where the store belongs to another broker, and OSError if the number
        can't be stored.
        """
        config = self._config
        own = config.broker_cluster_name, config.broker_name
        for _ in range(APPLICATIONS_MAX):
            number = file.load(*own)
            if number is not None and not number.code:
                return number.broker_id
            if number is None:
                answer = await self.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID)
                next_id = fields_of(answer, BrokerIdThatIsNext).next_broker_id
                code = f"{self._address};{self._clock.now_ms()}"
                number = BrokerNumber(*own, next_id, code)
                file.apply(number)
            fields: dict[str, FieldValue] = {"appliedBrokerId": number.broker_id, "registerCheckCode": number.code}
            try:
                await self.ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, fields)
            except BrokerError as error:
                if error.code != ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                    raise
                file.give_up()
                continue
            file.grant(number)
            return number.broker_id
        raise ConnectionError(f"{APPLICATIONS_MAX} numbers went to other brokers meanwhile")

    # --- heartbeats ---

    def beat(self, fields: Callable[[], Mapping[str, FieldValue]]) -> None:
        """Send heartbeats to all controllers from now on."""
        for address in self.addresses:
            if address not in self._beating:
                self._beating[address] = self._tasks.start(self._beat(address, fields), f"heartbeats to {address}")
        for address in self._beating.keys() - set(self.addresses):
            self._beating.pop(address).cancel()

    async def beat_once(self, fields: Mapping[str, FieldValue]) -> None:
        """Send a heartbeat to the present leader, and return when it has answered."""
        await self.ask(RequestCode.BROKER_HEARTBEAT, self._sign(fields))

    def _sign(self, fields: Mapping[str, FieldValue]) -> dict[str, FieldValue]:
        config = self._config
        return {
            **self._named,
            "brokerAddr": self._address,
            "heartbeatTimeoutMills": config.controller_heart_beat_timeout_mills,
            "electionPriority": config.broker_election_priority,
            **fields,
        }

    async def _beat(self, address: str, fields: Callable[[], Mapping[str, FieldValue]]) -> None:
        seconds = self._config.broker_heartbeat_interval / 1000
        while True:
            try:
                await self._client.send(address, RequestCode.BROKER_HEARTBEAT, self._sign(fields()))
            except (OSError, FirearrowError) as error:
                if address not in self._deaf:
                    self._deaf.add(address)
                    log.warning(
                        "heartbeat does not reach a controller: retrying", extra={"address": address, "error": error}
                    )
            else:
                self._deaf.discard(address)
            await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Send nothing more."""
        await self._tasks.close()
        await self._client.close()


# --- Number of the broker ---
#
# A broker of a new store asks for the next free number, and notes it together with a *check code* in
# ``brokerIdentity-temp``. Then it applies for the number. If the number is taken meanwhile, it asks again. If it is
# granted, the number goes into ``brokerIdentity``, and the note is removed. If the broker ends in between, it applies
# again with the same code, by which the controller recognises it. All files are one line of UTF-8 without a line feed:
#
# ========================= ==================================================
# file                      content
# ========================= ==================================================
# ``brokerIdentity``        ``cluster#broker name#number``
# ``brokerIdentity-temp``   the same, then ``#code``; a code is ``host:port;ms``
# ========================= ==================================================
#
# Worked example: ``DefaultCluster#broker-a#2``, and before that
# ``DefaultCluster#broker-a#2#10.0.0.1:10911;1795000000000``.
#
# Source: RocketMQ's ``BrokerMetadata``, ``TempBrokerMetadata``, ``ReplicasManager#register``.


class BrokerNumber(NamedTuple):
    """Number of a broker name; ``code`` is empty once it is granted."""

    cluster_name: str
    broker_name: str
    broker_id: int
    code: str = ""

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return "#".join(str(part) for part in self if part != "").encode()


def parse(data: bytes) -> BrokerNumber:
    """Read the bytes of a file; ValueError for anything else."""
    cluster_name, broker_name, broker_id, *code = data.decode().strip().split("#")
    if len(code) > 1:
        raise ValueError(f"{len(code) + 3} parts between #, there are four at most")
    return BrokerNumber(cluster_name, broker_name, int(broker_id), *code)


class NumberFile:
    """The two files of a store with its number."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._applied_path = path.with_name(path.name + "-temp")

    def load(self, cluster_name: str, broker_name: str) -> BrokerNumber | None:
        """Return the granted number, otherwise the one in the note, otherwise None.

        Raises ConfigError where the store belongs to another broker name.
        """
        for path in (self._path, self._applied_path):
            found = read_newest(path, parse)
            if found is None:
                continue
            known = found.value
            if (known.cluster_name, known.broker_name) != (cluster_name, broker_name):
                raise ConfigError(
                    f"{path} belongs to broker {known.broker_name} in cluster {known.cluster_name}; "
                    f"brokerName is {broker_name}, brokerClusterName is {cluster_name}"
                )
            return known
        return None

    def apply(self, number: BrokerNumber) -> None:
        """Write the note about a number; it is durable on return."""
        assert number.code, "a number in the note has a code"
        replace_atomically(self._applied_path, number.encode(), backup=False)

    def give_up(self) -> None:
        """Remove the note."""
        self._applied_path.unlink(missing_ok=True)
        sync_directory(self._applied_path.parent)

    def grant(self, number: BrokerNumber) -> None:
        """Store a granted number; it is durable on return."""
        replace_atomically(self._path, number._replace(code="").encode(), backup=False)
        self._applied_path.unlink(missing_ok=True)
        sync_directory(self._path.parent)
