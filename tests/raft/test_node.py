"""What a node does, one rule a test; whatever happens to all of them is ``test_simulation``."""

from __future__ import annotations

import pytest

from firearrow.errors import MessageError
from firearrow.raft import Append, Appended, AskVote, Install, LogEntry, Message, Node, Role, Saved, StateSnapshot, Vote
from firearrow.raft.messages import STEP_MAX
from tests.raft.bench import TIMING, Bench, entries
from tests.raft.simulation import Checker, Violation

THREE = {"n0": Saved(), "n1": Saved(), "n2": Saved()}


def test_a_node_alone_leads_and_agrees_with_itself() -> None:
    bench = Bench({"n0": Saved()})
    bench.elect("n0")
    assert bench["n0"].propose(b"x") == 2
    ready = bench["n0"].take()
    assert ready.saved == Saved(1, "n0", [LogEntry(2, 1, b"x")])
    assert ready.committed == [LogEntry(2, 1, b"x")]
    assert bench["n0"].take() == (None, [], None, [])


def test_a_leader_is_elected_and_entries_are_agreed_on() -> None:
    bench = Bench(THREE)
    bench.elect("n1")
    assert [node.leader for node in bench.nodes.values()] == ["n1", "n1", "n1"]
    assert bench["n0"].propose(b"not here") is None
    bench["n1"].propose(b"x")
    bench.carry()
    bench.tick(["n1"], 1)  # the others hear of it with the next message
    bench.carry()
    assert [list(log) for log in bench.applied.values()] == [[LogEntry(1, 1), LogEntry(2, 1, b"x")]] * 3


def test_two_of_three_agree_one_does_not() -> None:
    bench = Bench(THREE)
    bench.elect("n0")
    bench["n0"].propose(b"with one")
    bench.carry(["n0", "n1"])
    assert bench["n0"].committed == 2
    bench["n0"].propose(b"with nobody")
    bench.carry(["n0"])
    assert bench["n0"].committed == 2


def test_who_comes_back_does_not_disturb() -> None:
    """A node that was cut off has tried to be elected: that costs no term."""
    bench = Bench(THREE)
    bench.elect("n0")
    bench.tick(["n2"], 5 * TIMING.election)
    bench.carry(["n0", "n1"])
    assert (bench["n2"].role, bench["n2"].term) == (Role.TRIAL, 1)
    bench.tick(["n2"], 2 * TIMING.election)
    bench.tick(["n0"], 1)
    bench.carry()
    assert (bench["n0"].role, bench["n2"].leader, bench["n2"].term) == (Role.LEADER, "n0", 1)


def test_candidates_are_not_listened_to_while_a_leader_is_heard() -> None:
    bench = Bench(THREE)
    bench.elect("n0")
    asking = AskVote(sender="n2", to="n1", term=9, last_index=9, last_term=9, is_trial=False)
    bench["n1"].receive(asking)
    assert (bench["n1"].term, bench["n1"].take().messages) == (1, [])
    bench.tick(["n1"], TIMING.election - 1)
    bench["n1"].receive(asking)
    assert bench["n1"].term == 1
    bench.tick(["n1"], 1)
    bench["n1"].receive(asking)
    assert bench["n1"].term == 9


def test_a_leader_that_hears_no_majority_steps_down() -> None:
    bench = Bench(THREE)
    bench.elect("n0")
    bench.tick(["n0"], TIMING.election)  # whom it has heard before counts once
    assert bench["n0"].is_leader
    bench.tick(["n0"], TIMING.election)
    assert not bench["n0"].is_leader
    assert bench["n0"].propose(b"x") is None


def test_a_node_votes_once_in_a_term_also_after_a_restart() -> None:
    node = Node("n0", list(THREE), Saved(), lambda _: 0)
    asked = AskVote(sender="n1", to="n0", term=3, last_index=0, last_term=0, is_trial=False)
    node.receive(asked)
    ready = node.take()
    assert ready.saved == Saved(3, "n1")
    node = Node("n0", list(THREE), ready.saved, lambda _: 0)
    for candidate, granted in (("n2", False), ("n1", True)):
        node.receive(AskVote(sender=candidate, to="n0", term=3, last_index=0, last_term=0, is_trial=False))
        (vote,) = node.take().messages
        assert isinstance(vote, Vote)
        assert vote.is_granted is granted


def test_nobody_is_elected_whose_log_ends_earlier() -> None:
    bench = Bench({"n0": Saved(2, "", entries(1, 2)), "n1": Saved(2, "", entries(1, 1, 1))})
    bench.tick(["n1"], 3 * TIMING.election)
    bench.carry()
    assert not bench["n1"].is_leader
    bench.elect("n0")
    assert [entry.term for entry in bench["n1"].log.slice(1, 9)] == [1, 2, 3]


class CountsOlderTerms(Node):
    """Takes what a majority has for agreed on, whoever made it: a mistake that is easily made."""

    def _commit_what_a_majority_has(self) -> None:
        ends = [follower.match for follower in self._followers.values()]
        ends.append(self.log.last_index)
        ends.sort(reverse=True)
        self.committed = max(self.committed, ends[self._majority - 1])


def figure_8(kind: type[Node]) -> None:
    """The story of figure 3.7 of the thesis, with the promises of Raft checked on the way."""
    checker = Checker()
    group = {
        "n1": Saved(3, "", entries(1, 2)),
        "n2": Saved(3, "", entries(1, 2)),
        "n3": Saved(3, "", entries(1)),
        "n4": Saved(3, "", entries(1)),
        "n5": Saved(3, "", entries(1, 3)),
    }
    bench = Bench(group, kind, entries_max=1)
    first = ["n1", "n2", "n3"]
    bench.elect("n1", first, settles=False)  # it leads term 4
    bench.carry(first, rounds=4)  # and n3 gets the entry of term 2, but not that of term 4
    assert bench["n3"].log.slice(1, 9) == entries(1, 2)
    for entry in bench.applied["n1"]:
        if entry.index == 2:
            checker.applied(bench["n1"], entry, 0)
    # n1 has crashed, and n5 is elected by the others.
    bench.elect("n5", ["n3", "n4", "n5"])
    checker.stepped(bench["n5"])


def test_an_entry_of_an_earlier_term_is_not_agreed_on_by_counting() -> None:
    figure_8(Node)


def test_the_checker_sees_it_where_it_is() -> None:
    with pytest.raises(Violation, match="n5 leads term 5 without entry 2"):
        figure_8(CountsOlderTerms)


def test_a_follower_far_behind_is_found_in_a_few_steps() -> None:
    """The leader skips what can't be the same, not an entry at a time."""
    long, other = entries(*[1] * 50, *[9] * 50), entries(*[1] * 20, *[3] * 70)
    bench = Bench({"n0": Saved(9, "", long), "n1": Saved(9, "", other)})
    bench.elect("n0")
    assert bench["n1"].log.slice(1, 999) == bench["n0"].log.slice(1, 999)
    assert len([it for it in bench.delivered if isinstance(it, Append)]) <= 5


def test_who_lacks_what_the_leader_has_no_more_gets_its_state() -> None:
    bench = Bench(THREE)
    bench.elect("n0", ["n0", "n1"])
    for number in range(5):
        bench["n0"].propose(b"%d" % number)
    bench.carry(["n0", "n1"])
    assert bench["n0"].compact(b"state") == Saved(1, "n0", [], StateSnapshot(6, 1, b"state"))
    bench["n0"].propose(b"later")
    bench.tick(["n0"], 1)
    bench.carry()
    bench.tick(["n0"], 1)
    bench.carry()
    assert [type(it) for it in bench.delivered].count(Install) == 1
    assert bench.applied["n2"] == [LogEntry(6, 1), LogEntry(7, 1, b"later")]
    assert bench["n2"].log.snapshot == StateSnapshot(6, 1, b"state")


def test_a_state_whose_entries_are_there_changes_nothing() -> None:
    bench = Bench(THREE)
    bench.elect("n0")
    before = bench["n1"].log.slice(1, 9)
    snapshot = StateSnapshot(1, 1, b"state")
    bench["n1"].receive(Install(sender="n0", to="n1", term=1, snapshot=snapshot))
    ready = bench["n1"].take()
    assert (ready.snapshot, bench["n1"].log.slice(1, 9)) == (None, before)
    assert ready.committed == before


def test_an_outdated_leader_hears_of_it() -> None:
    bench = Bench(THREE)
    bench.elect("n0")
    bench.elect("n1", ["n1", "n2"])
    for name in ("n0", "n1"):
        bench.tick([name], 1)
        bench.carry()
    assert (bench["n0"].role, bench["n0"].leader, bench["n0"].term) == (Role.FOLLOWER, "n1", 2)


def test_a_node_with_a_later_term_can_come_back() -> None:
    """Its trials have the term of nobody else: it has to be brought back, and not to wait."""
    bench = Bench({"n0": Saved(1), "n1": Saved(1), "n2": Saved(7, "n2")})
    bench.elect("n0", ["n0", "n1"])
    bench.tick(["n0"], 1)
    for _ in range(10):
        bench.tick(bench.names, TIMING.election // 2)
        bench.carry()
    (leader,) = {node.leader for node in bench.nodes.values()}
    assert bench[leader].is_leader
    assert {node.term for node in bench.nodes.values()} == {bench[leader].term}


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (
            AskVote(sender="n2", to="n0", term=STEP_MAX + 2, last_index=0, last_term=0, is_trial=False),
            "term: .* too far ahead of 1",
        ),
        (
            Install(sender="n2", to="n0", term=2, snapshot=StateSnapshot(STEP_MAX + 2, 2)),
            "snapshot: .* too far ahead of 1",
        ),
        (
            Append(
                sender="n2", to="n0", term=2, previous_index=0, previous_term=0, entries=[LogEntry(1, 2)], committed=1
            ),
            "entry 1: another one is agreed on",
        ),
        (
            Append(sender="n2", to="n0", term=1, previous_index=0, previous_term=0, entries=[], committed=0),
            "n0 leads term 1 itself",
        ),
    ],
)
def test_what_no_node_can_have_sent_is_refused(message: Message, why: str) -> None:
    bench = Bench(THREE)
    bench.elect("n0")
    with pytest.raises(MessageError, match=why):
        bench["n0"].check(message)


def test_nobody_has_more_than_the_leader() -> None:
    """Else a follower that is said to would never get an entry again."""
    bench = Bench(THREE)
    bench.elect("n0")
    for name in ("n1", "n2"):
        bench["n0"].receive(Appended(sender=name, to="n0", term=1, index=2**40))
    bench["n0"].propose(b"x")
    bench.carry()
    bench.tick(["n0"], 1)
    bench.carry()
    assert bench.applied["n1"] == bench.applied["n2"] == [LogEntry(1, 1), LogEntry(2, 1, b"x")]
