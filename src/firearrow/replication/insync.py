"""Who has all that was acknowledged: the set that a master agrees on with the controller.

The next master is one of this set, so a message is safe when its members have it. A change is
proposed, sent to the controller, and decided there. While nobody knows whether it was adopted, both
sets count: a broker that may be in the set must have a message before that is acknowledged, and one
that may have left still must. So does a *candidate*, which is to be proposed when it has what was
acknowledged before: else it would never have all of a log that grows all the time.

Java: AutoSwitchHAService#removeConnection leaves a lost slave out before the controller has agreed;
a master that is killed then has acknowledged what its successor may not have.
"""

from __future__ import annotations

from collections.abc import Iterable

Ids = frozenset[int]


class InSync:
    """The set of the master ``own_id``; ``version`` is the how manieth it is."""

    def __init__(self, own_id: int, members: Iterable[int], version: int) -> None:
        self.own_id = own_id
        self.members: Ids = frozenset(members) | {own_id}
        self.version = version
        self.wanted: Ids | None = None
        self.candidates: set[int] = set()
        self._proposed: Ids = frozenset()  # whoever is in a set that may have been adopted

    @property
    def in_force(self) -> Ids:
        """Whose copies count."""
        return self.members | self._proposed | self.candidates

    @property
    def others(self) -> Ids:
        """The same without the master."""
        return self.in_force - {self.own_id}

    @property
    def next_members(self) -> Ids:
        """The members as they will be if all goes well."""
        return self.members if self.wanted is None else self.wanted

    def join(self, broker_id: int) -> bool:
        """Propose a further member; say if that is new."""
        return self._propose(self.next_members | {broker_id})

    def leave(self, broker_ids: Iterable[int]) -> bool:
        """Propose to go on without some; say if that is new."""
        return self._propose(self.next_members - frozenset(broker_ids) | {self.own_id})

    def _propose(self, members: Ids) -> bool:
        if members == self.next_members:
            return False
        self.wanted = members
        self._proposed |= members
        return True

    def decided(self, members: Iterable[int], version: int) -> bool:
        """Take over what the controller says; say if it is news. An earlier set is none."""
        if version < self.version:
            return False
        before = self.in_force
        self.members, self.version = frozenset(members) | {self.own_id}, version
        self.wanted, self._proposed = None, frozenset()
        return self.in_force != before
