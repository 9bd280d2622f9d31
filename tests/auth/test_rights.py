"""Which of several entries decides; compared with a plain reading of upstream's rules."""

from functools import cmp_to_key
from ipaddress import ip_address, ip_network
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.auth.model import (
    SUBJECT_USER,
    Acl,
    Action,
    Environment,
    Pattern,
    Policy,
    PolicyDecision,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceType,
    Subject,
)
from firearrow.auth.rights import AccessVerdict, Rights, gained
from firearrow.errors import BrokerError
from tests.cputime import cpu_seconds

SUBJECT = Subject(subject_type=SUBJECT_USER, username="u")
REAL_KINDS = [ResourceType.CLUSTER, ResourceType.TOPIC, ResourceType.GROUP]
NAMES = ["", "a", "ab", "abc", "b"]
ADDRESSES = ["10.0.0.1", "10.9.9.9", "192.168.1.1", "::1"]
SOURCES = ["10.0.0.1", "10.0.0.0/8", "::1", "::/0"]


def entry_of(resource: str, actions: str, decision: str = "ALLOW", *sources: str) -> PolicyEntry:
    return PolicyEntry(
        actions=[Action[word.upper()] for word in actions.split(",")],
        decision=PolicyDecision[decision],
        environment=Environment(source_ips=list(sources) or None),
        resource=Resource.of(resource),
    )


def rights_of(*entries: PolicyEntry, default: tuple[PolicyEntry, ...] = ()) -> Rights:
    policies = [Policy(entries=list(entries), policy_type=PolicyType.CUSTOM)]
    policies.append(Policy(entries=list(default), policy_type=PolicyType.DEFAULT))
    return Rights(Acl(subject=SUBJECT, policies=policies))


def verdict(rights: Rights, name: str = "abc", action: str = "PUB", ip: str = "10.0.0.1") -> AccessVerdict:
    return rights.verdict(ResourceType.TOPIC, name, (Action[action],), ip)


@pytest.mark.parametrize(
    ("better", "worse"),
    [("Topic:abc", "Topic:ab*"), ("Topic:ab*", "Topic:a*"), ("Topic:a*", "Topic:*"), ("Topic:*", "*")],
)
def test_the_more_exact_resource_decides(better: str, worse: str) -> None:
    for one, other, expected in (("ALLOW", "DENY", AccessVerdict.ALLOWED), ("DENY", "ALLOW", AccessVerdict.DENIED)):
        entries = entry_of(better, "Pub", one), entry_of(worse, "Pub", other)
        assert verdict(rights_of(*entries)) is expected
        assert verdict(rights_of(*reversed(entries))) is expected


def test_of_two_alike_the_one_that_denies_decides() -> None:
    allow, deny = entry_of("Topic:a*", "Pub"), entry_of("Topic:a*", "All", "DENY")
    assert verdict(rights_of(allow, deny)) is AccessVerdict.DENIED
    assert verdict(rights_of(deny, allow)) is AccessVerdict.DENIED


def test_what_is_not_about_the_action_or_the_address_does_not_count() -> None:
    rights = rights_of(
        entry_of("Topic:abc", "Sub", "DENY"),
        entry_of("Topic:abc", "Pub", "DENY", "192.168.0.0/16"),
        entry_of("Topic:*", "Pub"),
    )
    assert verdict(rights) is AccessVerdict.ALLOWED
    assert verdict(rights, ip="192.168.3.4") is AccessVerdict.DENIED
    assert verdict(rights, action="SUB") is AccessVerdict.DENIED
    assert verdict(rights, action="GET") is AccessVerdict.UNMATCHED


def test_what_is_by_default_counts_where_nothing_else_is_said() -> None:
    rights = rights_of(entry_of("Topic:abc", "Sub"), default=(entry_of("Topic:*", "Pub"),))
    assert verdict(rights) is AccessVerdict.ALLOWED
    assert verdict(rights, action="SUB") is AccessVerdict.ALLOWED
    assert verdict(rights, name="x", action="SUB") is AccessVerdict.UNMATCHED


def test_without_policies_nothing_is_allowed() -> None:
    assert verdict(Rights(None)) is AccessVerdict.UNMATCHED
    assert verdict(Rights(Acl(subject=SUBJECT))) is AccessVerdict.UNMATCHED


def test_an_address_that_can_not_be_read_is_nowhere() -> None:
    assert verdict(rights_of(entry_of("*", "All", "ALLOW", "::/0")), ip="unknown") is (AccessVerdict.UNMATCHED)


# --- the same as upstream has it, written down plainly ---

entries = st.builds(
    PolicyEntry,
    actions=st.lists(st.sampled_from([*Action]), min_size=1, max_size=3),
    decision=st.sampled_from(PolicyDecision),
    environment=st.none()
    | st.builds(Environment, source_ips=st.none() | st.lists(st.sampled_from(SOURCES), max_size=2)),
    resource=st.builds(
        Resource,
        resource_type=st.sampled_from([ResourceType.ANY, *REAL_KINDS]),
        resource_pattern=st.sampled_from(Pattern),
        resource_name=st.sampled_from(NAMES),
    ),
)


def fits(entry: PolicyEntry, kind: ResourceType, name: str, actions: list[Action], ip: str) -> bool:
    resource, known = entry.resource, entry.actions
    assert resource is not None
    assert known is not None
    own = resource.resource_name or ""
    by_name = {Pattern.ANY: True, Pattern.LITERAL: own == name, Pattern.PREFIXED: name.startswith(own)}
    assert resource.resource_pattern is not None
    of_kind = resource.resource_type == kind and by_name[resource.resource_pattern]
    if resource.resource_type != ResourceType.ANY and not of_kind:
        return False
    if not any(action in known or Action.ALL in known for action in actions):
        return False
    sources = entry.environment.source_ips if entry.environment else None
    return not sources or any(ip_address(ip) in ip_network(source) for source in sources)


def compare(one: PolicyEntry, other: PolicyEntry) -> int:
    """As AclAuthorizationHandler#comparePolicyEntries."""
    r1, r2 = one.resource, other.resource
    assert r1 is not None
    assert r2 is not None
    order = 0
    if r1.resource_type != r2.resource_type:
        order = 1 if r1.resource_type == ResourceType.ANY else -1
    elif r1.resource_pattern == r2.resource_pattern:
        if r1.resource_pattern == Pattern.PREFIXED:
            order = len(r2.resource_name or "") - len(r1.resource_name or "")
    else:
        for pattern in (Pattern.LITERAL, Pattern.PREFIXED):
            if pattern in (r1.resource_pattern, r2.resource_pattern):
                order = -1 if r1.resource_pattern == pattern else 1
                break
    if order or one.decision == other.decision:
        return order
    return -1 if one.decision == PolicyDecision.DENY else 1


@given(
    st.lists(entries, max_size=6),
    st.lists(entries, max_size=3),
    st.sampled_from(REAL_KINDS),
    st.sampled_from(NAMES),
    st.lists(st.sampled_from([Action.PUB, Action.SUB, Action.GET]), min_size=1, max_size=2),
    st.sampled_from(ADDRESSES),
)
def test_it_decides_as_upstream(
    custom: list[PolicyEntry], default: list[PolicyEntry], kind: ResourceType, name: str, actions: list[Action], ip: str
) -> None:
    fitting = [it for it in custom if fits(it, kind, name, actions, ip)] or [
        it for it in default if fits(it, kind, name, actions, ip)
    ]
    expected = AccessVerdict.UNMATCHED
    if fitting:
        best = min(fitting, key=cmp_to_key(compare))
        expected = AccessVerdict.ALLOWED if best.decision == PolicyDecision.ALLOW else AccessVerdict.DENIED
    rights = rights_of(*custom, default=tuple(default))
    assert rights.verdict(kind, name, actions, ip) is expected


# --- what a change of policies gives ---

SOME_NAMES = [*NAMES, "x", "az", "abz", "abcz", "bz"]
SOME_ADDRESSES = [*ADDRESSES, "0.0.0.0", "10.0.0.2", "9.9.9.9", "::2", "unknown"]
SOME_ASKS = [(Action.PUB,), (Action.SUB,), (Action.GET,), (Action.UPDATE,), (Action.SUB, Action.GET)]
all_rights = st.builds(
    lambda custom, default: rights_of(*custom, default=tuple(default)),
    st.lists(entries, max_size=4),
    st.lists(entries, max_size=2),
)


@given(all_rights, all_rights, all_rights)
def test_a_gain_is_found_where_there_is_one(before: Rights, after: Rights, giver: Rights) -> None:
    """By comparison with what any request would be told."""
    found = gained(before, after, giver)
    asked = list(product(REAL_KINDS, SOME_NAMES, SOME_ASKS, SOME_ADDRESSES))
    gains = [it for it in asked if after.allows(*it) and not before.allows(*it) and not giver.allows(*it)]
    assert not gains or found is not None
    if found is not None and found.actions in SOME_ASKS:
        assert (found.kind, found.actions) in {(kind, actions) for kind, _, actions, _ in gains}


@pytest.mark.parametrize(
    ("before", "after", "giver", "gain"),
    [
        ([], ["Topic:a"], ["Topic:a"], None),
        ([], ["Topic:a"], ["Topic:a*"], None),
        ([], ["Topic:a*"], ["Topic:a"], "Pub on Topic:a*"),
        ([], ["Topic:*"], ["*"], None),
        ([], ["*"], ["Topic:*"], "Pub on Cluster:*"),
        (["Topic:a"], ["Topic:a", "Topic:b"], ["Topic:b"], None),
        (["Topic:*", "-Topic:b"], ["Topic:*"], ["Topic:a"], "Pub on Topic:b"),
        (["Topic:*", "-Topic:b"], ["Topic:*"], ["Topic:b"], None),
        (["Topic:*"], ["-Topic:*"], [], None),
        ([], ["Topic:*"], ["Topic:*", "-Topic:b"], "Pub on Topic:b"),
    ],
)
def test_what_a_change_gives(before: list[str], after: list[str], giver: list[str], gain: str | None) -> None:
    def rights(texts: list[str]) -> Rights:
        words = ["DENY" if text.startswith("-") else "ALLOW" for text in texts]
        return rights_of(*(entry_of(text.lstrip("-"), "Pub", it) for text, it in zip(texts, words, strict=True)))

    found = gained(rights(before), rights(after), rights(giver))
    assert (found and found.text) == gain


def test_a_right_for_some_addresses_is_not_given_for_others() -> None:
    giver = rights_of(entry_of("Topic:a", "Pub", "ALLOW", "10.0.0.0/8"))
    within = rights_of(entry_of("Topic:a", "Pub", "ALLOW", "10.1.0.0/16", "10.9.9.9"))
    beyond = rights_of(entry_of("Topic:a", "Pub", "ALLOW", "10.0.0.0/7"))
    assert gained(Rights(None), within, giver) is None
    assert gained(Rights(None), beyond, giver) is not None
    assert gained(Rights(None), rights_of(entry_of("Topic:a", "Pub")), giver) is not None


@pytest.mark.parametrize("names", [[f"Topic:{n}*" for n in range(300)], ["Topic:a\0"]])
def test_what_is_too_much_to_compare_is_refused(names: list[str]) -> None:
    many = rights_of(*(entry_of(name, "Pub", "ALLOW", "10.0.0.1") for name in names))

    def compared() -> None:
        with pytest.raises(BrokerError, match="too many"):
            gained(Rights(None), rights_of(entry_of("*", "All")), many)

    assert cpu_seconds(compared, 0.05) < 0.05


def test_policies_of_thousands_are_compared_in_little_time() -> None:
    """Or refused in as little: one entry more is, all of them for another are not compared."""
    many = [entry_of(f"Topic:t{number}{'*' * (number % 2)}", "Pub") for number in range(3000)]
    literal = [entry_of(f"Topic:t{number}", "Pub") for number in range(3000)]
    own, one_more = rights_of(*literal), rights_of(*literal, entry_of("Topic:x", "Pub"))
    giver, all_of = rights_of(entry_of("Topic:x", "Pub")), rights_of(*many)

    def compared() -> None:
        assert gained(own, one_more, giver) is None
        assert gained(all_of, Rights(None), giver) is None
        for others in (all_of, own):
            with pytest.raises(BrokerError, match="too many"):
                gained(Rights(None), others, giver)

    assert cpu_seconds(compared, 0.4) < 0.4  # each by each takes half a minute
