"""Acknowledgements: several in one request to a broker, and beside a renewal in progress."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import cast

import pytest

from firearrow.clock import SystemClock
from firearrow.net.replies import run
from firearrow.net.server import Answer, Handler, Peer
from firearrow.proxy import messages as m
from firearrow.proxy.clients import Client
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.consuming import BATCH_BITS_MAX, is_batchable
from firearrow.proxy.handles import Receipt, Renewed, parse_receipt
from firearrow.proxy.renewal import Renewal
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from firearrow.wire.codes import RequestCode
from firearrow.wire.frame import AnyCommand
from tests.broker.serving import until
from tests.proxy.rpcs import Rpcs, receive_request, send_request, settings_of_consumer
from tests.proxy.silentbrokers import BROKER, SilentBrokers, SilentLink


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    short = {"grpcClientConsumerMinLongPollingTimeoutMillis": 50, "minInvisibleTimeMillsForRecv": 1}
    with EmbeddedCluster(grpc=True, enableBatchAck=True, config=short) as found:
        yield found


def noted(cluster: BlockingCluster, *codes: RequestCode) -> list[int]:
    """Return a list that gets the code of each request that a broker serves alone."""
    handlers = cast(dict[int, Handler], cluster.brokers[0].server.server.handlers)
    asked: list[int] = []

    def note(code: int, handler: Handler) -> Handler:
        def served(peer: Peer, request: AnyCommand) -> Answer:
            asked.append(code)
            return handler(peer, request)

        return served

    for code in codes:
        handlers[code] = note(code, handlers[code])
    return asked


def test_entries_of_one_call_are_gathered() -> None:
    with EmbeddedCluster(grpc=True) as cluster, Rpcs(cluster.brokers[0].grpc) as rpcs:
        cluster.create_topic("t", queues=1)
        rpcs.begin(settings_of_consumer("g", "t"))
        rpcs.SendMessage(send_request("t", *(b"%d" % number for number in range(8))))
        messages = rpcs.received(receive_request("g", "t"))
        asked = noted(cluster, RequestCode.ACK_MESSAGE)
        assert rpcs.AckMessage(rpcs.ack_request("g", "t", *messages[:7])).status.code == m.Code.OK
        assert asked == []
        assert rpcs.AckMessage(rpcs.ack_request("g", "t", messages[7])).status.code == m.Code.OK
        assert asked == [RequestCode.ACK_MESSAGE]


def test_entries_of_one_call_are_one_request_with_a_result_for_each(cluster: BlockingCluster) -> None:
    cluster.create_topic("t", queues=1)
    with Rpcs(cluster.brokers[0].grpc) as rpcs:
        rpcs.begin(settings_of_consumer("g", "t"))
        assert rpcs.received(receive_request("g", "t", wait_s=0)) == []
        rpcs.SendMessage(send_request("t", *(b"%d" % number for number in range(8))))
        messages = [
            message for _ in range(8) for message in rpcs.received(receive_request("g", "t", count=1, invisible_s=2))
        ]
        assert len(messages) == 8
        asked = noted(cluster, RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE)
        request = rpcs.ack_request("g", "t", *messages[:7])
        request.entries.add(message_id="no", receipt_handle="none")
        answer = rpcs.AckMessage(request)
        assert answer.status.code == m.Code.MULTIPLE_RESULTS
        assert [entry.status.code for entry in answer.entries] == [m.Code.OK] * 7 + [m.Code.INVALID_RECEIPT_HANDLE]
        assert [entry.message_id for entry in answer.entries[:7]] == [
            message.system_properties.message_id for message in messages[:7]
        ]
        assert asked == [RequestCode.BATCH_ACK_MESSAGE]
        [again] = rpcs.received(receive_request("g", "t", wait_s=20))
        assert again.body == messages[7].body


def test_a_handle_with_a_far_offset_is_no_bit() -> None:
    def handle(first: int, offset: int, revive: int = 0) -> bool:
        return is_batchable(parse_receipt(f"{first} 1 1 {revive} 0 {BROKER} 0 {offset} 7").handle)

    assert handle(5, 5)
    assert handle(0, BATCH_BITS_MAX - 1)
    assert not handle(0, BATCH_BITS_MAX)
    assert not handle(0, 1 << 62)
    assert not handle(5, 4)
    assert not handle(5, 5, 999)  # popped in order


# --- renewals in progress ---


LATER_MS = 1 << 42  # it needs no further renewal


def receipt(at_ms: int) -> Receipt:
    return parse_receipt(f"3 {at_ms} 60000 0 0 {BROKER} 0 3 7")


class Renewing:
    """A renewal that its broker has not answered yet."""

    def __init__(self, lock_ms: int) -> None:
        config = ProxyConfig(
            renew_schedule_period_millis=1, renew_ahead_time_millis=60_000, lock_timeout_ms_in_handle_group=lock_ms
        )
        self.brokers = SilentBrokers()
        self.newest = Renewed()
        self.renewal = Renewal(self.newest, config, SystemClock())
        client = Client("c", settings_of_consumer("g", "t"), None)
        client.link = SilentLink(self.brokers)
        self.first = receipt(int(time.time() * 1000))
        self.renewal.add(client, "g", "t", self.first, 0)
        self.done: list[None] = []

    def answer(self) -> None:
        """Answer the renewal."""
        self.brokers.answer(popTime=str(LATER_MS), invisibleTime="60000", reviveQid="7")

    def wait(self) -> None:
        """Wait for the renewal as a call does."""
        run(self.renewal.settled("g", "t", self.first), self.done.append, lambda error: pytest.fail(str(error)))


def test_a_call_waits_for_a_renewal_of_its_message() -> None:
    async def main() -> None:
        it = Renewing(20_000)
        it.wait()
        assert it.done == [None]  # none is in progress
        await until(lambda: bool(it.brokers.pending))
        it.wait()
        it.wait()
        assert len(it.done) == 1
        it.answer()
        await until(lambda: len(it.done) == 3)
        assert it.newest.newest("g", "t", it.first).handle.pop_ms == LATER_MS
        assert it.renewal.in_progress == 0
        it.renewal.stop()

    asyncio.run(main())


def test_a_call_does_not_wait_for_ever() -> None:
    async def main() -> None:
        it = Renewing(20)
        await until(lambda: bool(it.brokers.pending))
        it.wait()
        await until(lambda: bool(it.done))
        assert it.renewal.in_progress == 1
        it.answer()
        assert it.renewal.in_progress == 0
        it.renewal.stop()

    asyncio.run(main())
