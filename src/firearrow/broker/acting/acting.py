"""Part of a broker in a group whose slaves act for an absent master.

With ``enableSlaveActingMaster`` the brokers of a name watch each other by the name servers (901 each second, 905 at
once). The broker with the smallest number runs the *special services*, which only one of them may run: delivery of
delayed and timed messages, transactions, and redelivery of popped messages. While that broker is a slave, name servers
show it in the master's place, and its topics can only be read.

A broker is *online* when it is registered. Before that it finds out which others are there, if there are several
(``totalReplicas``):

* A slave asks the master for its port for slaves (906), and connects.
* A master tells each slave its port (906), and waits until the slave has connected. Then it takes back the offsets of
consumers, delay levels and the timer. A slave with another log delays no master, and nothing is taken back from it.

So a returning master delivers nothing before it knows the deliveries of its slave. A slave that hears of the master
ends its special services before it answers. If the master does not come online, they begin again some seconds later. As
long as a slave gets the log of its master, it does not act, whatever name servers say: the master is alive, and at
work. Java: it does.

Source: RocketMQ ``BrokerController#startService``, ``#onMinBrokerChange``, ``BrokerPreOnlineService``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, runtime_checkable

from firearrow.broker.context import BrokerContext
from firearrow.broker.pulling.longpoll import HeldPulls
from firearrow.broker.registering.registration import BrokerIdentity, Registration, addresses_of
from firearrow.broker.replication.slavesync import SlaveSync
from firearrow.errors import BrokerError, FirearrowError
from firearrow.logs import Log
from firearrow.net.access import OPEN, Access
from firearrow.net.address import first_answer, host_and_port
from firearrow.net.client import Client
from firearrow.net.server import Answer, Handler, Peer
from firearrow.net.tasks import Tasks
from firearrow.services import Service
from firearrow.wire import fastjson
from firearrow.wire.bodies import MASTER_ID, MemberGroupBody
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import FieldValue, Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import ExchangeHaInfo, MinBrokerId

log: Final = Log(__name__)

RETRY_SECONDS: Final = 1.0  # between attempts to come online
CALL_SECONDS_MAX: Final = 3.0
CONNECT_SECONDS_MAX: Final = 10.0
"""Limit of a master's wait for a slave to connect, and of a slave's wait for its master. RocketMQ's slaves look every
five seconds for the port to connect to."""
START_SECONDS: Final = 3.0
"""A slave does not act in this time after it came online."""
YIELD_SECONDS: Final = 10.0
"""A slave does not act in this time after a master has said that it comes back."""


@runtime_checkable
class Retryable(Protocol):
    """A service that puts messages, and can retry puts that failed before."""

    def go_on(self) -> None:
        """Retry now."""
        ...


class MasterOnlyServices(Service):
    """Special services of a broker: all of them run, or none. ``prepare`` is called before they start."""

    def __init__(self, services: Iterable[Service], prepare: Callable[[], object]) -> None:
        super().__init__("special services")
        self._services = tuple(services)
        self._prepare = prepare
        self._turn = asyncio.Lock()
        self._has_ended = False
        self.runs: bool = False

    async def run(self, on: bool) -> None:
        """Start or stop all services if necessary; return when that is done."""
        async with self._turn:
            if on is self.runs or (on and self._has_ended):
                return
            log.info("special services are started or stopped", extra={"runs": on})
            if not on:
                self.runs = False
                await self._stop(self._services)
                return
            self._prepare()
            self.runs = True
            for number, service in enumerate(self._services):
                try:
                    await service.start()
                except BaseException:
                    self.runs = False
                    await self._stop(self._services[:number])
                    raise

    async def _stop(self, services: tuple[Service, ...]) -> None:
        for service in reversed(services):
            await service.stop()

    def go_on(self) -> None:
        """Retry all puts that failed before."""
        for service in self._services if self.runs else ():
            if isinstance(service, Retryable):
                service.go_on()

    async def stop(self) -> None:
        """Stop all services for good."""
        self._has_ended = True
        await self.run(False)

    @property
    def trouble(self) -> str | None:
        """Reason why they do not work."""
        found = ((service.name, service.trouble) for service in self._services)
        return "; ".join(f"{name}: {why}" for name, why in found if why) or None


class Acting(Service):
    """Bring a broker online, and run its special services while it is the one that acts."""

    def __init__(
        self,
        context: BrokerContext,
        held: HeldPulls,
        identity: BrokerIdentity,
        special: MasterOnlyServices,
        registration: Registration,
        sync: SlaveSync,
        access: Access = OPEN,
    ) -> None:
        super().__init__("group")
        settings, replicas = context.settings, context.replicas
        self._config = config = settings.broker
        self._identity = identity
        self._name_servers = addresses_of(config.namesrv_addr)
        self._replicas = replicas
        self._special = special
        self._registration = registration
        self._sync = sync
        self._store = context.store
        self._takes_flushed = settings.store.sync_master_flush_offset_when_startup
        self._log_end = context.store.log_end_offset  # at the start
        self._release = held.release_all
        self._client = Client(access=access)
        self._turn = asyncio.Lock()
        self._tasks = Tasks()
        self._waits = settings.store.total_replicas > 1 and not config.skip_pre_online
        self._yields_until = 0.0
        self._trouble: str | None = None
        self._lowest = MASTER_ID
        self._taken_back: set[int] = set()
        self._linked = asyncio.Event()
        self.is_online: bool = False
        replicas.linked.listen(lambda _: self._linked.set())
        replicas.master_is_online = False

    # --- life ---

    async def start(self) -> None:
        """Come online in the background; clients are served already."""
        self._begin(self._run())

    async def stop(self) -> None:
        """Unregister, and run nothing any more."""
        await self._tasks.close()
        if self.is_online:
            await self._registration.stop()
        await self._client.close()
        if not self._replicas.is_slave:
            await self._sync.stop()

    @property
    def trouble(self) -> str | None:
        """Reason why the broker is not online, or not known to name servers."""
        return self._registration.trouble if self.is_online else self._trouble

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.begin(work, "group")

    async def _run(self) -> None:
        while True:
            if await self._came_online():
                break
            await asyncio.sleep(RETRY_SECONDS)
        self._begin(self._repeat(self._config.broker_heartbeat_interval, self._beat))
        self._begin(self._repeat(self._config.sync_broker_member_group_period, self._look))

    async def _came_online(self) -> bool:
        """Try to come online; return whether that is done."""
        try:
            members = await self._members() if self._waits else {}
            others = {key: at for key, at in members.items() if key != self._identity.broker_id}
            if not self._replicas.is_slave:
                await self._meet_slaves(others)
            elif MASTER_ID in others:
                await self._meet_master(others[MASTER_ID])
        except (OSError, FirearrowError) as error:
            if self._trouble != str(error):
                log.warning("broker does not come online yet", extra={"error": error})
            self._trouble = str(error)
            return False
        own = self._identity.broker_id
        # A slave that has not asked the master leaves the work to it until name servers say otherwise.
        self._lowest = min([own, *others]) if self._waits else MASTER_ID
        if self._replicas.is_slave:
            # All brokers may have started together: give the master time.
            self._yields_until = asyncio.get_running_loop().time() + START_SECONDS
        await self._special.run(self._is_to_act())
        await self._registration.start()
        self.is_online = True
        log.info("broker is online", extra={"broker_id": own, "smallest_id": self._lowest})
        return True

    async def _repeat(self, interval_ms: int, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            with suppress(OSError, FirearrowError):  # the registration reports the reason
                await step()

    # --- coming online ---

    async def _meet_master(self, address: str) -> None:
        """Connect to a master; raise an error if that fails."""
        said = await self._client.call(address, RequestCode.EXCHANGE_BROKER_HA_INFO, timeout_seconds=CALL_SECONDS_MAX)
        self._note_flushed(fields_of(said, ExchangeHaInfo).master_flush_offset)
        ha_address = (said.ext or {}).get("masterHaAddress")
        if ha_address:
            self._follow(ha_address, address)
            await self._until(lambda: self._replicas.is_connected, f"master at {ha_address}")

    async def _meet_slaves(self, slaves: Mapping[int, str]) -> None:
        """Wait until slaves connect, and take back their offsets; raise an error if that fails."""
        who = self._identity
        told: dict[str, FieldValue] = {
            "masterHaAddress": who.ha_server_addr,
            "masterFlushOffset": self._log_end,
            "masterAddress": who.broker_addr,
        }
        for count, (broker_id, address) in enumerate(sorted(slaves.items()), 1):
            if broker_id in self._taken_back:
                continue
            await self._client.call(
                address, RequestCode.EXCHANGE_BROKER_HA_INFO, told, timeout_seconds=CALL_SECONDS_MAX
            )
            host, _ = host_and_port(address)

            def has_come(host: str = host, count: int = count) -> bool:
                hosts = self._replicas.slave_hosts()
                return host in hosts or host in self._replicas.unfit_hosts() or len(hosts) >= count

            await self._until(has_come, f"slave {broker_id} at {address}")
            if host in self._replicas.unfit_hosts():
                log.error("nothing is taken back from a slave with another log", extra=told)
            else:
                await self._sync.take_back(address)
            self._taken_back.add(broker_id)

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until master or slave is connected; raise a BrokerError if it takes too long."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                while not condition():
                    self._linked.clear()
                    await self._linked.wait()
        except TimeoutError:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"not connected with {what}") from None

    # --- by time ---

    async def _beat(self) -> None:
        """Tell all name servers that the broker is alive."""
        who = self._identity
        fields: dict[str, FieldValue] = {
            "clusterName": who.cluster_name,
            "brokerAddr": who.broker_addr,
            "brokerName": who.broker_name,
            "brokerId": who.broker_id,
        }
        seconds = self._config.send_heartbeat_timeout_millis / 1000
        await asyncio.gather(
            *(
                self._client.send(address, RequestCode.BROKER_HEARTBEAT, fields, timeout_seconds=seconds)
                for address in self._name_servers
            ),
            return_exceptions=True,
        )

    async def _look(self) -> None:
        """Look at the group, and start or stop the special services."""
        members = await self._members()
        self._replicas.meet(members)
        if members:
            lowest = min(members)
            await self._lowest_is(lowest, members[lowest], None)

    async def _members(self) -> dict[int, str]:
        """Return the addresses of the group by number, from the first name server that answers.

        Raise ConnectionError if none answers, BrokerError if it refuses.
        """
        who = self._identity
        fields = {"clusterName": who.cluster_name, "brokerName": who.broker_name}

        async def asked(address: str) -> dict[int, str]:
            code = RequestCode.GET_BROKER_MEMBER_GROUP
            answer = await self._client.call(address, code, fields, timeout_seconds=CALL_SECONDS_MAX)
            group = fastjson.decode(answer.body or b"{}", MemberGroupBody).broker_member_group
            return {} if group is None else dict(group.broker_addrs)

        return await first_answer(self._name_servers, asked) if self._name_servers else {}

    # --- the acting broker ---

    def _is_to_act(self) -> bool:
        """Return whether the special services must run here."""
        if self._lowest != self._identity.broker_id:
            return False
        if not self._replicas.is_slave:
            return True
        now = asyncio.get_running_loop().time()
        return not self._replicas.is_following and now >= self._yields_until

    async def _lowest_is(self, lowest: int, address: str, ha_address: str | None) -> None:
        """Note the smallest number in the group."""
        if not self._replicas.is_slave or not self.is_online:
            return
        async with self._turn:
            if lowest != self._lowest:
                log.info("smallest number of the group is another", extra={"broker_id": lowest})
            is_new = lowest != self._lowest or not self._replicas.master_is_online
            self._lowest = lowest
            if lowest != MASTER_ID:
                self._replicas.master_is_online = False
                self._sync.follow("")
            elif is_new and address:
                await self._master_is(address, ha_address)
            await self._special.run(self._is_to_act())

    async def _master_is(self, address: str, ha_address: str | None) -> None:
        """Note that a master is online."""
        if not ha_address or self._lacks_flushed:
            said = await self._client.call(
                address, RequestCode.EXCHANGE_BROKER_HA_INFO, timeout_seconds=CALL_SECONDS_MAX
            )
            self._note_flushed(fields_of(said, ExchangeHaInfo).master_flush_offset)
            ha_address = ha_address or (said.ext or {}).get("masterHaAddress", "")
        await self._special.run(False)
        self._follow(ha_address, address)
        self._release()

    def _follow(self, ha_address: str, address: str) -> None:
        self._replicas.follow(ha_address)
        self._replicas.master_is_online = True
        self._sync.follow(address)

    @property
    def _lacks_flushed(self) -> bool:
        return self._takes_flushed and self._store.checkpoint.master_flushed_offset == 0

    def _note_flushed(self, physical_offset: int | None) -> None:
        """Note the flushed offset of a master, if it is needed and not known yet."""
        if self._lacks_flushed and physical_offset is not None:
            self._store.checkpoint.master_flushed_offset = physical_offset

    # --- requests of other brokers ---

    def handlers(self) -> dict[int, Handler]:
        """Handlers of requests of name servers and of brokers of the group."""
        return {
            int(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE): self.notice,
            int(RequestCode.EXCHANGE_BROKER_HA_INFO): self.exchange,
        }

    def notice(self, _: Peer, request: AnyCommand) -> Answer:
        """905: note that a broker came or went, and that the smallest number is another."""
        header = fields_of(request, MinBrokerId)
        if header.broker_name in (None, self._identity.broker_name):
            self._begin(self._noticed(header))
        return Response()

    async def _noticed(self, header: MinBrokerId) -> None:
        with suppress(OSError, FirearrowError):  # the next look finds the same
            await self._lowest_is(header.min_broker_id, header.min_broker_addr or "", header.ha_broker_addr)

    def exchange(self, peer: Peer, request: AnyCommand) -> Answer:
        """906: exchange the ports for slaves; a master that is not online yet tells its port, a slave asks."""
        header = fields_of(request, ExchangeHaInfo)
        who = self._identity
        if not header.master_ha_address:
            if self._replicas.is_slave:
                return Response()
            return Response(
                fields={
                    "masterHaAddress": who.ha_server_addr,
                    "masterFlushOffset": self._log_end,
                    "masterAddress": who.broker_addr,
                }
            )
        if not self._replicas.is_slave:
            return Response()
        self._note_flushed(header.master_flush_offset)
        peer.owed += 1
        self._begin(self._give_way(peer, request, header.master_ha_address))
        return None

    async def _give_way(self, peer: Peer, request: AnyCommand, ha_address: str) -> None:
        """End the special services for a returning master, follow it, and tell it."""
        try:
            self._yields_until = asyncio.get_running_loop().time() + YIELD_SECONDS
            await self._special.run(False)
            self._replicas.follow(ha_address)
        finally:
            peer.owed -= 1
            peer.reply(request, Response())
