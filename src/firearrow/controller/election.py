"""Choice of the next master.

Candidates are the living brokers in sync: no other broker is sure to have every acknowledged message. If none of them
lives, and ``enableElectUncleanMaster`` allows it, all living brokers are candidates. A living master stays, unless the
request names another broker; a named broker must be a candidate. Otherwise the candidate with the most data wins: the
latest epoch, then the highest offset, then the smallest priority number. The very first master is the first broker that
asks, because none has data yet.

Source: RocketMQ's ``DefaultElectPolicy``, ``ReplicasInfoManager#electMaster``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from firearrow.controller.replicas import BrokerSet
from firearrow.wire.headers import ElectMaster

NOBODY_ASKED: Final = -1  # the broker id of an election that a controller begins on its own


class Standing(NamedTuple):
    """Position of a broker's log and its priority, from its heartbeats."""

    epoch: int
    max_offset: int
    priority: int


class Living(Protocol):
    """Source of the living brokers and their standings."""

    def is_alive(self, cluster: str, name: str, broker_id: int) -> bool:
        """Tell whether a broker has sent a heartbeat in time."""
        ...

    def standing(self, cluster: str, name: str, broker_id: int) -> Standing:
        """Return the standing of a living broker."""
        ...


def elected(name: str, found: BrokerSet, lives: Living, header: ElectMaster, *, is_unclean_allowed: bool) -> int | None:
    """Return the id of the master to be, which may be the present one; None if there is no candidate."""
    is_first = found.master_epoch == 0 and header.broker_id != NOBODY_ASKED
    if is_first and header.broker_id in found.members:
        return header.broker_id
    wanted = header.broker_id if header.designate_elect else None
    groups: list[Iterable[int]] = [found.in_sync]
    if is_unclean_allowed:
        groups.append(found.members)
    for group in groups:
        chosen = _chosen(name, found, lives, group, wanted)
        if chosen is not None:
            return chosen
    return None


def _chosen(name: str, found: BrokerSet, lives: Living, group: Iterable[int], wanted: int | None) -> int | None:
    candidates = [one for one in sorted(group) if lives.is_alive(found.cluster, name, one)]
    if wanted is not None:
        return wanted if wanted in candidates else None
    if found.master in candidates:
        return found.master
    # Java: DefaultElectPolicy compares offsets by an int, so a broker more than 2 GiB ahead loses.
    return min(candidates, key=lambda one: _rank(lives.standing(found.cluster, name, one)), default=None)


def _rank(standing: Standing) -> tuple[int, int, int]:
    return -standing.epoch, -standing.max_offset, standing.priority
