"""Users that a configuration demands, and the migration of users of ACL 1.

Source: RocketMQ's ``AuthenticationMetadataManagerImpl#initUser``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from firearrow.auth.metadata import Metadata
from firearrow.auth.migration import FILE, accounts_below, migrate
from firearrow.auth.model import SUBJECT_USER, User, UserStatus, UserType
from firearrow.errors import BrokerError, ConfigError
from firearrow.events import Events
from firearrow.wire.signature import Credentials

T = TypeVar("T")


class _FirstUser(msgspec.Struct, rename="camel"):
    username: str
    password: str


class _InnerClient(msgspec.Struct, rename="camel"):
    access_key: str
    secret_key: str
    security_token: str = ""


class Wishes(Protocol):
    """Keys of a configuration about users."""

    @property
    def init_authentication_user(self) -> str:
        """``{"username":"...","password":"..."}``, or nothing."""
        ...

    @property
    def inner_client_authentication_credentials(self) -> str:
        """``{"accessKey":"...","secretKey":"..."}``, or nothing."""
        ...

    @property
    def migrate_auth_from_v1_enabled(self) -> bool:
        """True if users of ACL 1 must be migrated."""
        ...


def credentials_of(text: str) -> Credentials | None:
    """Read ``innerClientAuthenticationCredentials``, None if it is empty; a ConfigError does not show its value."""
    if not text:
        return None
    found = _read(text, _InnerClient, "innerClientAuthenticationCredentials")
    return Credentials(found.access_key, found.secret_key, found.security_token)


def metadata_of(config: Wishes, directory: Path, events: Events, home: Path | None = None) -> Metadata:
    """Open users and policies below a directory, with the users that a configuration demands.

    Users that it names are super users; users of ACL 1 are below ``home``. An existing user stays unchanged. Raises
    ConfigError on a failure.
    """
    metadata = Metadata(directory, events)
    try:
        if config.init_authentication_user:
            user = _read(config.init_authentication_user, _FirstUser, "initAuthenticationUser")
            _make(metadata, user.username, user.password, "initAuthenticationUser")
        own = credentials_of(config.inner_client_authentication_credentials)
        if own is not None:
            key = "innerClientAuthenticationCredentials"
            _make(metadata, own.access_key, own.secret_key, key)
        if config.migrate_auth_from_v1_enabled:
            if home is None:
                raise ConfigError(
                    f"migrateAuthFromV1Enabled=true needs ROCKETMQ_HOME: the directory with {FILE} of RocketMQ 4"
                )
            migrate(metadata, accounts_below(home))
        metadata.sync()
    except BaseException as error:
        metadata.close()
        if isinstance(error, OSError):
            raise ConfigError(f"users can't be written: {error}") from None
        raise
    return metadata


def _make(metadata: Metadata, username: str, password: str, key: str) -> None:
    if username in metadata.users:
        return
    user = User(
        username=username,
        password=password,
        subject_type=SUBJECT_USER,
        user_type=UserType.SUPER,
        user_status=UserStatus.ENABLE,
    )
    try:
        metadata.create_user(user)
    except BrokerError as error:
        raise ConfigError(f"{key}: {error.remark}") from None


def _read(text: str, type_: type[T], key: str) -> T:
    try:
        return msgspec.json.decode(text, type=type_)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{key} can't be read: {error}") from None
