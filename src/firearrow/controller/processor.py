"""Answers of a controller: one method for each request code, and the table of them.

Source: RocketMQ's ``ControllerRequestProcessor``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Final, TypeVar

import msgspec

from firearrow.auth.model import no_permission
from firearrow.controller import decisions
from firearrow.controller.agreement import PEER_MESSAGES
from firearrow.controller.config import KEY_GROUPS, ControllerConfig
from firearrow.controller.decisions import ControllerResult
from firearrow.controller.heartbeats import Heartbeats
from firearrow.controller.metrics import ControllerTally
from firearrow.controller.replicas import Sets
from firearrow.controller.state import AnyAgreement, Council
from firearrow.errors import BrokerError
from firearrow.net.server import Answer, Handler, Peer
from firearrow.net.serverconfig import changed, save, text_of
from firearrow.wire import headers
from firearrow.wire.client_bodies import body_of
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.controller_bodies import SyncStateSet
from firearrow.wire.frame import AnyCommand
from firearrow.wire.signature import ACCESS_KEY, Credentials, is_signed

H = TypeVar("H", bound=headers.Header)
NAME_CHARS_MAX: Final = 255  # as for names in a configuration
_NAMES_MAX: Final = 10_000  # in one request 1006; each takes some µs


class ControllerProcessor:
    """Handlers of requests; ``config`` is replaced when a client changes it.

    ``on_elected`` is called for each master that a request has elected. With ``credentials`` other controllers must
    sign by them; with ``authenticationEnabled`` every client must.
    """

    def __init__(
        self,
        config: ControllerConfig,
        agreement: AnyAgreement,
        council: Council,
        heartbeats: Heartbeats,
        on_elected: Callable[[str, ControllerResult], None],
        tally: ControllerTally,
        credentials: Credentials | None = None,
    ) -> None:
        self.config: ControllerConfig = config
        self._credentials = credentials
        self._members = config.members()
        self._agreement = agreement
        self._council = council
        self._heartbeats = heartbeats
        self._on_elected = on_elected
        self._tally = tally

    def handlers(self) -> Mapping[int, Handler]:
        """Return the table: request code to handler."""
        handlers = dict(self._handlers())
        if self._credentials is not None:
            is_for_all = self.config.authentication_enabled
            for code in handlers if is_for_all else (PEER_MESSAGES,):
                handlers[code] = _signed(handlers[code], self._credentials)
        return self._tally.measured(handlers)

    def _handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: self.alter_sync_state_set,
            RequestCode.CONTROLLER_ELECT_MASTER: self.elect_master,
            RequestCode.CONTROLLER_REGISTER_BROKER: self.register_broker,
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self.get_replica_info,
            RequestCode.CONTROLLER_GET_METADATA_INFO: self.get_metadata,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self.get_sync_state_data,
            RequestCode.UPDATE_CONTROLLER_CONFIG: self.update_config,
            RequestCode.GET_CONTROLLER_CONFIG: self.get_config,
            RequestCode.CLEAN_BROKER_DATA: self.clean_broker_data,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: self.get_next_broker_id,
            RequestCode.CONTROLLER_APPLY_BROKER_ID: self.apply_broker_id,
            RequestCode.BROKER_HEARTBEAT: self.heartbeat,
            PEER_MESSAGES: self.peer_messages,
        }

    # --- brokers ----------------------------------------------------------------------------

    def get_next_broker_id(self, peer: Peer, request: AnyCommand) -> Answer:
        """1012."""
        header = fields_of(request, headers.NextBrokerId)
        return self._asked(peer, request, lambda sets: decisions.next_broker_id(sets, header))

    def apply_broker_id(self, peer: Peer, request: AnyCommand) -> Answer:
        """1013."""
        header = _named(fields_of(request, headers.ApplyBrokerId))
        return self._decided(peer, request, lambda sets: decisions.apply_broker_id(sets, header))

    def register_broker(self, peer: Peer, request: AnyCommand) -> Answer:
        """1003."""
        header, lives = _named(fields_of(request, headers.RegisterToController)), self._heartbeats
        return self._asked(peer, request, lambda sets: decisions.register_broker(sets, lives, header))

    def heartbeat(self, peer: Peer, request: AnyCommand) -> Answer:
        """904."""
        header = _named(fields_of(request, headers.BrokerHeartbeat))
        if header.broker_id is None:
            raise BrokerError(ResponseCode.CONTROLLER_INVALID_REQUEST, "Heart beat with empty brokerId")
        self._heartbeats.beat(header, peer)
        return Response(remark="Heart beat success")

    def alter_sync_state_set(self, peer: Peer, request: AnyCommand) -> Answer:
        """1001."""
        header, lives = fields_of(request, headers.AlterSyncStateSet), self._heartbeats
        told = body_of(request, SyncStateSet)
        return self._decided(peer, request, lambda sets: decisions.alter_sync_state_set(sets, lives, header, told))

    def elect_master(self, peer: Peer, request: AnyCommand) -> Answer:
        """1002."""
        header, lives = fields_of(request, headers.ElectMaster), self._heartbeats
        is_unclean_allowed = self.config.enable_elect_unclean_master

        def decide(sets: Sets) -> ControllerResult:
            return decisions.elect_master(sets, lives, header, is_unclean_allowed=is_unclean_allowed)

        def tell(decision: ControllerResult) -> None:
            self._tally.elected(header.cluster_name or "", header.broker_name, decision.code)
            if decision.code == ResponseCode.SUCCESS:
                self._on_elected(header.broker_name, decision)

        return self._decided(peer, request, decide, tell)

    def get_replica_info(self, peer: Peer, request: AnyCommand) -> Answer:
        """1004."""
        header = fields_of(request, headers.BrokerNameHeader)
        return self._asked(peer, request, lambda sets: decisions.replica_info(sets, header))

    # --- tools ------------------------------------------------------------------------------

    def get_sync_state_data(self, peer: Peer, request: AnyCommand) -> Answer:
        """1006."""
        names = body_of(request, list[str]) if request.body else []
        if not 0 < len(names) <= _NAMES_MAX:
            # Java: ControllerRequestProcessor answers no names with an error that has no text.
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"1 to {_NAMES_MAX} names, these are {len(names)}")
        lives = self._heartbeats
        return self._asked(peer, request, lambda sets: decisions.sync_state_data(sets, lives, names))

    def clean_broker_data(self, peer: Peer, request: AnyCommand) -> Answer:
        """1011."""
        header, lives = fields_of(request, headers.CleanBrokerData), self._heartbeats
        return self._decided(peer, request, lambda sets: decisions.clean_broker_data(sets, lives, header))

    def get_metadata(self, peer: Peer, request: AnyCommand) -> Answer:
        """1005: the address of the leader; every controller answers."""
        leader = self._agreement.leader
        fields: dict[str, str | bool] = {
            "group": self.config.controller_d_leger_group,
            "isLeader": self._agreement.leads,
            "peers": "".join(f"{name}:{at};" for name, at in self._members.items()),
        }
        if leader:
            fields |= {"controllerLeaderId": leader, "controllerLeaderAddress": self._members[leader]}
        return Response(fields=fields)

    # --- the controller's configuration -----------------------------------------------------

    def get_config(self, peer: Peer, request: AnyCommand) -> Answer:
        """1010: all keys, sorted, one ``key=value`` a line."""
        return Response(body=text_of(self.config))

    def update_config(self, peer: Peer, request: AnyCommand) -> Answer:
        """1009: change keys and save the configuration, all or none."""
        # A change of the list can't free the list itself or the paths.
        always = ("configBlackList", "configStorePath", "rocketmqHome")
        black_list = {*always, *self.config.config_black_list.split(";")}
        config = changed(request, self.config, black_list, servers=KEY_GROUPS)
        if config is not None:
            save(config, config.config_store_path)
            self.config = config
        return Response()

    # --- other controllers ------------------------------------------------------------------

    def peer_messages(self, peer: Peer, request: AnyCommand) -> Answer:
        """Take messages of another controller of the group."""
        self._agreement.receive(request.ext or {}, request.body)
        return Response()

    # --- the common way of answering --------------------------------------------------------

    def _asked(self, peer: Peer, request: AnyCommand, decide: Callable[[Sets], ControllerResult]) -> Answer:
        """Answer a query; as in RocketMQ, it needs its own agreement only if configured."""
        return self._decided(peer, request, decide, is_agreed_on=self.config.process_read_event)

    def _decided(
        self,
        peer: Peer,
        request: AnyCommand,
        decide: Callable[[Sets], ControllerResult],
        tell: Callable[[ControllerResult], None] = lambda decision: None,
        *,
        is_agreed_on: bool = False,
    ) -> Answer:
        """Answer at once if possible, otherwise later."""
        answers: list[Response] = []
        is_open, since = False, self._tally.now()

        def then(decision: ControllerResult) -> None:
            answer = _answer(decision)
            if is_open:
                peer.owed -= 1
                peer.reply(request, answer)
                self._tally.answered(request.code, since)
            else:
                answers.append(answer)
            tell(decision)

        self._council.decide(decide, then, is_agreed_on=is_agreed_on)
        if answers:
            return answers[0]
        is_open = True
        peer.owed += 1
        return None


def _signed(handler: Handler, credentials: Credentials) -> Handler:
    """Wrap a handler so that it refuses requests which the credentials have not signed."""

    @wraps(handler)
    def handle(peer: Peer, request: AnyCommand) -> Answer:
        ext = request.ext or {}
        if ext.get(ACCESS_KEY) != credentials.access_key:
            raise no_permission("the controllers' credentials are required.")
        if not is_signed(ext, request.body, credentials.secret_key, request.version):
            raise no_permission("check signature failed.")
        return handler(peer, request)

    return handle


def _named(header: H) -> H:
    """Return a header whose texts will be kept; raises BrokerError for a text that is too long."""
    for name, text in msgspec.structs.asdict(header).items():
        if isinstance(text, str) and len(text) > NAME_CHARS_MAX:
            raise BrokerError(
                ResponseCode.CONTROLLER_INVALID_REQUEST,
                f"{name} has {len(text)} characters, the limit is {NAME_CHARS_MAX}",
            )
    return header


def _answer(decision: ControllerResult) -> Response:
    fields = {name: value for name, value in decision.fields.items() if value is not None}
    return Response(decision.code, decision.remark, fields, decision.body)
