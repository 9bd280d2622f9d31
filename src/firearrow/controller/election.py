"""Who becomes master.

Candidates are the brokers in sync that live: nobody else has all that was acknowledged. Only where
that is allowed (``enableElectUncleanMaster``), and none of them lives, all that live are. A master
that lives stays, unless another one is named; who is named must be a candidate. Else the one with
the most data is elected: the latest epoch, then the highest offset, then the smallest priority
number. The first master of all is whoever asks first, as nobody has any data yet.

Source: upstream ``DefaultElectPolicy``, ``ReplicasInfoManager#electMaster``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from firearrow.controller.replicas import BrokerSet
from firearrow.wire.headers import ElectMaster

NOBODY_ASKED: Final = -1  # the broker id of an election that a controller begins itself


class Standing(NamedTuple):
    """What a broker says in its heartbeats that it has."""

    epoch: int
    max_offset: int
    priority: int


class Living(Protocol):
    """Knows which brokers live, and how they stand."""

    def is_alive(self, cluster: str, name: str, broker_id: int) -> bool:
        """Tell whether a broker was heard lately."""
        ...

    def standing(self, cluster: str, name: str, broker_id: int) -> Standing:
        """How a broker that lives stands."""
        ...


def elected(name: str, found: BrokerSet, lives: Living, header: ElectMaster, *, is_unclean_allowed: bool) -> int | None:
    """The id of who is to be master, which may be who it is; None: nobody can be."""
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
    # Java: DefaultElectPolicy compares offsets by an int, so that one more than 2 GiB ahead loses.
    return min(candidates, key=lambda one: _rank(lives.standing(found.cluster, name, one)), default=None)


def _rank(standing: Standing) -> tuple[int, int, int]:
    return -standing.epoch, -standing.max_offset, standing.priority
