"""Rights of one user: its policies, compiled for a check of each request.

Of all entries that fit the resource, one of the actions and the address, one decides. An entry for its kind of resource
precedes one for any kind. A literal name precedes a prefix, a longer prefix a shorter one, and a prefix any name. Of
two alike, the denying one decides. Entries of type CUSTOM are checked first, entries of type DEFAULT only if none of
them fits. If no entry fits at all, the request is refused.

Source: RocketMQ's ``AclAuthorizationHandler``.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from ipaddress import ip_address, ip_network
from itertools import product
from typing import Final, NamedTuple

from firearrow.auth.model import (
    Acl,
    Action,
    Pattern,
    PolicyDecision,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceType,
    no_permission,
)
from firearrow.wire import requests
from firearrow.wire.requests import REQUESTS


class AccessVerdict(Enum):
    """Result of a check; the value is its text in a refusal."""

    ALLOWED = ""
    UNMATCHED = "no matched policies."
    DENIED = "the decision is deny."


class Gain(NamedTuple):
    """A right that a user has now and did not have before."""

    actions: tuple[Action, ...]
    kind: ResourceType
    name: str

    @property
    def text(self) -> str:
        """``Sub on Topic:orders``."""
        words = " or ".join(action.word for action in self.actions)
        return f"{words} on {self.kind.word}:{self.name}"


class _CompiledEntry(NamedTuple):
    """A compiled entry. The smallest fitting one decides, by the first four fields."""

    of_any_kind: bool
    order: int  # of its pattern
    shortness: int  # minus the length of a prefix
    allows: bool
    kind: ResourceType
    pattern: Pattern
    name: str
    actions: frozenset[Action]
    sources: tuple[str, ...]

    @property
    def is_literal(self) -> bool:
        """Tell whether it is about one resource alone."""
        return self.pattern == Pattern.LITERAL and self.kind != ResourceType.ANY

    @property
    def text(self) -> str:
        """The entry in words: ``Deny Pub, Sub on Topic:orders* from 10.0.0.0/8``."""
        resource = Resource(resource_name=self.name, resource_pattern=self.pattern, resource_type=self.kind).text
        actions = ", ".join(action.word for action in sorted(self.actions))
        sources = f" from {', '.join(self.sources)}" if self.sources else ""
        return f"{'Allow' if self.allows else 'Deny'} {actions} on {resource}{sources}"

    def concerns(self, kind: ResourceType, name: str) -> bool:
        """Tell whether it is about this resource."""
        if self.kind == ResourceType.ANY:
            return True
        if self.kind != kind:
            return False
        if self.pattern == Pattern.PREFIXED:
            return name.startswith(self.name)
        return self.pattern == Pattern.ANY or self.name == name

    def fits(self, kind: ResourceType, name: str, actions: Iterable[Action], ip: str) -> bool:
        """Tell whether it is about one of the actions on this resource from this address."""
        return self.concerns(kind, name) and self.is_about(actions, ip)

    def is_about(self, actions: Iterable[Action], ip: str) -> bool:
        """Tell whether it is about one of the actions from this address, on any resource."""
        if Action.ALL not in self.actions and self.actions.isdisjoint(actions):
            return False
        return not self.sources or any(_is_within(ip, source) for source in self.sources)


LOOKS_MAX: Final = 20_000
"""Limit of looks at entries, to find the rights that a change of policies gives; some ten milliseconds."""

_OTHER: Final = "\0"  # in no name of a topic or group
_KINDS: Final = (ResourceType.CLUSTER, ResourceType.TOPIC, ResourceType.GROUP)  # no request needs another
_ASKS: Final = tuple(
    dict.fromkeys(
        tuple(Action[action.name or ""] for action in asked)
        for asked in (*requests.Action, *(a.actions for r in REQUESTS.values() for a in r.asks))
    )
)
"""The sets of actions of all requests; any action of a set is enough."""

_ORDER = {Pattern.LITERAL: 0, Pattern.PREFIXED: 1, Pattern.ANY: 2}


def _rule_of(entry: PolicyEntry) -> _CompiledEntry | None:
    """Compile an entry; None for one without effect."""
    resource = entry.resource
    if resource is None or resource.resource_type is None or resource.resource_pattern is None:
        return None
    pattern, name = resource.resource_pattern, resource.resource_name or ""
    is_prefix = pattern == Pattern.PREFIXED
    return _CompiledEntry(
        resource.resource_type == ResourceType.ANY,
        _ORDER[pattern],
        -len(name) if is_prefix else 0,
        entry.decision == PolicyDecision.ALLOW,
        resource.resource_type,
        pattern,
        name,
        frozenset(entry.actions or ()),
        tuple((entry.environment and entry.environment.source_ips) or ()),
    )


def _is_within(ip: str, source: str) -> bool:
    """Tell whether an address is this one, or of this network; False if either can't be read."""
    try:
        if "/" in source:
            return ip_address(ip) in ip_network(source, strict=False)
        return ip_address(ip) == ip_address(source)
    except ValueError:
        return False


class _Rules:
    """The entries of one type; entries of literal names are kept by name, as there may be thousands."""

    def __init__(self, entries: Iterable[PolicyEntry]) -> None:
        self.all = tuple(filter(None, map(_rule_of, entries)))
        self._literal: dict[tuple[ResourceType, str], list[_CompiledEntry]] = {}
        self.others: list[_CompiledEntry] = []
        for rule in self.all:
            if rule.is_literal:
                self._literal.setdefault((rule.kind, rule.name), []).append(rule)
            else:
                self.others.append(rule)

    def allows_some(self, kind: ResourceType, actions: Iterable[Action], ip: str) -> bool:
        """Tell whether an entry allows one of the actions on a resource of a kind."""
        return any(
            rule.allows and rule.kind in (kind, ResourceType.ANY) and rule.is_about(actions, ip) for rule in self.all
        )

    def decide(self, kind: ResourceType, name: str, actions: Iterable[Action], ip: str) -> _CompiledEntry | None:
        """Return the entry that decides."""
        rules = [*self._literal.get((kind, name), ()), *self.others]
        return min(
            (rule for rule in rules if rule.fits(kind, name, actions, ip)), key=lambda rule: rule[:4], default=None
        )


class Rights:
    """Rights that the policies of a user give."""

    def __init__(self, acl: Acl | None) -> None:
        policies = (acl and acl.policies) or []
        by_type = {policy.policy_type: policy.entries or [] for policy in reversed(policies)}
        self._types = [
            _Rules(by_type[policy_type])
            for policy_type in (PolicyType.CUSTOM, PolicyType.DEFAULT)
            if policy_type in by_type
        ]

    def allows_some(self, kind: ResourceType, actions: Iterable[Action], ip: str) -> bool:
        """Tell whether any of the actions is allowed on a resource of a kind, by its entry alone."""
        return any(rules.allows_some(kind, actions, ip) for rules in self._types)

    def allows(self, kind: ResourceType, name: str, actions: Iterable[Action], ip: str) -> bool:
        """Tell whether any of the actions on a resource is allowed from an address."""
        return self.verdict(kind, name, actions, ip) is AccessVerdict.ALLOWED

    def verdict(self, kind: ResourceType, name: str, actions: Iterable[Action], ip: str) -> AccessVerdict:
        """Return the verdict on the actions, with its text for a refusal."""
        rule = self._deciding(kind, name, actions, ip)
        if rule is None:
            return AccessVerdict.UNMATCHED
        return AccessVerdict.ALLOWED if rule.allows else AccessVerdict.DENIED

    def deciding(self, kind: ResourceType, name: str, actions: Iterable[Action], ip: str) -> str | None:
        """Return the entry that decides `verdict`, in words; None if none fits."""
        rule = self._deciding(kind, name, actions, ip)
        return None if rule is None else rule.text

    def _deciding(self, kind: ResourceType, name: str, actions: Iterable[Action], ip: str) -> _CompiledEntry | None:
        found = (rules.decide(kind, name, actions, ip) for rules in self._types)
        return next((rule for rule in found if rule is not None), None)

    @property
    def rules(self) -> set[tuple[int, _CompiledEntry]]:
        """Iterate over all entries, each with the number of its type."""
        return {(number, rule) for number, rules in enumerate(self._types) for rule in rules.all}

    @property
    def looks(self) -> int:
        """Approximate count of entries that a verdict looks at."""
        return 1 + sum(len(rules.others) for rules in self._types)


def gained(before: Rights, after: Rights, giver: Rights) -> Gain | None:
    """Find a right that is allowed ``after`` and was allowed neither ``before`` nor to a giver.

    None if there is none. Raises a BrokerError if the search would take too long.

    The entries divide all names into kinds and all addresses into ranges. Within a kind and a range, the same entries
    fit every request. It is therefore enough, and complete, to try one name of each kind and one address of each range.
    """
    if not after.rules:
        return None
    all_rules = [rule for _, rule in before.rules | after.rules | giver.rules]
    changed = [rule for _, rule in before.rules ^ after.rules]
    literal = {(rule.kind, rule.name) for rule in changed if rule.is_literal}
    others = [rule for rule in changed if not rule.is_literal]
    places = _places(all_rules)
    is_unclear = any(_OTHER in rule.name for rule in all_rules)
    _check_looks(LOOKS_MAX + 1 if is_unclear else len(places) * len(others))
    places = [place for place in places if place in literal or any(rule.concerns(*place) for rule in others)]
    addresses = _addresses(all_rules)
    looks = before.looks + after.looks + giver.looks
    _check_looks(len(places) * len(addresses) * len(_ASKS) * looks)
    for (kind, name), actions, ip in product(places, _ASKS, addresses):
        asked = kind, name, actions, ip
        if after.allows(*asked) and not (before.allows(*asked) or giver.allows(*asked)):
            return Gain(actions, kind, name.replace(_OTHER, "*"))
    return None


def _check_looks(count: int) -> None:
    if count > LOOKS_MAX:
        raise no_permission("The policies are too many to find out whether you may give them, a super user may.")


def _places(rules: Iterable[_CompiledEntry]) -> list[tuple[ResourceType, str]]:
    """Return a name of each kind that rules tell apart: their literal names, one for each prefix, and one other name.

    Literal names lack the character that ends the names of the other kinds.
    """
    found = dict.fromkeys((kind, _OTHER) for kind in _KINDS)
    for rule in rules:
        if rule.pattern != Pattern.ANY:
            name = rule.name + (_OTHER if rule.pattern == Pattern.PREFIXED else "")
            found.update(dict.fromkeys((kind, name) for kind in _KINDS if rule.kind == kind))
    return list(found)


def _addresses(rules: Iterable[_CompiledEntry]) -> list[str]:
    """Return the first address of each range that rules tell apart."""
    found = dict.fromkeys(("", "0.0.0.0", "::"))  # the first stands for texts that are no address
    for source in {source for rule in rules for source in rule.sources}:
        try:
            network = ip_network(source, strict=False)
        except ValueError:
            continue  # it fits no address
        found[str(network.network_address)] = None
        if int(network.broadcast_address) + 1 < 1 << network.max_prefixlen:
            found[str(network.broadcast_address + 1)] = None
    return list(found)
