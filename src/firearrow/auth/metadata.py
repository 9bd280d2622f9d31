"""Users and their policies: RocksDB databases below `config/`, with a complete copy in memory.

A change is in the database before it is visible, so it outlives the process. `sync` makes it durable, and only then the
client gets its answer (`broker.storage.saving`). RocketMQ opens the databases that Firearrow writes, and the reverse.

Refusals have RocketMQ's codes and words.

Source: RocketMQ's ``AuthenticationMetadataManagerImpl``, ``AuthorizationMetadataManagerImpl``, and their local
providers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from firearrow.auth.model import (
    SUBJECT_USER,
    Acl,
    Policy,
    PolicyEntry,
    PolicyType,
    Resource,
    Subject,
    User,
    UserStatus,
    UserType,
    check_policies,
    no_permission,
)
from firearrow.database import DEFAULT, Database, FamilyOptions, MiB, families_of
from firearrow.errors import BrokerError, ConfigError, CorruptStore
from firearrow.events import Events
from firearrow.logs import Log
from firearrow.wire.codes import ResponseCode

log: Final = Log(__name__)

USERS: Final = "users"
ACLS: Final = "acls"
_BUFFER_BYTES: Final = MiB
_OPEN_FILES_MAX: Final = 64

_encode = msgspec.json.Encoder().encode
S = TypeVar("S", User, Acl)


May = Callable[[str, Acl | None], object]
"""Check that raises the BrokerError unless the sender may give these policies to a user."""


def _anything(_: str, __: Acl | None) -> None:
    """Allow all changes."""


class _Rows:
    """One of the two databases."""

    def __init__(self, path: Path) -> None:
        self._path = path
        others = [name for name in families_of(path) if name != DEFAULT]
        self._database = Database(
            path,
            [FamilyOptions(name, _BUFFER_BYTES) for name in (DEFAULT, *others)],
            cache_bytes=_BUFFER_BYTES,
            open_files_max=_OPEN_FILES_MAX,
            log_ahead=True,
            has_secrets=True,
        )

    def read(self, type_: type[S]) -> dict[str, S]:
        """Return all rows, in the order of their keys; raises ConfigError that names an unreadable row."""
        decode = msgspec.json.Decoder(type_).decode
        found: dict[str, S] = {}
        for key, value in self._database.tables[DEFAULT].rows():
            try:
                found[key.decode()] = decode(value)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigError(f"{self._path}, row {key!r}: {error}") from None
        return found

    def put(self, key: str, value: User | Acl | None) -> None:
        """Write a row, or remove it; raises OSError if the disk refuses."""
        batch = self._database.batch()
        if value is None:
            batch.delete(DEFAULT, key.encode())
        else:
            batch.put(DEFAULT, key.encode(), _encode(value))
        self._database.write(batch, sync=False)

    def sync(self) -> None:
        """Return once all rows are on the disk; raises OSError if it refuses."""
        self._database.sync()

    def close(self) -> None:
        """Close the database."""
        self._database.close()


class Metadata:
    """Users and policies of a broker, below its directory `config`.

    Raises ConfigError if a database can't be used, also if the package is missing.
    """

    def __init__(self, directory: Path, events: Events) -> None:
        self.unsynced: bool = False
        self._changed = events.of(RightsChanged)
        opened: list[_Rows] = []
        try:
            opened.extend(_Rows(directory / name) for name in (USERS, ACLS))
            self._user_rows, self._acl_rows = opened
            self._users = self._user_rows.read(User)
            self._acls = self._acl_rows.read(Acl)
        except BaseException as error:
            for rows in opened:
                rows.close()
            if isinstance(error, OSError | CorruptStore):
                raise ConfigError(f"users can't be read: {error}") from None
            raise
        self.users: Mapping[str, User] = MappingProxyType(self._users)

    # --- users ---

    def create_user(self, user: User) -> None:
        """Create a user, by default a normal and enabled one."""
        _check_name(user.username)
        if not (user.password and user.password.strip()):
            raise no_permission("password can not be blank")
        if user.username in self._users:
            raise no_permission("The user is existed")
        self._put_user(_as_made(user))

    def is_made(self, user: User) -> bool:
        """Tell whether the user exists as `create_user` would create it."""
        return self._users.get(user.username) == _as_made(user)

    def update_user(self, user: User) -> None:
        """Change the given fields of a user."""
        _check_name(user.username)
        old = self._users.get(user.username)
        if old is None:
            raise no_permission("The user is not exist")
        self._put_user(
            replace(
                old,
                password=user.password if user.password and user.password.strip() else old.password,
                user_type=user.user_type or old.user_type,
                user_status=user.user_status or old.user_status,
            )
        )

    def delete_user(self, username: str) -> None:
        """Delete a user and its policies, the policies first: a later user of this name must not inherit rights.

        Nothing happens if there is no such user.
        """
        _check_name(username)
        if username not in self._users:
            return
        subject = Subject(subject_type=SUBJECT_USER, username=username)
        if subject.key in self._acls:
            self._put_acl(subject, None)
        self._user_rows.put(username, None)
        del self._users[username]
        self._note_change(username)

    def user(self, username: str) -> User | None:
        """Return a user, None if there is none of this name."""
        _check_name(username)
        return self._users.get(username)

    def list_users(self, like: str | None) -> list[User]:
        """Return the users whose names contain a text, in order."""
        wanted = like if like and like.strip() else ""
        return [user for name, user in _sorted(self._users) if wanted in name]

    def _put_user(self, user: User) -> None:
        self._user_rows.put(user.username, user)
        self._users[user.username] = user
        self._note_change(user.username)

    # --- policies ---

    def put_policies(self, subject: Subject | None, policies: list[Policy], may: May = _anything) -> None:
        """Add policies to a subject; entries of the same type for the same resource are replaced.

        ``may`` is called before. Java: createAcl and updateAcl do the same.
        """
        if subject is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "An system error occurred, please try again later.")
        check_policies(policies)
        if subject.username not in self._users:
            raise no_permission(f"The subject of {subject.key} is not exist.")
        old = self._acls.get(subject.key)
        merged = list(old.policies or []) if old else []
        for policy in policies:
            _merge(merged, policy)
        acl = Acl(subject=subject, policies=merged)
        may(subject.username, acl)
        self._put_acl(subject, acl)

    def delete_policies(
        self,
        subject: Subject | None,
        policy_type: PolicyType | None = None,
        resource: Resource | None = None,
        may: May = _anything,
    ) -> None:
        """Delete the policies of a subject; with a resource, only its entries of one type, or of all types.

        ``may`` is called before. Java: AuthorizationMetadataManagerImpl#deleteAcl takes CUSTOM for no type. Therefore
        mqadmin, which names none, can't delete an entry of DEFAULT there.
        """
        if subject is None:
            raise no_permission("The subject is null.")
        acl = self.policies(subject)
        if acl is None:
            raise no_permission("The acl is not exist.")
        kept: list[Policy] = []
        for policy in acl.policies or [] if resource else []:
            entries = list(policy.entries or [])
            if policy_type in (None, policy.policy_type):
                entries = [entry for entry in entries if entry.resource != resource]
            if entries:
                kept.append(replace(policy, entries=entries))
        left = replace(acl, policies=kept) if kept else None
        may(subject.username, left)
        self._put_acl(subject, left)

    def policies(self, subject: Subject | None) -> Acl | None:
        """Return the policies of a subject; None if it has none."""
        if subject is None:
            raise no_permission("The subject is null.")
        if subject.username not in self._users:
            raise no_permission("The subject is not exist.")
        return self.acl_of(subject.username)

    def acl_of(self, username: str) -> Acl | None:
        """Return the policies of a user, without a check that the user exists."""
        return self._acls.get(Subject(subject_type=SUBJECT_USER, username=username).key)

    def list_policies(self, subject_like: str | None, resource_like: str | None) -> list[Acl]:
        """Return the policies of subjects, filtered by a text in the subject's and in the resource's name."""
        wanted = subject_like if subject_like and subject_like.strip() else ""
        part = resource_like if resource_like and resource_like.strip() else ""
        found = (_about(acl, part) for key, acl in _sorted(self._acls) if wanted in key)
        return [acl for acl in found if acl.policies]

    def _put_acl(self, subject: Subject, acl: Acl | None) -> None:
        self._acl_rows.put(subject.key, acl)
        if acl is None:
            self._acls.pop(subject.key, None)
        else:
            self._acls[subject.key] = acl
        self._note_change(subject.username)

    def _note_change(self, username: str) -> None:
        self.unsynced = True
        self._changed(RightsChanged(username))

    # --- a master's ---

    def follow(self, users: Iterable[User], acls: Iterable[Acl]) -> None:
        """Take over the users and policies of a master, and delete all others.

        Unlike topics, this includes a master that has lost its files: a deleted user must not return at the next
        master, and nothing tells the two cases apart.
        """
        new_users = {user.username: user for user in users}
        new_acls = {acl.subject.key: acl for acl in acls}
        gone = [name for name in self._users if name not in new_users]
        if gone:
            log.warning("users are deleted: the master does not have them", extra={"users": gone})
        for name in gone:
            self.delete_user(name)
        for key in [key for key in self._acls if key not in new_acls]:
            self._put_acl(self._acls[key].subject, None)
        for name, user in new_users.items():
            if user != self._users.get(name):
                self._put_user(user)
        for key, acl in new_acls.items():
            if acl != self._acls.get(key):
                self._put_acl(acl.subject, acl)

    # --- the disk ---

    def sync(self) -> None:
        """Return once all changes are on the disk, in any thread; raises OSError if it refuses."""
        if self.unsynced:
            self.unsynced = False
            try:
                self._user_rows.sync()
                self._acl_rows.sync()
            except BaseException:
                self.unsynced = True
                raise

    def close(self) -> None:
        """Close the databases."""
        self._user_rows.close()
        self._acl_rows.close()


def _as_made(user: User) -> User:
    """Return a new user with the defaults filled in."""
    return replace(user, user_type=user.user_type or UserType.NORMAL, user_status=user.user_status or UserStatus.ENABLE)


def _check_name(username: str) -> None:
    if not username.strip():
        raise no_permission("username can not be blank")


def _sorted(table: Mapping[str, S]) -> Iterable[tuple[str, S]]:
    """Sort by the order of the database: that of the keys' bytes, which is that of their characters."""
    return sorted(table.items())


def _index_of(policies: list[Policy], policy_type: PolicyType | None) -> int | None:
    types = [policy.policy_type for policy in policies]
    return types.index(policy_type) if policy_type in types else None


def _merge(policies: list[Policy], new: Policy) -> None:
    """Add the entries of a policy to the policy of its type; they replace entries of the same resource."""
    at = _index_of(policies, new.policy_type)
    if at is None:
        policies.append(new)
        return
    entries = list(policies[at].entries or [])
    for entry in new.entries or []:
        _put_entry(entries, entry)
    policies[at] = replace(policies[at], entries=entries)


def _put_entry(entries: list[PolicyEntry], new: PolicyEntry) -> None:
    resources = [entry.resource for entry in entries]
    if new.resource in resources:
        entries[resources.index(new.resource)] = new
    else:
        entries.append(new)


def _about(acl: Acl, part: str) -> Acl:
    """Return the entries about resources whose names contain a text."""
    kept: list[Policy] = []
    for policy in acl.policies or []:
        entries = [it for it in policy.entries or [] if it.resource and part in it.resource.text]
        if entries:
            kept.append(replace(policy, entries=entries))
    return replace(acl, policies=kept)


# --- Events of users and policies, for parts that keep values derived from them ---


class RightsChanged(NamedTuple):
    """A user or its policies were created, changed or deleted."""

    username: str
