"""What one user may do: its policies, made ready to be asked for each request.

Of all entries that fit the resource, one of the actions and the address, one decides: an entry for
its kind of resource before one for any kind, a literal name before a prefix, a longer prefix before
a shorter one, that before any name; of two alike, the one that denies. Entries of type CUSTOM are
asked first, and those of type DEFAULT only if none of them fits. Where none fits at all, it is no.

Source: upstream ``AclAuthorizationHandler``.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from ipaddress import ip_address, ip_network
from itertools import chain
from typing import NamedTuple

from firearrow.auth.model import Acl, Action, Decision, Entry, Kind, Pattern, PolicyType


class Verdict(Enum):
    """Whether something is allowed; the value is what a refusal says of it."""

    ALLOWED = ""
    UNMATCHED = "no matched policies."
    DENIED = "the decision is deny."


class _Rule(NamedTuple):
    """An entry. The smallest of those that fit decides, by the first four fields."""

    of_any_kind: bool
    order: int  # of its pattern
    shortness: int  # minus the length of a prefix
    allows: bool
    kind: Kind
    pattern: Pattern
    name: str
    actions: frozenset[Action]
    sources: tuple[str, ...]

    def fits(self, kind: Kind, name: str, actions: Iterable[Action], ip: str) -> bool:
        """Whether it is about one of the actions on this from there."""
        if self.kind != Kind.ANY:
            if self.kind != kind:
                return False
            if self.pattern == Pattern.LITERAL and self.name != name:
                return False
            if self.pattern == Pattern.PREFIXED and not name.startswith(self.name):
                return False
        return self.is_about(actions, ip)

    def is_about(self, actions: Iterable[Action], ip: str) -> bool:
        """Whether it is about one of the actions from there, on whatever it is."""
        if Action.ALL not in self.actions and self.actions.isdisjoint(actions):
            return False
        return not self.sources or any(_is_within(ip, source) for source in self.sources)


_ORDER = {Pattern.LITERAL: 0, Pattern.PREFIXED: 1, Pattern.ANY: 2}


def _rule_of(entry: Entry) -> _Rule | None:
    """Make an entry ready; None for one that says nothing."""
    resource = entry.resource
    if resource is None or resource.resource_type is None or resource.resource_pattern is None:
        return None
    pattern, name = resource.resource_pattern, resource.resource_name or ""
    is_prefix = pattern == Pattern.PREFIXED
    return _Rule(
        resource.resource_type == Kind.ANY,
        _ORDER[pattern],
        -len(name) if is_prefix else 0,
        entry.decision == Decision.ALLOW,
        resource.resource_type,
        pattern,
        name,
        frozenset(entry.actions or ()),
        tuple((entry.environment and entry.environment.source_ips) or ()),
    )


def _is_within(ip: str, source: str) -> bool:
    """Whether an address is this one, or of this network; no if either can't be read."""
    try:
        if "/" in source:
            return ip_address(ip) in ip_network(source, strict=False)
        return ip_address(ip) == ip_address(source)
    except ValueError:
        return False


class _Rules:
    """The entries of one type, those of literal names by these: there may be thousands."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._literal: dict[tuple[Kind, str], list[_Rule]] = {}
        self._others: list[_Rule] = []
        for rule in filter(None, map(_rule_of, entries)):
            if rule.pattern == Pattern.LITERAL and rule.kind != Kind.ANY:
                self._literal.setdefault((rule.kind, rule.name), []).append(rule)
            else:
                self._others.append(rule)

    def allows_some(self, kind: Kind, actions: Iterable[Action], ip: str) -> bool:
        """Whether an entry allows one of the actions on something of a kind."""
        rules = chain(self._others, *self._literal.values())
        return any(
            rule.allows and rule.kind in (kind, Kind.ANY) and rule.is_about(actions, ip)
            for rule in rules
        )

    def decide(self, kind: Kind, name: str, actions: Iterable[Action], ip: str) -> _Rule | None:
        """The one that decides."""
        rules = [*self._literal.get((kind, name), ()), *self._others]
        return min(
            (rule for rule in rules if rule.fits(kind, name, actions, ip)),
            key=lambda rule: rule[:4],
            default=None,
        )


class Rights:
    """What the policies of a user allow."""

    def __init__(self, acl: Acl | None) -> None:
        policies = (acl and acl.policies) or []
        by_type = {policy.policy_type: policy.entries or [] for policy in reversed(policies)}
        self._types = [
            _Rules(by_type[policy_type])
            for policy_type in (PolicyType.CUSTOM, PolicyType.DEFAULT)
            if policy_type in by_type
        ]

    def allows_some(self, kind: Kind, actions: Iterable[Action], ip: str) -> bool:
        """Whether any of the actions is allowed on something of a kind, by its entry alone."""
        return any(rules.allows_some(kind, actions, ip) for rules in self._types)

    def verdict(self, kind: Kind, name: str, actions: Iterable[Action], ip: str) -> Verdict:
        """Whether any of the actions on a resource is allowed from an address."""
        for rules in self._types:
            rule = rules.decide(kind, name, actions, ip)
            if rule is not None:
                return Verdict.ALLOWED if rule.allows else Verdict.DENIED
        return Verdict.UNMATCHED
