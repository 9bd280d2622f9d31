"""Users and their policies, as they are stored and as requests have them.

They are stored as JSON in two RocksDB databases, `config/users` by name and `config/acls` by subject:

    root     {"password":"pw","subjectType":1,"userStatus":1,"userType":1,"username":"root"}
    User:u1  {"policies":[{"entries":[{"actions":[3,4],"decision":1,"environment":{},
              "resource":{"resourceName":"T","resourcePattern":2,"resourceType":4}}],
              "policyType":1}],"subject":{"subjectType":1,"username":"u1"}}

Fields are in the order of their names, and None is left out, as RocketMQ writes them. Requests and answers have the
same data in words: ``Topic:T``, ``["Pub","Sub"]``, ``Allow`` (`wire.admin_bodies`).

Source: RocketMQ's ``User``, ``Acl``, ``Policy``, ``Resource``, ``AclConverter``.
"""

from __future__ import annotations

from enum import IntEnum
from ipaddress import ip_address, ip_network
from typing import Final, Self

import msgspec

from firearrow.errors import BrokerError
from firearrow.wire.admin_bodies import AuthAcl, AuthEntry, AuthPolicy, AuthUserInfo
from firearrow.wire.codes import ResponseCode

SUBJECT_USER: Final = 1
_USER: Final = "User"
_ANY: Final = "*"


class _Word(IntEnum):
    """A number in the store that is a word in requests; its case does not matter there."""

    @property
    def word(self) -> str:
        """The word in requests."""
        return self.name.capitalize()

    @classmethod
    def of(cls, word: str | None) -> Self | None:
        """Read a word; None if it is not one of these."""
        return None if word is None else cls.__members__.get(word.upper())


class Action(_Word):
    """Action of a request or a policy. ALL is any of the others; ANY is in no policy."""

    UNKNOWN = 0
    ALL = 1
    ANY = 2
    PUB = 3
    SUB = 4
    CREATE = 5
    UPDATE = 6
    DELETE = 7
    GET = 8
    LIST = 9


class ResourceType(_Word):
    """Kind of resource. ANY is all of the others; no request needs a namespace."""

    UNKNOWN = 0
    ANY = 1
    CLUSTER = 2
    NAMESPACE = 3
    TOPIC = 4
    GROUP = 5


class Pattern(_Word):
    """Match of a resource's name: any name, this name, or all names with this prefix."""

    ANY = 1
    LITERAL = 2
    PREFIXED = 3


class PolicyDecision(_Word):
    """Decision of a policy."""

    ALLOW = 1
    DENY = 2


class PolicyType(_Word):
    """Type of a policy. DEFAULT counts if no entry of CUSTOM matches."""

    CUSTOM = 1
    DEFAULT = 2


class UserType(_Word):
    """Type of a user. SUPER may do everything."""

    SUPER = 1
    NORMAL = 2


class UserStatus(_Word):
    """Status of a user. A user with DISABLE counts as missing."""

    ENABLE = 1
    DISABLE = 2

    @property
    def word(self) -> str:
        """The word, which RocketMQ begins with a small letter."""
        return self.name.lower()


class _Stored(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Base of stored values; fields are in the order of their names."""


class User(_Stored, frozen=True, kw_only=True):
    """A user; the password is the secret that requests are signed with."""

    password: str | None = None
    subject_type: int
    user_status: UserStatus | None = None
    user_type: UserType | None = None
    username: str

    def __repr__(self) -> str:
        """Text of the user without the password."""
        return f"User({self.username!r}, {self.user_type!r}, {self.user_status!r})"

    @classmethod
    def of(cls, info: AuthUserInfo) -> Self:
        """Read a user from a request; unknown words are ignored."""
        return cls(
            username=info.username or "",
            password=info.password,
            subject_type=SUBJECT_USER,
            user_type=UserType.of(info.user_type),
            user_status=UserStatus.of(info.user_status),
        )

    def info(self) -> AuthUserInfo:
        """Return the same data in words."""
        user_type = None if self.user_type is None else self.user_type.word
        status = None if self.user_status is None else self.user_status.word
        return AuthUserInfo(self.username, self.password, user_type, status)

    @property
    def is_super(self) -> bool:
        """True if every request of this user is allowed."""
        return self.user_type == UserType.SUPER


class Resource(_Stored, frozen=True, kw_only=True):
    """Topics, groups or a cluster that a policy is about; ``Topic:orders*`` in words."""

    resource_name: str | None = None
    resource_pattern: Pattern | None = None
    resource_type: ResourceType | None = None

    @classmethod
    def of(cls, text: str | None) -> Self | None:
        """Read the resource in words; None if they name no kind of resource."""
        if text is None or not text.strip():
            return None
        if text == _ANY:
            return cls(resource_pattern=Pattern.ANY, resource_type=ResourceType.ANY)
        word, _, name = text.partition(":")
        kind = ResourceType.of(word)
        if kind is None:
            return None
        if name == _ANY:
            return cls(resource_pattern=Pattern.ANY, resource_type=kind)
        if name.endswith(_ANY):
            prefix = name.partition(_ANY)[0]
            return cls(resource_name=prefix, resource_pattern=Pattern.PREFIXED, resource_type=kind)
        return cls(resource_name=name, resource_pattern=Pattern.LITERAL, resource_type=kind)

    @property
    def text(self) -> str:
        """The resource in words."""
        kind = self.resource_type
        if kind is None or kind == ResourceType.ANY:
            return _ANY
        name = "" if self.resource_pattern == Pattern.ANY else self.resource_name or ""
        return f"{kind.word}:{name}{'' if self.resource_pattern == Pattern.LITERAL else _ANY}"


class Environment(_Stored, frozen=True, kw_only=True):
    """Addresses of the client; an empty list allows any address."""

    source_ips: list[str] | None = None


class PolicyEntry(_Stored, frozen=True, kw_only=True):
    """Decision on some actions on a resource."""

    actions: list[Action] | None = None
    decision: PolicyDecision | None = None
    environment: Environment | None = None
    resource: Resource | None = None

    @classmethod
    def of(cls, info: AuthEntry) -> Self:
        """Read an entry from a request; unknown actions are left out."""
        actions = [Action.of(word) for word in info.actions or []]
        return cls(
            actions=[action for action in actions if action is not None],
            decision=PolicyDecision.of(info.decision),
            environment=Environment(source_ips=info.source_ips or None),
            resource=Resource.of(info.resource),
        )

    def info(self) -> AuthEntry:
        """Return the same data in words."""
        return AuthEntry(
            None if self.resource is None else self.resource.text,
            [action.word for action in self.actions] if self.actions else None,
            self.environment.source_ips if self.environment else None,
            None if self.decision is None else self.decision.word,
        )


class Policy(_Stored, frozen=True, kw_only=True):
    """Entries of one type."""

    entries: list[PolicyEntry] | None = None
    policy_type: PolicyType | None = None


class Subject(_Stored, frozen=True, kw_only=True):
    """Subject of policies: a user."""

    subject_type: int
    username: str

    @classmethod
    def of(cls, text: str | None) -> Self | None:
        """Read ``User:name``; None for anything else."""
        kind, _, name = (text or "").partition(":")
        if kind.lower() != _USER.lower():
            return None
        return cls(subject_type=SUBJECT_USER, username=name)

    @property
    def key(self) -> str:
        """``User:name``, the key of its policies in the store."""
        return f"{_USER}:{self.username}"


class Acl(_Stored, frozen=True, kw_only=True):
    """The policies of a subject."""

    policies: list[Policy] | None = None
    subject: Subject

    def info(self) -> AuthAcl:
        """Return the same data in words."""
        policies = [
            AuthPolicy(
                None if policy.policy_type is None else policy.policy_type.word,
                [entry.info() for entry in policy.entries] if policy.entries else None,
            )
            for policy in self.policies or []
        ]
        return AuthAcl(self.subject.key, policies or None)


def policies_of(info: AuthAcl) -> list[Policy]:
    """Read policies from a request; policies without entries are left out."""
    return [
        Policy(
            entries=[PolicyEntry.of(entry) for entry in policy.entries],
            policy_type=PolicyType.of(policy.policy_type) or PolicyType.CUSTOM,
        )
        for policy in info.policies or []
        if policy.entries
    ]


def no_permission(text: str) -> BrokerError:
    """Return the error of every refusal by access control."""
    return BrokerError(ResponseCode.NO_PERMISSION, text)


def check_policies(policies: list[Policy]) -> None:
    """Raise the BrokerError, with RocketMQ's words, for invalid policies.

    Java: AuthorizationMetadataManagerImpl#validate.
    """
    if not policies:
        raise no_permission("The policies is empty.")
    for policy in policies:
        for entry in policy.entries or []:
            _check_entry(entry)


def _check_entry(entry: PolicyEntry) -> None:
    if entry.resource is None:
        raise no_permission("The resource is null.")
    if not entry.actions:
        raise no_permission("The actions is empty.")
    if Action.ANY in entry.actions:
        raise no_permission("The actions can not be Any.")
    for source in (entry.environment and entry.environment.source_ips) or []:
        if not source.strip():
            raise no_permission("The source ip is empty.")
        if not is_address_or_network(source):
            raise no_permission("The source ip is invalid.")
    if entry.decision is None:
        raise no_permission("The decision is null or illegal.")


def is_address_or_network(text: str) -> bool:
    """Tell whether this is an IPv4 or IPv6 address, or a network like ``10.0.0.0/8``."""
    try:
        if "/" in text:
            ip_network(text, strict=False)
        else:
            ip_address(text)
    except ValueError:
        return False
    return True
