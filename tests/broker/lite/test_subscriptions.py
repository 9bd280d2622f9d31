"""Who subscribes to which lite topics, compared with plain sets of pairs."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from firearrow.broker.lite.subscriptions import FirstLiteSubscription, LiteSubscriptions, Subscriber
from firearrow.events import Events
from firearrow.message.names import lite_queue
from tests.broker.fakes import FakeChannel, HandClock

CLIENT = st.sampled_from("xyz")
PARENT = st.sampled_from("PQ")
GROUP = st.sampled_from(("shared", "all"))
LITE = st.sampled_from("abc")


class Model(RuleBasedStateMachine):
    """Clients of two groups, one of which wants everything, of one parent at a time each."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.begun = HandClock(), list[FirstLiteSubscription]()
        events = Events()
        events.listen(FirstLiteSubscription, self.begun.append)
        self.subscriptions = LiteSubscriptions(self.clock, events.of(FirstLiteSubscription))
        self.parents: dict[tuple[str, str], str] = {}
        self.heard: dict[tuple[str, str], float] = {}
        self.wanted: set[tuple[str, str, str]] = set()

    def join(self, client: str, group: str, parent: str) -> Subscriber:
        found, is_new = self.subscriptions.join(client, group, parent, FakeChannel(), is_wildcard=group == "all")
        assert is_new == (self.parents.get((client, group)) != parent)
        if is_new:
            self.forget(client, group)
        self.parents[client, group] = parent
        self.heard[client, group] = self.clock.monotonic()
        return found

    def forget(self, client: str, group: str) -> None:
        self.parents.pop((client, group), None)
        self.heard.pop((client, group), None)
        self.wanted = {one for one in self.wanted if one[:2] != (client, group)}

    @rule(client=CLIENT, group=GROUP, parent=PARENT, lite=LITE)
    def add(self, client: str, group: str, parent: str, lite: str) -> None:
        found, queue = self.join(client, group, parent), lite_queue(parent, lite)
        if group == "shared":
            assert self.subscriptions.add(found, queue) == ((client, group, queue) not in self.wanted)
            self.wanted.add((client, group, queue))
        found.ready[queue] = None

    @rule(client=CLIENT, group=GROUP, parent=PARENT, lite=LITE)
    def remove(self, client: str, group: str, parent: str, lite: str) -> None:
        found, queue = self.subscriptions.find(client, group), lite_queue(parent, lite)
        if found is not None:
            is_known = (client, group, queue) in self.wanted
            assert self.subscriptions.remove(found, queue) == is_known
            self.wanted.discard((client, group, queue))
            assert not is_known or queue not in found.ready

    @rule(client=CLIENT, group=GROUP)
    def leave(self, client: str, group: str) -> None:
        found = self.subscriptions.find(client, group)
        assert (found is not None) == ((client, group) in self.parents)
        if found is not None:
            self.subscriptions.leave(found)
        self.forget(client, group)

    @rule(parent=PARENT, lite=LITE)
    def forget_queue(self, parent: str, lite: str) -> None:
        queue = lite_queue(parent, lite)
        self.subscriptions.forget_queue(queue)
        self.wanted = {one for one in self.wanted if one[2] != queue}
        for client, group in self.parents:
            found = self.subscriptions.find(client, group)
            assert found is not None
            assert queue not in found.ready

    @rule(seconds=st.sampled_from((1, 100, 1000)))
    def sleep(self, seconds: int) -> None:
        self.clock.seconds += seconds
        gone = {(one.client_id, one.group) for one in self.subscriptions.silent(500)}
        before = self.clock.monotonic() - 500
        assert gone == {one for one, heard in self.heard.items() if heard < before}

    @invariant()
    def is_as_the_model(self) -> None:
        subscriptions = self.subscriptions
        assert subscriptions.count == len(self.wanted)
        assert subscriptions.client_count == len(self.parents)
        assert set(subscriptions.groups()) == {group for _, group in self.parents}
        assert len(self.begun) <= 1
        for parent in "PQ":
            everything = [one for one, its in self.parents.items() if (one[1], its) == ("all", parent)]
            for lite in "abc":
                queue = lite_queue(parent, lite)
                found = {(one.client_id, one.group, queue) for one in subscriptions.of_queue(queue)}
                assert found == {one for one in self.wanted if one[2] == queue}
                wildcards = list(subscriptions.wildcards_of(queue))
                assert len(wildcards) == bool(everything)
                assert all((one.client_id, one.group) in everything for one in wildcards)
            ready = [subscriptions.find(*one) for one in everything]
            assert len({id(one.ready) for one in ready if one is not None}) <= 1
            is_ready = subscriptions.wildcard_ready(parent, "all")
            assert is_ready == any(one.ready for one in ready if one is not None)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=40)


def test_the_pops_of_a_group_with_a_wildcard_wait_together() -> None:
    subscriptions = LiteSubscriptions(HandClock(), Events().of(FirstLiteSubscription))
    keys = set()
    for client in "xy":
        found, _ = subscriptions.join(client, "all", "P", None, is_wildcard=True)
        keys.add(found.key)
        single, _ = subscriptions.join(client, "shared", "P", None, is_wildcard=False)
        assert single.key == ("P", f"{client}@shared", -1)
    assert keys == {("P", "*@all", -1)}
