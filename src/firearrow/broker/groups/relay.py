"""Relay of administrators' requests to consumers, and of their answers.

Source: RocketMQ's ``AdminBrokerProcessor#callConsumer``, ``Broker2Client#getConsumeStatus``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.groups.clients import GroupMember
from firearrow.broker.pulling.queries import record_at
from firearrow.errors import BrokerError, MessageError
from firearrow.logs import Log
from firearrow.message.ids import decode_offset_id
from firearrow.net.futures import Answered
from firearrow.net.server import Answer, Peer, Steps
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import ConsumerStatus, MessageQueue, body_of
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import FieldValue, Response, fields_of, request
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import AskConsumer, ConsumeDirectly, ConsumerStatusHeader
from firearrow.wire.signature import SIGNING

log: Final = Log(__name__)

ANSWER_SECONDS_MAX: Final = 10.0  # Java: Broker2Client#callClient
STATUS_SECONDS_MAX: Final = 5.0  # Java: Broker2Client#getConsumeStatus
STATUS_BYTES_MAX: Final = 256 * 1024  # about three thousand queues; one answer holds all members' queues


class RelayProcessor:
    """223, 307, 309."""

    def __init__(self, context: BrokerContext) -> None:
        self._settings = context.settings
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._clients = context.clients

    def running_info(self, peer: Peer, asked: AnyCommand) -> Answer:
        """307: the present state of a consumer."""
        header = fields_of(asked, AskConsumer)
        return self._ask(peer, asked, header.consumer_group, header.client_id, _unsigned(asked))

    def consume_directly(self, peer: Peer, asked: AnyCommand) -> Answer:
        """309: let a consumer consume a message of the log, and return its result."""
        header = fields_of(asked, ConsumeDirectly)
        fields = _unsigned(asked) | {"brokerName": self._settings.broker.broker_name}
        topic, group = self._topics.get(header.topic), self._groups.get(header.consumer_group)
        if topic is not None:
            fields["topicSysFlag"] = topic.topic_sys_flag
        if group is not None:
            fields["groupSysFlag"] = group.group_sys_flag
        try:
            place = decode_offset_id(header.msg_id)
        except MessageError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        record = record_at(self._store, place.physical_offset)
        return self._ask(peer, asked, header.consumer_group, header.client_id, fields, record)

    def _ask(
        self,
        peer: Peer,
        asked: AnyCommand,
        group: str,
        client_id: str,
        fields: Mapping[str, FieldValue],
        body: bytes = b"",
    ) -> Answer:
        """Forward a request to a consumer, and its answer when it comes."""
        found = self._clients.consumer_group(group)
        member = None if found is None else found.member(client_id)
        if member is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")

        def answer(call: Answered) -> None:
            peer.owed -= 1
            peer.reply(asked, peer.refusal_now(asked) or _passed_on(call, group, client_id))

        try:
            call = member.channel.call(request(asked.code, fields, body), ANSWER_SECONDS_MAX)
        except ConnectionError as error:
            remark = _failed(group, client_id, error)
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark) from None
        peer.owed += 1
        call.add_done_callback(answer)
        return None

    def statuses(self, peer: Peer, asked: AnyCommand) -> Steps:
        """223: the offsets of a group's members, by client; only of those that answer."""
        header = fields_of(asked, ConsumerStatusHeader)
        group = self._clients.consumer_group(header.group)
        if group is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group}]"
            )
        found: dict[str, dict[MessageQueue, int]] = {}
        calls: list[Answered] = []
        for member in list(group.members.values()):
            if header.client_addr.strip() in ("", member.client_id):
                fields = {"topic": header.topic, "group": header.group}
                call = _asked_for_status(member, fields, found)
                if call is not None:
                    calls.append(call)
            yield

        def answer(_: asyncio.Future[list[AnyCommand | BaseException]]) -> None:
            peer.owed -= 1
            statuses = Response(body=fastjson.dumps(ConsumerStatus(consumer_table=found)))
            peer.reply(asked, peer.refusal_now(asked) or statuses)

        peer.owed += 1
        asyncio.gather(*calls, return_exceptions=True).add_done_callback(answer)
        return None


def _asked_for_status(
    member: GroupMember, fields: Mapping[str, FieldValue], found: dict[str, dict[MessageQueue, int]]
) -> Answered | None:
    """Call a consumer, and store its answer when it comes; None if it can't be called."""

    def note(call: Answered) -> None:
        try:
            status = call.result()
            if status.code == 0:
                found[member.client_id] = _status_of(status).message_queue_table
        except (OSError, BrokerError) as error:
            _log_silence(member, error)

    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    try:
        call = member.channel.call(request(code, fields), STATUS_SECONDS_MAX)
    except ConnectionError as error:
        _log_silence(member, error)
        return None
    call.add_done_callback(note)
    return call


def _unsigned(asked: AnyCommand) -> dict[str, FieldValue]:
    """Return the fields of a request, without the ones that would let others pretend to be its sender."""
    return {name: text for name, text in asked.ext.items() if name not in SIGNING}


def _status_of(answer: AnyCommand) -> ConsumerStatus:
    if len(answer.body) > STATUS_BYTES_MAX:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR, f"an answer of {len(answer.body)} bytes is above the limit of {STATUS_BYTES_MAX}"
        )
    return body_of(answer, ConsumerStatus)


def _log_silence(member: GroupMember, error: OSError | BrokerError) -> None:
    log.warning(
        "consumer does not return its offsets",
        extra={"client_id": member.client_id, "address": member.channel.address, "error": error},
    )


def _passed_on(call: Answered, group: str, client_id: str) -> Response:
    """Return the answer for an administrator, when a consumer has answered or failed."""
    try:
        answer = call.result()
    except TimeoutError as error:
        remark = f"consumer <{group}> <{client_id}> Timeout: {error}"
        return Response(ResponseCode.CONSUME_MSG_TIMEOUT, remark)
    except ConnectionError as error:
        return Response(ResponseCode.SYSTEM_ERROR, _failed(group, client_id, error))
    fields = answer.ext if isinstance(answer.ext, dict) else {}
    return Response(answer.code, answer.remark, fields, answer.body)


def _failed(group: str, client_id: str, error: ConnectionError) -> str:
    return f"invoke consumer <{group}> <{client_id}> Exception: {error}"
