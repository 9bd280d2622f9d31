"""Locks of queues that need most of the brokers of a name.

When a slave acts for its master, consumers ask it for locks of their queues, while others may still hold them at the
master. With ``lockInStrictMode`` a broker that gets a lock request (41) asks the others of its name for the queues that
it grants, and grants those that most of ``totalReplicas`` grant. An unlock (42) counts at all of them.

Source: RocketMQ ``AdminBrokerProcessor#lockBatchMQ``, ``#unlockBatchMQ``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from firearrow.broker.context import BrokerContext
from firearrow.broker.groups.locks import QueueLocks
from firearrow.errors import FirearrowError, MessageError
from firearrow.logs import Log
from firearrow.net.access import OPEN, Access
from firearrow.net.client import Client
from firearrow.net.server import Answer, Handler, Peer
from firearrow.net.tasks import Tasks
from firearrow.services import Service
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import LockRequest, LockResult, MessageQueue, body_of
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand

log: Final = Log(__name__)

ASK_SECONDS_MAX: Final = 1.0  # Java: AdminBrokerProcessor#lockBatchMQ


class GroupLocks(Service):
    """Handlers of 41 and 42 in strict mode; the usual handlers, ``alone``, do the rest."""

    def __init__(
        self, context: BrokerContext, locks: QueueLocks, alone: Mapping[int, Handler], access: Access = OPEN
    ) -> None:
        super().__init__("group locks")
        self._settings = context.settings
        self._locks = locks
        self._replicas = context.replicas
        self._lock_alone = alone[RequestCode.LOCK_BATCH_MQ]
        self._unlock_alone = alone[RequestCode.UNLOCK_BATCH_MQ]
        self._client = Client(access=access)
        self._tasks = Tasks()

    async def stop(self) -> None:
        """Ask no broker any more."""
        await self._tasks.close()
        await self._client.close()

    def handlers(self) -> dict[int, Handler]:
        """Handlers of both codes."""
        return {int(RequestCode.LOCK_BATCH_MQ): self.lock, int(RequestCode.UNLOCK_BATCH_MQ): self.unlock}

    @property
    def _quorum(self) -> int:
        """Number of brokers that must grant a queue."""
        if not self._settings.broker.lock_in_strict_mode:
            return 1
        return self._settings.store.total_replicas // 2 + 1

    def _others(self) -> list[str]:
        own = self._settings.broker.broker_id
        return [address for key, address in self._replicas.members.items() if key != own]

    def lock(self, peer: Peer, request: AnyCommand) -> Answer:
        """41: lock queues, or keep them locked; answer with those that the client holds now."""
        quorum = self._quorum
        asked = body_of(request, LockRequest)
        if quorum <= 1 or asked.only_this_broker:
            return self._lock_alone(peer, request)
        held = self._locks.lock(asked.consumer_group, asked.mq_set, asked.client_id)
        peer.owed += 1
        work = self._lock(peer, request, replace(asked, mq_set=held), quorum)
        self._tasks.begin(work, "locks of the group")
        return None

    async def _lock(self, peer: Peer, request: AnyCommand, asked: LockRequest, quorum: int) -> None:
        given = Counter(set(asked.mq_set))
        for answer in await self._ask(RequestCode.LOCK_BATCH_MQ, asked):
            given.update(_given(answer))
        peer.owed -= 1
        held = [queue for queue in asked.mq_set if given[queue] >= quorum]
        peer.reply(request, Response(body=fastjson.dumps(LockResult(held))))

    def unlock(self, peer: Peer, request: AnyCommand) -> Answer:
        """42: unlock queues."""
        asked = body_of(request, LockRequest)
        if self._quorum > 1 and not asked.only_this_broker:
            self._tasks.begin(self._unlock(asked), "locks of the group")
        return self._unlock_alone(peer, request)

    async def _unlock(self, asked: LockRequest) -> None:
        await self._ask(RequestCode.UNLOCK_BATCH_MQ, asked)

    async def _ask(self, code: RequestCode, asked: LockRequest) -> list[AnyCommand | None]:
        """Ask the other brokers of the name; return None for each that did not answer."""
        body = fastjson.dumps(replace(asked, only_this_broker=True))
        return await asyncio.gather(*(self._ask_one(it, code, body) for it in self._others()))

    async def _ask_one(self, address: str, code: RequestCode, body: bytes) -> AnyCommand | None:
        try:
            return await self._client.call(address, code, body=body, timeout_seconds=ASK_SECONDS_MAX)
        except (OSError, FirearrowError) as error:
            log.warning("broker gives no locks", extra={"address": address, "error": error})
            return None


def _given(answer: AnyCommand | None) -> set[MessageQueue]:
    """Return the queues that another broker grants; none if it did not answer, or not readably."""
    if answer is None:
        return set()
    try:
        return set(fastjson.decode(answer.body, LockResult).lock_ok_mq_set)
    except MessageError as error:
        log.warning("broker gives no locks", extra={"error": error})
        return set()
