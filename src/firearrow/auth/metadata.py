"""Who the users are and what is said of them: RocksDB below `config/`, and all of it in memory.

A change is in the database before it is seen, so it outlives the process; `sync` brings it to the
disk, and whoever asked for it hears of it then (`broker.storage.saving`). RocketMQ opens the databases that
this writes, and the other way round.

What is refused is refused with upstream's codes and words.

Source: upstream ``AuthenticationMetadataManagerImpl``, ``AuthorizationMetadataManagerImpl``, and
their local providers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from firearrow.auth.events import RightsChanged
from firearrow.auth.model import (
    SUBJECT_USER,
    Acl,
    Entry,
    Policy,
    PolicyType,
    Resource,
    Subject,
    User,
    UserStatus,
    UserType,
    check_policies,
    no_permission,
)
from firearrow.database import DEFAULT, Database, Family, MiB, families_of
from firearrow.errors import BrokerError, ConfigError, CorruptStore
from firearrow.events import Events
from firearrow.wire.codes import ResponseCode

log = logging.getLogger(__name__)

USERS: Final = "users"
ACLS: Final = "acls"
_BUFFER_BYTES: Final = MiB
_OPEN_FILES_MAX: Final = 64

_encode = msgspec.json.Encoder().encode
S = TypeVar("S", User, Acl)


May = Callable[[str, Acl | None], object]
"""Raises the BrokerError for who may not have a user have these policies."""


def _anything(_: str, __: Acl | None) -> None:
    """Allow all changes."""


class _Rows:
    """One of the two databases."""

    def __init__(self, path: Path) -> None:
        self._path = path
        others = [name for name in families_of(path) if name != DEFAULT]
        self._database = Database(
            path,
            [Family(name, _BUFFER_BYTES) for name in (DEFAULT, *others)],
            cache_bytes=_BUFFER_BYTES,
            open_files_max=_OPEN_FILES_MAX,
            log_ahead=True,
            has_secrets=True,
        )

    def read(self, type_: type[S]) -> dict[str, S]:
        """All rows, in the order of their keys. ConfigError names one that can't be read."""
        decode = msgspec.json.Decoder(type_).decode
        found: dict[str, S] = {}
        for key, value in self._database.tables[DEFAULT].rows():
            try:
                found[key.decode()] = decode(value)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigError(f"{self._path}, row {key!r}: {error}") from None
        return found

    def put(self, key: str, value: User | Acl | None) -> None:
        """Write a row, or remove it; OSError if it can't be."""
        batch = self._database.batch()
        if value is None:
            batch.delete(DEFAULT, key.encode())
        else:
            batch.put(DEFAULT, key.encode(), _encode(value))
        self._database.write(batch, sync=False)

    def sync(self) -> None:
        """Return once all rows are on the disk; OSError if it refuses."""
        self._database.sync()

    def close(self) -> None:
        """Close the database."""
        self._database.close()


class Metadata:
    """Users and policies of a broker, below its directory `config`.

    Raises ConfigError where a database can't be used, be it for want of the package.
    """

    def __init__(self, directory: Path, events: Events) -> None:
        self.unsynced = False
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
        """Make a user, a normal and enabled one if nothing else is said."""
        _check_name(user.username)
        if not (user.password and user.password.strip()):
            raise no_permission("password can not be blank")
        if user.username in self._users:
            raise no_permission("The user is existed")
        self._put_user(_as_made(user))

    def is_made(self, user: User) -> bool:
        """Tell whether there is a user as `create_user` makes it."""
        return self._users.get(user.username) == _as_made(user)

    def update_user(self, user: User) -> None:
        """Change of a user what is said."""
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
        """Delete a user and what it may do, that first: who gets the name gets no rights with it.

        Nothing happens if there is none.
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
        """A user."""
        _check_name(username)
        return self._users.get(username)

    def list_users(self, like: str | None) -> list[User]:
        """The users whose names have this in them, in order."""
        wanted = like if like and like.strip() else ""
        return [user for name, user in _sorted(self._users) if wanted in name]

    def _put_user(self, user: User) -> None:
        self._user_rows.put(user.username, user)
        self._users[user.username] = user
        self._note_change(user.username)

    # --- policies ---

    def put_policies(self, subject: Subject | None, policies: list[Policy], may: May = _anything) -> None:
        """Add policies to those of a subject; what it has of a type for a resource is replaced.

        ``may`` is asked before. Java: createAcl and updateAcl do the same.
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
        """Forget what a subject may do; with a resource, what a type says of that, or all types.

        ``may`` is asked before. Java: AuthorizationMetadataManagerImpl#deleteAcl takes CUSTOM for
        no type, so that mqadmin, which names none, can't delete an entry of DEFAULT.
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
        """What a subject may do; None if nothing is said of it."""
        if subject is None:
            raise no_permission("The subject is null.")
        if subject.username not in self._users:
            raise no_permission("The subject is not exist.")
        return self.acl_of(subject.username)

    def acl_of(self, username: str) -> Acl | None:
        """What a user may do, without asking whether there is one."""
        return self._acls.get(Subject(subject_type=SUBJECT_USER, username=username).key)

    def list_policies(self, subject_like: str | None, resource_like: str | None) -> list[Acl]:
        """What subjects may do; only those, and only for resources, that have this in the name."""
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
        """Have the users and policies of a master and no others.

        Also of one that has lost its files, unlike topics: a user that was deleted must not live
        again at the next master, and nothing tells the two apart.
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
        """Return once all changes are on the disk, in any thread; OSError if it refuses."""
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
    """Say what is not said of a new user."""
    return replace(user, user_type=user.user_type or UserType.NORMAL, user_status=user.user_status or UserStatus.ENABLE)


def _check_name(username: str) -> None:
    if not username.strip():
        raise no_permission("username can not be blank")


def _sorted(table: Mapping[str, S]) -> Iterable[tuple[str, S]]:
    """In the order of the database: that of the keys' bytes, which is that of their characters."""
    return sorted(table.items())


def _index_of(policies: list[Policy], policy_type: PolicyType | None) -> int | None:
    types = [policy.policy_type for policy in policies]
    return types.index(policy_type) if policy_type in types else None


def _merge(policies: list[Policy], new: Policy) -> None:
    """Add the entries of a policy to the one of its type, in the place of those of the resource."""
    at = _index_of(policies, new.policy_type)
    if at is None:
        policies.append(new)
        return
    entries = list(policies[at].entries or [])
    for entry in new.entries or []:
        _put_entry(entries, entry)
    policies[at] = replace(policies[at], entries=entries)


def _put_entry(entries: list[Entry], new: Entry) -> None:
    resources = [entry.resource for entry in entries]
    if new.resource in resources:
        entries[resources.index(new.resource)] = new
    else:
        entries.append(new)


def _about(acl: Acl, part: str) -> Acl:
    """The entries about resources whose names have this in them."""
    kept: list[Policy] = []
    for policy in acl.policies or []:
        entries = [it for it in policy.entries or [] if it.resource and part in it.resource.text]
        if entries:
            kept.append(replace(policy, entries=entries))
    return replace(acl, policies=kept)
