"""Commits and rollbacks of many half messages, several in flight.

A broker of RocketMQ delivers a half again when it is committed again, so no request here is repeated. After an error
the caller finds out which messages have arrived before it goes on (``firearrow.spark.epochs``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from firearrow.client.producer.transactions import Decision, end_fields
from firearrow.errors import BrokerError, BrokerUnavailable, NotDurable
from firearrow.net.client import Client
from firearrow.net.futures import Pending
from firearrow.wire.codes import RequestCode, ResponseCode

IN_FLIGHT_MAX: Final = 256  # to one broker: as many as it decides in one turn


class HalfPlace(NamedTuple):
    """Place of a half message in its broker's queue of halves and in the log."""

    half_offset: int
    physical_offset: int


class HalfRun(NamedTuple):
    """Half messages of one topic and broker. With ``in_order`` each waits until the one before is decided."""

    topic: str
    broker: str
    in_order: bool
    places: Iterable[HalfPlace]


class HalfEnds:
    """Decides half messages of a producer group; ``masters`` gives the addresses of brokers."""

    def __init__(self, client: Client, masters: Mapping[str, str], group: str) -> None:
        self._client = client
        self._masters = masters
        self._group = group

    async def decide(self, runs: Iterable[HalfRun], decision: Decision) -> None:
        """Decide the halves of all runs at the same time; brokers have answered each when it returns.

        Raises BrokerError, ConnectionError or TimeoutError. Other halves may be decided in that case, but no request
        is in flight any more.
        """
        outcomes = await asyncio.gather(*(self._run(run, decision) for run in runs), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _run(self, run: HalfRun, decision: Decision) -> None:
        address = self._masters.get(run.broker)
        if address is None:
            code = ResponseCode.SERVICE_NOT_AVAILABLE
            raise BrokerUnavailable(code, f"no name server knows a master of broker {run.broker!r}")
        in_flight_max = 1 if run.in_order else IN_FLIGHT_MAX
        in_flight: deque[tuple[HalfPlace, Pending]] = deque()
        fault: OSError | BrokerError | None = None
        for place in run.places:
            if len(in_flight) == in_flight_max:
                fault = await self._fault(run, address, *in_flight.popleft())
            if fault is not None:
                break
            fields = end_fields(self._group, run.topic, *place, decision, from_check=False)
            try:
                pending = await self._client.begin(address, RequestCode.END_TRANSACTION, fields)
            except OSError as error:
                fault = error
                break
            in_flight.append((place, pending))
        for place, pending in in_flight:
            fault = await self._fault(run, address, place, pending) or fault
        if fault is not None:
            raise fault

    async def _fault(
        self, run: HalfRun, address: str, place: HalfPlace, pending: Pending
    ) -> OSError | BrokerError | None:
        """Wait for an answer; return the error if the half may be undecided."""
        try:
            answer = await pending
        except OSError as error:
            return error
        if answer.code == 0:
            return None
        remark = (
            f"{answer.remark or 'no remark'}; half message at {place.physical_offset} in the log of {run.broker!r}, "
            f"for topic {run.topic!r}"
        )
        refusal = BrokerError.of(answer.code, remark, address)
        return None if isinstance(refusal, NotDurable) else refusal
