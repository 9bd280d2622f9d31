"""Which client of a group holds which queue, for consumers that keep the order of messages.

A lock is a lease: its owner renews it every 20 s, and it lapses after 60 s without that, so a
client that dies gives its queues to the others. Source: upstream ``RebalanceLockManager``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from firearrow.clock import Clock
from firearrow.wire.client_bodies import MessageQueue

LEASE_SECONDS: Final = 60.0  # upstream: rocketmq.broker.rebalance.lockMaxLiveTime


class QueueLocks:
    """The locks of all groups."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By group: the owner of each queue, and when its lease ends.
        self._leases: dict[str, dict[MessageQueue, tuple[str, float]]] = {}

    def lock(
        self, group: str, queues: Iterable[MessageQueue], client_id: str
    ) -> list[MessageQueue]:
        """Lock queues for a client, or renew its locks; give those that it holds now."""
        now = self._clock.monotonic()
        leases = self._leases.setdefault(group, {})
        held = []
        for queue in queues:
            owner, until = leases.get(queue, (client_id, now))
            if owner == client_id or until <= now:
                leases[queue] = (client_id, now + LEASE_SECONDS)
                held.append(queue)
        return held

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Give back the queues that the client holds; those of others stay theirs."""
        leases = self._leases.get(group)
        if leases is None:
            return
        for queue in queues:
            if leases.get(queue, (None, 0.0))[0] == client_id:  # "" may be an id
                del leases[queue]
        if not leases:
            del self._leases[group]

    def holds_any(self, group: str) -> bool:
        """Whether a client of a group holds a queue: then the group consumes in order."""
        now = self._clock.monotonic()
        return any(until > now for _, until in self._leases.get(group, {}).values())

    def expire(self) -> None:
        """Forget leases that have ended, which count for nothing already."""
        now = self._clock.monotonic()
        for group, leases in list(self._leases.items()):
            living = {queue: lease for queue, lease in leases.items() if lease[1] > now}
            if living:
                self._leases[group] = living
            else:
                del self._leases[group]
