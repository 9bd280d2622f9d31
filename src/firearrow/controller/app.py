"""A controller as a whole: its part in the agreement, its socket, and its periodic tasks.

It looks for brokers that went silent. If it leads, and the master of a name is lost, it elects another master, and
notifies the brokers of that name.

Source: RocketMQ's ``ControllerManager``, ``DLedgerController``.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import SystemRandom
from typing import Final

from firearrow.auth.setup import credentials_of
from firearrow.clock import Clock
from firearrow.controller import decisions
from firearrow.controller.agreement import Agreement
from firearrow.controller.config import ControllerConfig
from firearrow.controller.decisions import ControllerResult
from firearrow.controller.election import NOBODY_ASKED
from firearrow.controller.etcd import PARTS_OF_LEASE, EtcdAgreement
from firearrow.controller.etcdclient import Etcd
from firearrow.controller.heartbeats import Heartbeats, Identity
from firearrow.controller.metrics import ControllerSources, ControllerTally, metrics_of
from firearrow.controller.processor import ControllerProcessor
from firearrow.controller.replicas import ReplicaStateMachine, Sets
from firearrow.controller.state import AnyAgreement, Council
from firearrow.events import Events
from firearrow.logs import Log
from firearrow.net.access import Access
from firearrow.net.address import host_and_port
from firearrow.net.client import Client, Notices
from firearrow.net.encryption import Tls
from firearrow.net.exposition import Metrics
from firearrow.net.operations import Operations, pages_of_server
from firearrow.net.server import ConnectionClosed, Peer, Server
from firearrow.net.tls import access_of
from firearrow.raft import LogFile, OsFile
from firearrow.services import Every, Service
from firearrow.wire import fastjson, headers
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.controller_bodies import SyncStateSet

log: Final = Log(__name__)

LOG_NAME: Final = "raft.log"
FIRST_SCAN_SECONDS: Final = 2.0  # Java: DefaultBrokerHeartbeatManager#start


class Controller:
    """A controller for brokers, tools and its group; call ``start`` and ``stop`` once each, in one event loop."""

    def __init__(self, config: ControllerConfig, clock: Clock) -> None:
        credentials = credentials_of(config.inner_client_authentication_credentials)
        members, access = config.members(), access_of(config, credentials)
        self._file: OsFile | None = None
        self._heartbeats = Heartbeats(clock)
        state = ReplicaStateMachine()
        if config.agrees_by_etcd:
            self._agreement: AnyAgreement = self._by_etcd(config, state, clock)
        else:
            self._agreement = self._by_raft(config, state, access)
        self._tally = tally = ControllerTally(clock.monotonic)
        self._council = Council(state, self._agreement, tally.now, tally.agreed_on)
        self._processor = ControllerProcessor(
            config, self._agreement, self._council, self._heartbeats, self._tell_brokers, tally, credentials
        )
        events = Events()
        events.listen(ConnectionClosed, lambda closed: self._lose(closed.peer))
        self._server = Server(
            self._processor.handlers(),
            clock,
            events=events,
            idle_seconds_max=config.server_channel_max_idle_time_seconds,
            memory_bytes_max=config.request_memory_bytes_max,
            tls=config,
        )
        pages = pages_of_server(self._server, self._reasons_against, self._facts, self._metrics)
        self.operations: Final = Operations(config, pages, self._metrics)
        self._address = members[config.controller_d_leger_self_id]
        self._client = Client(access=access)
        self._notices = Notices(self._client, "who is master")
        self._clock = clock
        self._began = 0.0  # time when it began or ceased to lead
        self._has_stopped = False
        self.services: list[Service] = []

    def _by_raft(self, config: ControllerConfig, state: ReplicaStateMachine, access: Access) -> Agreement:
        path = Path(config.controller_store_path) / LOG_NAME
        self._file = OsFile(path)
        return Agreement(
            config.controller_d_leger_group,
            config.controller_d_leger_self_id,
            config.members(),
            LogFile(self._file, str(path)),
            state,
            SystemRandom().randrange,
            self._begin,
            access,
        )

    def _by_etcd(self, config: ControllerConfig, state: ReplicaStateMachine, clock: Clock) -> EtcdAgreement:
        return EtcdAgreement(
            _etcd_of(config),
            f"{config.controller_etcd_prefix.rstrip('/')}/{config.controller_d_leger_group}",
            config.controller_d_leger_self_id,
            config.members(),
            state,
            config.controller_etcd_lease_seconds,
            clock.monotonic,
            self._begin,
        )

    @property
    def config(self) -> ControllerConfig:
        """The configuration in force; clients may change it."""
        return self._processor.config

    @property
    def address(self) -> str:
        """The address where it listens, as the group's configuration has it."""
        return self._address

    async def start(self) -> None:
        """Join the agreement, and listen at this controller's address in the group.

        Raises CorruptStore if the agreed state can't be read, CannotListen if the port is not free.
        """
        loop = asyncio.get_running_loop()
        services = await self._agreement.start()
        _, port = host_and_port(self._address)
        try:
            await self._server.start(self.config.bind_address, port)
            await self.operations.bind(self.config.bind_address)
        except BaseException:
            self.operations.close()
            raise
        scan_seconds = self.config.scan_inactive_master_interval / 1000
        self.services = [
            self.operations,
            *services,
            Every("silent brokers", FIRST_SCAN_SECONDS, self._forget_silent, loop),
            Every("lost masters", scan_seconds, self._look_for_lost_masters, loop),
        ]
        for service in self.services:
            await service.start()

    async def stop(self) -> None:
        """Close all connections and the file."""
        self._has_stopped = True
        for service in reversed(self.services):
            await service.stop()
        await self._notices.stop()
        await self._client.close()
        await self._server.stop()
        await self._agreement.close()
        if self._file is not None:
            self._file.close()

    # --- status -----------------------------------------------------------------------------

    def _metrics(self) -> Metrics:
        return metrics_of(ControllerSources(self.config, self._tally, self._agreement, self._heartbeats))

    def _reasons_against(self) -> list[str]:
        """The reasons why brokers are not served as they should be."""
        reasons = [f"{service.name}: {service.trouble}" for service in self.services if service.trouble]
        if not self._agreement.leader:
            reasons.append("agreement: no controller is known to lead")
        return reasons

    def _facts(self) -> dict[str, object]:
        config, sets = self.config, self._council.sets
        return {
            "group": config.controller_d_leger_group,
            "name": config.controller_d_leger_self_id,
            "address": self._address,
            "members": config.members(),
            "leader": self._agreement.leader,
            "leads": self._agreement.leads,
            "brokers": sum(self._heartbeats.counts().values()),
            "brokerNames": len(sets),
            "withoutMaster": list(decisions.without_master(sets, self._heartbeats)),
        }

    def _begin(self) -> None:
        self._began = self._clock.monotonic()
        self._council.begin()

    # --- lost brokers -----------------------------------------------------------------------

    def _forget_silent(self) -> float:
        for identity, channel in self._heartbeats.expire():
            if isinstance(channel, Peer):
                channel.close("the broker on it has not been heard in time")
            self._lost(identity)
        return self.config.scan_not_active_broker_interval / 1000

    def _lose(self, channel: Peer) -> None:
        if not self._has_stopped:
            for identity in self._heartbeats.close(channel):
                self._lost(identity)

    def _lost(self, identity: Identity) -> None:
        log.info("broker is lost", extra={"broker": identity.name, "broker_id": identity.broker_id})
        found = self._council.sets.get(identity.name)
        if found is not None and found.master == identity.broker_id:
            self._elect(identity.name, self.config.elect_master_max_retry_count)

    def _look_for_lost_masters(self) -> float:
        seconds = self.config.scan_inactive_master_interval / 1000
        # A new leader may have just started, and brokers have not found it yet.
        if self._council.leads and self._clock.monotonic() - self._began >= seconds:
            for name in decisions.without_master(self._council.sets, self._heartbeats):
                self._elect(name, self.config.elect_master_max_retry_count)
        return seconds

    def _elect(self, name: str, tries: int) -> None:
        """Elect a master, if this controller leads.

        As in RocketMQ, a failed election is repeated at once, which costs an epoch each time.
        """
        header = headers.ElectMaster(broker_name=name, broker_id=NOBODY_ASKED)

        def decide(sets: Sets) -> ControllerResult:
            return decisions.elect_master(
                sets, self._heartbeats, header, is_unclean_allowed=self.config.enable_elect_unclean_master
            )

        def then(decision: ControllerResult) -> None:
            found = self._council.sets.get(name)
            self._tally.elected(found.cluster if found else "", name, decision.code)
            if decision.code == ResponseCode.SUCCESS:
                self._tell_brokers(name, decision)
            elif decision.code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE and tries > 1:
                self._elect(name, tries - 1)
            elif decision.code != ResponseCode.CONTROLLER_NOT_LEADER:
                log.warning("no master is elected", extra={"broker": name, "reason": decision.remark})

        self._council.decide(decide, then)

    # --- notices ----------------------------------------------------------------------------

    def _tell_brokers(self, name: str, decision: ControllerResult) -> None:
        """Notify all living brokers of a name about the master."""
        fields = {key: value for key, value in decision.fields.items() if value is not None}
        log.info("master is elected", extra={"broker": name, **fields})
        found = self._council.sets.get(name)
        if found is None or not self.config.notify_broker_role_changed:
            return
        in_sync = SyncStateSet([int(fields["masterBrokerId"])], int(fields["syncStateSetEpoch"]))
        body = fastjson.dumps(in_sync)
        for broker_id, member in found.members.items():
            if member.address and self._heartbeats.is_alive(found.cluster, name, broker_id):
                code = RequestCode.NOTIFY_BROKER_ROLE_CHANGED
                self._notices.send(member.address, code, fields, body)


def _etcd_of(config: ControllerConfig) -> Etcd:
    endpoints = config.etcd_endpoints()
    tls = Tls(
        config.controller_etcd_trust_cert_path or None,
        config.controller_etcd_cert_path or None,
        config.controller_etcd_key_path or None,
    )
    return Etcd(
        endpoints,
        config.controller_etcd_lease_seconds / PARTS_OF_LEASE,
        (config.controller_etcd_user, config.controller_etcd_password),
        tls.context() if any(url.startswith("https:") for url in endpoints) else None,
    )
