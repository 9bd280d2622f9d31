"""Limits of calls and clients: pending calls, long requests, settings, and the time of silent clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from firearrow.clock import SystemClock
from firearrow.proxy import clients
from firearrow.proxy import messages as m
from firearrow.proxy.access import Anyone
from firearrow.proxy.brokers import Asked
from firearrow.proxy.calls import REQUEST_BYTES_MAX
from firearrow.proxy.clients import CLIENT_BYTES, NAMES_MAX, SETTINGS_BYTES_MAX, TELEMETRY_BYTES_MAX
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.service import Service
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Command, Response
from tests.proxy.channels import Client as Channel
from tests.proxy.channels import serving
from tests.proxy.rpcs import Rpcs, Telemetry, receive_request, send_request, settings_of_consumer, settings_of_producer
from tests.proxy.silentbrokers import BROKER, SilentBrokers

SECONDS_MAX = 20
GROUP, TOPIC = m.Resource(name="g"), m.Resource(name="t")


class Proxy:
    """A proxy in front of silent brokers."""

    def __init__(self, config: ProxyConfig) -> None:
        self.brokers = SilentBrokers()
        self.service = Service(self.brokers, Anyone(), config, SystemClock())
        self.channel: Channel | None = None

    @property
    def address(self) -> str:
        assert self.channel is not None, "it serves"
        return self.channel.address

    def on_loop(self, call: Callable[[], object]) -> None:
        assert self.channel is not None, "it serves"
        self.channel.on_loop(call)


@contextmanager
def proxy(**keys: Any) -> Iterator[Proxy]:
    found = Proxy(ProxyConfig(**{"enable_topic_message_type_check": False, **keys}))
    with serving(found.service.methods()) as found.channel:
        yield found
        found.on_loop(found.service.stop)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.002)


# --- pending calls ---

DAY_MS = 86_400_000  # the module may be imported long before a test runs
HANDLE = f"0 {int(time.time() * 1000)} {DAY_MS} 0 0 {BROKER} 0 0 7"
ACK = m.AckMessageRequest(group=GROUP, topic=TOPIC, entries=[m.AckMessageEntry(message_id="a", receipt_handle=HANDLE)])
CHANGE = m.ChangeInvisibleDurationRequest(
    group=GROUP, topic=TOPIC, receipt_handle=HANDLE, invisible_duration=m.Duration(seconds=20)
)
UPDATE = m.UpdateOffsetRequest(
    group=GROUP, message_queue=m.MessageQueue(topic=TOPIC, broker=m.Broker(name=BROKER)), offset=1
)


def test_pending_calls_of_one_kind_are_limited() -> None:
    with proxy(grpc_consumer_thread_queue_capacity=2) as it, Rpcs(it.address) as rpcs:
        pending = [rpcs.future("UpdateOffset", UPDATE) for _ in range(2)]
        until(lambda: len(it.brokers.pending) == 2)
        answer = rpcs.AckMessage(ACK)
        assert (answer.status.code, answer.status.message) == (m.Code.TOO_MANY_REQUESTS, "flow limit")
        changed = rpcs.ChangeInvisibleDuration(CHANGE)
        assert (changed.status.code, changed.receipt_handle) == (m.Code.TOO_MANY_REQUESTS, HANDLE)
        first, last = rpcs.streamed("ReceiveMessage", receive_request("g", "t"))
        assert first.status.code == m.Code.TOO_MANY_REQUESTS
        assert last.HasField("delivery_timestamp")
        sent = rpcs.future("SendMessage", send_request("t", b"x"))  # of another kind
        until(lambda: len(it.brokers.pending) == 3)
        it.on_loop(it.brokers.answer)
        until(lambda: any(call.done() for call in pending))  # they may have come in any order
        [done] = [call for call in pending if call.done()]
        assert done.result().status.code == m.Code.OK
        for call in pending:
            call.cancel()
        acked = rpcs.future("AckMessage", ACK)
        until(lambda: len(it.brokers.pending) == 3)
        for _ in range(3):
            it.on_loop(lambda: it.brokers.answer(ResponseCode.SUCCESS, queueOffset="7", msgId="0" * 32))
        assert acked.result().status.code == m.Code.OK
        assert sent.result().status.code == m.Code.OK


def test_a_stop_answers_waits_that_no_broker_ends() -> None:
    with proxy() as it, Rpcs(it.address) as rpcs:
        call = rpcs.streamed("ReceiveMessage", receive_request("g", "t"))
        until(lambda: len(it.brokers.pending) == 1)
        it.on_loop(it.service.end_waits)
        first, _ = list(call)
        assert (first.status.code, first.status.message) == (m.Code.MESSAGE_NOT_FOUND, "no new message")
        it.on_loop(lambda: it.brokers.answer(ResponseCode.POLLING_TIMEOUT))


def test_a_receive_that_waits_is_not_counted() -> None:
    with proxy(grpc_consumer_thread_queue_capacity=1) as it, Rpcs(it.address) as rpcs:
        calls = [rpcs.streamed("ReceiveMessage", receive_request("g", "t")) for _ in range(3)]
        until(lambda: len(it.brokers.pending) == 3)
        for _ in calls:
            it.on_loop(lambda: it.brokers.answer(ResponseCode.POLLING_TIMEOUT))
        for call in calls:
            assert next(call).status.code == m.Code.MESSAGE_NOT_FOUND


# --- long requests ---


def test_a_request_without_messages_has_an_own_limit() -> None:
    with proxy() as it, Rpcs(it.address) as rpcs:
        long = m.QueryRouteRequest(topic=m.Resource(name="x" * REQUEST_BYTES_MAX))
        status = rpcs.QueryRoute(long).status
        assert status.code == m.Code.BAD_REQUEST
        assert len(status.message) < 200
        status = rpcs.SendMessage(send_request("t", bytes(5 << 20))).status
        assert status.code == m.Code.MESSAGE_BODY_TOO_LARGE
        stream = rpcs.telemetry()
        stream.send(_trace(TELEMETRY_BYTES_MAX + 1))
        assert stream.next().status.code == m.Code.BAD_REQUEST
        with pytest.raises(StopIteration):
            stream.next()


def _trace(size: int) -> m.TelemetryCommand:
    command = m.TelemetryCommand()
    command.thread_stack_trace.thread_stack_trace = "x" * size
    return command


def test_many_acknowledgements_leave_turns_to_others() -> None:
    with proxy() as it, Rpcs(it.address) as rpcs:
        request = m.AckMessageRequest(group=GROUP, topic=TOPIC, entries=[ACK.entries[0]] * 1000)
        call = rpcs.future("AckMessage", request)
        until(lambda: len(it.brokers.pending) == 1000)
        for _ in range(1000):
            it.on_loop(it.brokers.answer)
        assert len(call.result().entries) == 1000


# --- settings ---


def _refusal(stream: Telemetry) -> str:
    with pytest.raises(grpc.RpcError) as refused:
        stream.next()
    error: Any = refused.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    return str(error.details())


def test_settings_are_limited_in_names_and_bytes() -> None:
    with proxy() as it, Rpcs(it.address) as rpcs:
        settings = settings_of_producer(*(f"t{number}" for number in range(NAMES_MAX)))
        rpcs.begin(settings)
        settings.publishing.topics.add(name="one-more")
        stream = rpcs.telemetry()
        stream.send(m.TelemetryCommand(settings=settings))
        assert f"{NAMES_MAX + 1} topics" in _refusal(stream)
        settings = settings_of_producer("t")
        settings.user_agent.hostname = "x" * SETTINGS_BYTES_MAX
        stream = rpcs.telemetry()
        stream.send(m.TelemetryCommand(settings=settings))
        assert "above the limit" in _refusal(stream)
        [client] = it.service.clients.all()
        assert len(client.topics) == NAMES_MAX


def test_clients_are_limited_and_those_without_a_stream_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "CLIENTS_BYTES_MAX", 4 * CLIENT_BYTES)  # and their settings
    with proxy() as it, Rpcs(it.address) as one:
        first, *_ = streams = [_begun(one, f"c{number}") for number in range(3)]
        refused = _opened(one, "c3")
        refused.send(m.TelemetryCommand(settings=settings_of_consumer("g", "t")))
        status = refused.next().status
        assert (status.code, status.message) == (m.Code.TOO_MANY_REQUESTS, "too many clients: 3")
        first.close()
        until(lambda: any(client.stream is None for client in it.service.clients.all()))
        streams.append(_begun(one, "c3"))
        assert sorted(client.client_id for client in it.service.clients.all()) == ["c1", "c2", "c3"]
        assert it.brokers.links[0].is_closed
        for stream in streams:
            stream.close()


def _opened(rpcs: Rpcs, client_id: str) -> Telemetry:
    rpcs.metadata["x-mq-client-id"] = client_id
    return rpcs.telemetry()


def _begun(rpcs: Rpcs, client_id: str) -> Telemetry:
    stream = _opened(rpcs, client_id)
    stream.send(m.TelemetryCommand(settings=settings_of_consumer("g", "t")))
    assert stream.next().status.code == m.Code.OK
    return stream


# --- time ---


def test_a_client_without_heartbeats_is_forgotten() -> None:
    with proxy(channel_expired_timeout=200) as it, Rpcs(it.address) as silent, Rpcs(it.address) as alive:
        for rpcs in (silent, alive):
            rpcs.begin(settings_of_consumer("g", "t"))
        beat = m.HeartbeatRequest(group=GROUP, client_type=m.ClientType.SIMPLE_CONSUMER)
        end = time.monotonic() + SECONDS_MAX
        while len(list(it.service.clients.all())) > 1:
            assert time.monotonic() < end, "the silent one stays"
            assert alive.Heartbeat(beat).status.code == m.Code.OK
            time.sleep(0.02)
        assert silent.Heartbeat(beat).status.code == m.Code.UNRECOGNIZED_CLIENT_TYPE
        assert [link.is_closed for link in it.brokers.links].count(True) == 1


def test_a_question_that_a_client_does_not_answer_is_given_up() -> None:
    answers: list[Response] = []
    with proxy(grpc_proxy_relay_request_timeout_in_seconds=1) as it, Rpcs(it.address) as rpcs:
        stream, _ = rpcs.begin(settings_of_consumer("g", "t"))
        request = Command(RequestCode.GET_CONSUMER_RUNNING_INFO, {"jstackEnable": "true"})
        it.on_loop(lambda: it.brokers.asked[-1](Asked(request, BROKER, answers.append)))
        question = stream.next()
        until(lambda: bool(answers))
        [answer] = answers
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_BUSY, "call remote timeout")
        command = m.TelemetryCommand()
        command.thread_stack_trace.nonce = question.print_thread_stack_trace_command.nonce
        stream.send(command)  # too late
        rpcs.begin(settings_of_consumer("g", "t"))
        assert len(answers) == 1
