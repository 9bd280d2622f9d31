"""Locks of queues: the client of each group that holds a queue, for consumption in order.

A lock is a lease: its owner renews it every 20 s, and it lapses after 60 s without a renewal, so the queues of a dead
client go to the others. Source: RocketMQ's ``RebalanceLockManager``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from firearrow.broker.groups.clients import CLIENT_CHARS_MAX
from firearrow.clock import Clock
from firearrow.errors import BrokerError
from firearrow.wire.client_bodies import MessageQueue
from firearrow.wire.codes import ResponseCode

LOCKS_MAX: Final = 200_000
"""Limit for all groups: about 80 MB. A topic of 1,000 queues that ten groups share in order has 10,000."""
_CHARS_MAX: Final = 255  # of a topic, a broker, a group
LEASE_SECONDS: Final = 60.0  # RocketMQ: rocketmq.broker.rebalance.lockMaxLiveTime


class QueueLocks:
    """The locks of all groups."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By group: the owner of each queue, and the end of its lease.
        self._leases: dict[str, dict[MessageQueue, tuple[str, float]]] = {}
        self._count = 0

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> list[MessageQueue]:
        """Lock queues for a client, or renew its locks; return the queues that it holds now.

        Raises BrokerError for names that are too long, or if there are too many locks.
        """
        now = self._clock.monotonic()
        queues = list(queues)
        self._check(group, queues, client_id)
        leases = self._leases.setdefault(group, {})
        held = []
        for queue in queues:
            owner, until = leases.get(queue) or (client_id, 0.0)
            if owner == client_id or until <= now:
                self._count += queue not in leases
                leases[queue] = (client_id, now + LEASE_SECONDS)
                held.append(queue)
        return held

    def _check(self, group: str, queues: Sequence[MessageQueue], client_id: str) -> None:
        longest = max((max(len(it.topic), len(it.broker_name)) for it in queues), default=0)
        if max(longest, len(group)) > _CHARS_MAX or len(client_id) > CLIENT_CHARS_MAX:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"a topic, broker or group has more than {_CHARS_MAX} characters, "
                f"or the client id more than {CLIENT_CHARS_MAX}",
            )
        if self._count + len(queues) > LOCKS_MAX:
            known = self._leases.get(group, {})
            more = sum(queue not in known for queue in set(queues))
            if self._count + more > LOCKS_MAX:
                raise BrokerError(
                    ResponseCode.SYSTEM_BUSY, f"{self._count} queues are locked, the limit is {LOCKS_MAX}"
                )

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Unlock the queues that the client holds; other clients' queues stay locked."""
        leases = self._leases.get(group)
        if leases is None:
            return
        for queue in queues:
            if leases.get(queue, (None, 0.0))[0] == client_id:  # "" may be an id
                del leases[queue]
                self._count -= 1
        if not leases:
            del self._leases[group]

    def holds_any(self, group: str) -> bool:
        """Tell whether a client of a group holds a queue: then the group consumes in order."""
        now = self._clock.monotonic()
        return any(until > now for _, until in self._leases.get(group, {}).values())

    def expire(self) -> None:
        """Remove leases that have ended; they have no effect already."""
        now = self._clock.monotonic()
        for group, leases in list(self._leases.items()):
            living = {queue: lease for queue, lease in leases.items() if lease[1] > now}
            self._count -= len(leases) - len(living)
            if living:
                self._leases[group] = living
            else:
                del self._leases[group]
