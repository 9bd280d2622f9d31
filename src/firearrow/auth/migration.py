"""Migration of the users of RocketMQ 4's access control (ACL 1) to users and policies of ACL 2.0.

The users of ACL 1 are in YAML below the directory that ``ROCKETMQ_HOME`` names, in ``conf/plain_acl.yml`` and
``conf/acl/``:

    accounts:
      - accessKey: shop
        secretKey: its secret
        admin: false
        defaultTopicPerm: DENY
        topicPerms: [orders=PUB|SUB]
        groupPerms: [shop=SUB]

An administrator becomes a super user. A permission on a topic or group becomes an entry of type CUSTOM; a default
permission becomes one of type DEFAULT. ACL 2.0 has no place for lists of addresses that are exempt from signatures. A
user that exists already stays unchanged, so each start may do this again.

Source: RocketMQ's ``AuthMigrator``, ``PlainPermissionManager``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from firearrow.auth.metadata import Metadata
from firearrow.auth.model import (
    SUBJECT_USER,
    Action,
    Pattern,
    Policy,
    PolicyDecision,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceType,
    Subject,
    User,
    UserType,
)
from firearrow.errors import BrokerError, ConfigError, MissingPackage
from firearrow.logs import Log
from firearrow.message.names import group_of, is_retry

log: Final = Log(__name__)

FILE: Final = "conf/plain_acl.yml"
DIRECTORY: Final = "conf/acl"
_SUFFIXES: Final = {".yml", ".yaml"}
_ACTIONS: Final[Mapping[str, list[Action]]] = {
    "PUB": [Action.PUB],
    "SUB": [Action.SUB],
    "PUB|SUB": [Action.PUB, Action.SUB],
    "SUB|PUB": [Action.PUB, Action.SUB],
}


class Account(msgspec.Struct, rename="camel", kw_only=True):
    """A user of ACL 1."""

    access_key: str
    secret_key: str
    admin: bool = False
    white_remote_address: str = ""
    default_topic_perm: str = ""
    default_group_perm: str = ""
    topic_perms: list[str] = []
    group_perms: list[str] = []

    def __repr__(self) -> str:
        """Text of the account without its secret."""
        return f"Account({self.access_key!r})"


class _File(msgspec.Struct, rename="camel"):
    accounts: list[Account] = []
    global_white_remote_addresses: list[str] = []


def accounts_below(home: Path) -> list[Account]:
    """Return the accounts of all files, each name once; raises ConfigError that names an unreadable file."""
    files = [path for path in sorted((home / DIRECTORY).rglob("*")) if path.suffix in _SUFFIXES]
    if (home / FILE).is_file():
        files.append(home / FILE)
    found: dict[str, Account] = {}
    for path in files:
        for account in _accounts_in(path):
            found.setdefault(account.access_key, account)
    return list(found.values())


def _accounts_in(path: Path) -> list[Account]:
    try:
        import yaml
    except ImportError:
        raise MissingPackage("files of ACL 1 need", "PyYAML", "yaml") from None
    try:
        # The base loader leaves all values text: a secret of digits stays as it is written.
        content = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)
        found = msgspec.convert(_said(content) or {}, _File, strict=False)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path} is no file of ACL 1: {error}") from None
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)  # the text around it may be a secret
        raise ConfigError(f"{path} is no YAML, see line {mark.line + 1 if mark else 1}") from None
    if found.global_white_remote_addresses:
        _warn_of_addresses("path", str(path))
    return found.accounts


def _warn_of_addresses(what: str, name: str) -> None:
    log.warning("addresses that needed no signature are not taken over", extra={what: name})


def _said(content: Any) -> Any:
    """Leave out keys without a value."""
    if isinstance(content, dict):
        return {key: _said(value) for key, value in content.items() if value not in ("", "null")}
    return [_said(item) for item in content] if isinstance(content, list) else content


def migrate(metadata: Metadata, accounts: Iterable[Account]) -> list[str]:
    """Create users and policies from accounts; return the names of the new users."""
    made: list[str] = []
    for account in accounts:
        if account.access_key in metadata.users:
            continue
        try:
            _make(metadata, account)
        except BrokerError as error:
            log.error("user of ACL 1 is not taken over", extra={"user": account.access_key, "reason": error.remark})
            continue
        made.append(account.access_key)
        if account.white_remote_address:
            _warn_of_addresses("user", account.access_key)
    if made:
        log.info("users of ACL 1 are taken over", extra={"count": len(made)})
    return made


def _make(metadata: Metadata, account: Account) -> None:
    metadata.create_user(
        User(
            username=account.access_key,
            password=account.secret_key,
            subject_type=SUBJECT_USER,
            user_type=UserType.SUPER if account.admin else UserType.NORMAL,
        )
    )
    policies = _policies_of(account)
    if policies:
        subject = Subject(subject_type=SUBJECT_USER, username=account.access_key)
        metadata.put_policies(subject, policies)


def _policies_of(account: Account) -> list[Policy]:
    custom = [*_entries(ResourceType.TOPIC, account.topic_perms), *_entries(ResourceType.GROUP, account.group_perms)]
    default = [
        _entry(Resource(resource_type=kind, resource_pattern=Pattern.ANY), text)
        for kind, text in (
            (ResourceType.TOPIC, account.default_topic_perm),
            (ResourceType.GROUP, account.default_group_perm),
        )
        if text.strip()
    ]
    both = (PolicyType.CUSTOM, custom), (PolicyType.DEFAULT, default)
    return [Policy(entries=entries, policy_type=kind) for kind, entries in both if entries]


def _entries(kind: ResourceType, perms: Sequence[str]) -> list[PolicyEntry]:
    """Read texts like ``name=PUB``; a malformed text is left out, as in RocketMQ."""
    entries: list[PolicyEntry] = []
    for perm in perms:
        parts = [part for part in perm.split("=") if part]
        if len(parts) != 2:
            continue
        name, text = parts[0].strip(), parts[1]
        if kind == ResourceType.GROUP and is_retry(name):
            name = group_of(name) or ""
        resource = Resource(resource_name=name, resource_pattern=Pattern.LITERAL, resource_type=kind)
        entries.append(_entry(resource, text))
    return entries


def _entry(resource: Resource, text: str) -> PolicyEntry:
    """Return the entry for a word of ACL 1, which takes an unknown word for ``DENY``.

    Java: AuthMigrator#parseDecision allows everything then.
    """
    actions = _ACTIONS.get(text.strip())
    if actions is None:
        return PolicyEntry(actions=[Action.ALL], decision=PolicyDecision.DENY, resource=resource)
    return PolicyEntry(actions=actions, decision=PolicyDecision.ALLOW, resource=resource)
