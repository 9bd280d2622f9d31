"""The in-sync set, agreed on between master and controller: the brokers that have every acknowledged message.

The next master is a member of this set, so a message is safe when all members have it. The master proposes a change to
the controller, which decides. Until the master knows the decision, both sets count. A broker that may have joined must
have a message before its acknowledgement, and so must a broker that may have left. The same holds for a *candidate*: it
will be proposed once its log contains every message that was acknowledged before. Otherwise it would never catch up
with a log that keeps growing.

Java: AutoSwitchHAService#removeConnection drops a lost slave before the controller has agreed. If the master is killed
then, it has acknowledged messages that its successor may not have.
"""

from __future__ import annotations

from collections.abc import Iterable

Ids = frozenset[int]


class InSync:
    """The in-sync set of the master ``own_id``; ``version`` counts its changes."""

    def __init__(self, own_id: int, members: Iterable[int], version: int) -> None:
        self.own_id = own_id
        self.members: Ids = frozenset(members) | {own_id}
        self.version = version
        self.wanted: Ids | None = None
        self.candidates: set[int] = set()
        self._proposed: Ids = frozenset()  # members of any set that may have been adopted

    @property
    def in_force(self) -> Ids:
        """The brokers whose copies count."""
        return self.members | self._proposed | self.candidates

    @property
    def others(self) -> Ids:
        """The same brokers without the master."""
        return self.in_force - {self.own_id}

    @property
    def next_members(self) -> Ids:
        """The members once all proposals are adopted."""
        return self.members if self.wanted is None else self.wanted

    def join(self, broker_id: int) -> bool:
        """Propose a further member; return True if the proposal is new."""
        return self._propose(self.next_members | {broker_id})

    def leave(self, broker_ids: Iterable[int]) -> bool:
        """Propose to remove members; return True if the proposal is new."""
        return self._propose(self.next_members - frozenset(broker_ids) | {self.own_id})

    def _propose(self, members: Ids) -> bool:
        if members == self.next_members:
            return False
        self.wanted = members
        self._proposed |= members
        return True

    def decided(self, members: Iterable[int], version: int) -> bool:
        """Adopt the controller's decision, unless its version is older; return True if other copies count now."""
        if version < self.version:
            return False
        before = self.in_force
        self.members, self.version = frozenset(members) | {self.own_id}, version
        self.wanted, self._proposed = None, frozenset()
        return self.in_force != before
