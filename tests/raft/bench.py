"""Nodes side by side, between which a test carries the messages itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from firearrow.raft import LogEntry, Message, Node, Saved, Timing

TIMING = Timing(heartbeat=1, election=10)


def entries(*terms: int) -> list[LogEntry]:
    """A log whose entries have these terms."""
    return [LogEntry(index, term, b"%d" % index) for index, term in enumerate(terms, 1)]


class Bench:
    """A group by name, with what each has saved before; nodes never lose anything.

    All wait as long as they can before they want to lead.
    """

    def __init__(self, saved: Mapping[str, Saved], kind: type[Node] = Node, entries_max: int = 100) -> None:
        self.names = list(saved)
        self.nodes = {
            name: kind(name, self.names, state, lambda most: most - 1, TIMING, entries_max)
            for name, state in saved.items()
        }
        self.applied: dict[str, list[LogEntry]] = {name: [] for name in saved}
        self.delivered: list[Message] = []
        self.waiting: list[Message] = []

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def carry(self, among: Collection[str] = (), rounds: int = 1000) -> None:
        """Deliver what is sent between some of the nodes (none given: all), and what comes of it,
        until nothing is; the rest is lost."""
        among = among or self.names
        for _ in range(rounds):
            self._collect()
            messages, self.waiting = self.waiting, []
            heard = [it for it in messages if it.sender in among and it.to in among]
            if not heard:
                return
            for message in heard:
                self.delivered.append(message)
                self.nodes[message.to].receive(message)
        self._collect()

    def tick(self, names: Iterable[str], ticks: int) -> None:
        """Let time pass for some."""
        for name in names:
            for _ in range(ticks):
                self.nodes[name].tick()

    def elect(self, name: str, among: Collection[str] = (), *, settles: bool = True) -> None:
        """Have a node lead, by the votes of some, who have heard nobody for long.

        What it then has to say is under way, unless it ``settles``.
        """
        self.tick((other for other in among or self.names if other != name), TIMING.election)
        self._collect()
        self.waiting.clear()
        ticks = 0
        while not self.nodes[name].is_leader:
            if not self._is_under_way():
                self.tick([name], 1)
                ticks += 1
            self.carry(among, rounds=1)
            assert ticks < 4 * TIMING.election, f"{name} is not elected"
        if settles:
            self.carry(among)

    def _is_under_way(self) -> bool:
        self._collect()
        return bool(self.waiting)

    def _collect(self) -> None:
        for name, node in self.nodes.items():
            ready = node.take()
            self.waiting += ready.messages
            if ready.snapshot is not None:
                self.applied[name] = [LogEntry(ready.snapshot.index, ready.snapshot.term)]
            self.applied[name] += ready.committed
