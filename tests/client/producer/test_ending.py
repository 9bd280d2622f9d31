"""Decisions about half messages: all answered, in order if they must be, and none sent twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from firearrow.client.producer.ending import IN_FLIGHT_MAX, HalfEnds, HalfPlace, HalfRun
from firearrow.client.producer.transactions import Decision
from firearrow.errors import BrokerError, BrokerFailed, BrokerUnavailable
from firearrow.net.client import Client
from firearrow.net.server import Answer, Peer
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import EndTransaction
from tests.net.background import answering, in_thread


class Decided:
    """A broker that notes decisions, and refuses or drops some."""

    def __init__(self, *, refused: Iterable[int] = (), cut: int | None = None, code: int = 1) -> None:
        self.seen: list[EndTransaction] = []
        self.refused = frozenset(refused)
        self.cut = cut
        self.code = code

    def end(self, peer: Peer, request: AnyCommand) -> Answer:
        header = fields_of(request, EndTransaction)
        self.seen.append(header)
        if header.tran_state_table_offset == self.cut:
            peer.abort()
            return None
        if header.tran_state_table_offset in self.refused:
            raise BrokerError(self.code, "as told")
        return Response()


def decide(broker: Decided, *runs: HalfRun, decision: Decision = Decision.COMMIT) -> list[int]:
    """Decide halves; gives the offsets that the broker has seen."""

    async def work(address: str) -> None:
        client = Client()
        try:
            await HalfEnds(client, {"a": address}, "group").decide(runs, decision)
        finally:
            await client.close()

    with in_thread(lambda: answering({RequestCode.END_TRANSACTION: broker.end})) as address:
        asyncio.run(work(address))
    return [header.tran_state_table_offset for header in broker.seen]


def run(*half_offsets: int, in_order: bool = False, broker: str = "a") -> HalfRun:
    return HalfRun("T", broker, in_order, [HalfPlace(n, 1000 + n) for n in half_offsets])


def test_each_half_is_decided_once() -> None:
    broker = Decided()
    numbers = range(3 * IN_FLIGHT_MAX)
    assert sorted(decide(broker, run(*numbers[::2]), run(*numbers[1::2]), decision=Decision.ROLLBACK)) == [*numbers]
    first = broker.seen[0]
    assert (first.producer_group, first.commit_or_rollback, first.from_transaction_check) == ("group", 12, False)
    assert all(header.commit_log_offset == 1000 + header.tran_state_table_offset for header in broker.seen)


def test_a_run_in_order_ends_at_its_first_fault() -> None:
    broker = Decided(refused=[5])
    with pytest.raises(BrokerFailed, match=r"as told; half message at 1005 in the log of 'a', for topic 'T'"):
        decide(broker, run(*range(10), in_order=True))
    assert [header.tran_state_table_offset for header in broker.seen] == list(range(6))


def test_after_a_fault_all_that_is_in_flight_is_answered() -> None:
    broker = Decided(refused=[3])
    with pytest.raises(BrokerFailed):
        decide(broker, run(*range(IN_FLIGHT_MAX + 10)))
    assert [header.tran_state_table_offset for header in broker.seen][:IN_FLIGHT_MAX] == list(range(IN_FLIGHT_MAX))


def test_a_lost_connection_is_no_second_decision() -> None:
    broker = Decided(cut=7)
    with pytest.raises(ConnectionError):
        decide(broker, run(*range(20), in_order=True))
    assert [header.tran_state_table_offset for header in broker.seen] == list(range(8))


def test_a_decision_that_a_replica_did_not_confirm_in_time_counts() -> None:
    assert decide(Decided(refused=[0, 1], code=12), run(0, 1)) == [0, 1]


def test_a_broker_without_an_address() -> None:
    with pytest.raises(BrokerUnavailable, match="no name server knows a master of broker 'gone'"):
        decide(Decided(), run(0, broker="gone"))
