"""Authentication and authorization of a request: the proof of its user, and that user's rights.

Every refusal has code 16 and RocketMQ's words. Source: RocketMQ's ``DefaultAuthenticationHandler``,
``StatefulAuthenticationStrategy``, ``UserAuthorizationHandler``, ``AclAuthorizationHandler``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, Protocol

from firearrow.auth.metadata import RightsChanged
from firearrow.auth.model import Acl, Action, ResourceType, User, UserStatus, no_permission
from firearrow.auth.rights import AccessVerdict, Rights
from firearrow.wire.frame import AnyCommand
from firearrow.wire.signature import ACCESS_KEY, is_signed

_WRONG: Final = "check signature failed."


class UsersAndPolicies(Protocol):
    """Users and their policies, as the checks read them: a broker's (`auth.metadata`) or a proxy's."""

    @property
    def users(self) -> Mapping[str, User]:
        """Users by name."""
        ...

    def acl_of(self, username: str) -> Acl | None:
        """Return the policies of a user, without a check that the user exists."""
        ...


class Authentication:
    """Checker of signatures.

    A user that has signed one request on a connection is trusted on it for ``remember_seconds``, without a check of
    further signatures. At most ``remembered_max`` such pairs are kept. Every change of a user ends the trust. Java: it
    continues for that time.
    """

    def __init__(
        self,
        metadata: UsersAndPolicies,
        monotonic: Callable[[], float],
        *,
        remember_seconds: float = 0.0,
        remembered_max: int = 0,
    ) -> None:
        self._users = metadata.users
        self._monotonic = monotonic
        self._remember_seconds = remember_seconds
        self._remembered_max = remembered_max
        self._until: dict[Hashable, dict[str, float]] = {}  # by connection, and user
        self._remembered = 0

    def user_of(self, connection: Hashable, request: AnyCommand, ext: Mapping[str, str]) -> str:
        """Return the user that sent a request; raises BrokerError if that is not certain."""
        username = ext.get(ACCESS_KEY)
        if not username:
            raise no_permission("username cannot be null.")
        if self._until and self._is_remembered(connection, username):
            return username
        password = self.password_of(username)
        if not password or not is_signed(ext, request.body, password, request.version):
            raise no_permission(_WRONG)
        if self._remember_seconds:
            self._remember(connection, username)
        return username

    def password_of(self, username: str) -> str | None:
        """Return the secret of an enabled user; raises BrokerError for any other."""
        user = self._users.get(username)
        if user is None:
            raise no_permission(f"User:{username} is not found.")
        if user.user_status == UserStatus.DISABLE:
            raise no_permission(f"User:{username} is disabled.")
        return user.password

    def check_again(self, username: str, password: str | None) -> None:
        """Raise the BrokerError for a user that can no longer sign by this secret."""
        if password != self.password_of(username):
            raise no_permission(_WRONG)

    def has(self, username: str) -> bool:
        """Tell whether there is a user that may sign requests."""
        user = self._users.get(username)
        return user is not None and user.user_status != UserStatus.DISABLE

    def _is_remembered(self, connection: Hashable, username: str) -> bool:
        until = self._until.get(connection, {}).get(username)
        return until is not None and self._monotonic() < until

    def _remember(self, connection: Hashable, username: str) -> None:
        if username not in self._until.get(connection, ()):
            if self._remembered >= self._remembered_max:
                self.forget_all()
            self._remembered += 1
        until = self._monotonic() + self._remember_seconds
        self._until.setdefault(connection, {})[username] = until

    def forget(self, connection: Hashable) -> None:
        """Forget the users of a connection that has ended."""
        self._remembered -= len(self._until.pop(connection, ()))

    def forget_all(self, _: RightsChanged | None = None) -> None:
        """Check all signatures again from now on."""
        self._until.clear()
        self._remembered = 0


class Authorization:
    """Checker of users' rights by their policies."""

    def __init__(self, metadata: UsersAndPolicies) -> None:
        self._metadata = metadata
        self._users = metadata.users
        self._rights: dict[str, Rights] = {}

    def is_super(self, username: str) -> bool:
        """Tell whether a user, which must exist, is a super user."""
        user = self._users.get(username)
        if user is None:
            raise no_permission(f"User:{username} not found.")
        return user.is_super

    def allows(self, username: str, kind: ResourceType, name: str | None, actions: Iterable[Action], ip: str) -> bool:
        """Tell whether a user may do one of the actions on a resource, or (None) on any."""
        if self.is_super(username):
            return True
        rights = self._rights_of(username)
        if name is None:
            return rights.allows_some(kind, actions, ip)
        return rights.verdict(kind, name, actions, ip) is AccessVerdict.ALLOWED

    def _rights_of(self, username: str) -> Rights:
        rights = self._rights.get(username)
        if rights is None:
            rights = self._rights[username] = Rights(self._metadata.acl_of(username))
        return rights

    def check(self, username: str, kind: ResourceType, name: str, actions: Iterable[Action], ip: str) -> None:
        """Raise a BrokerError unless one of the actions on a resource is allowed."""
        verdict = self._rights_of(username).verdict(kind, name, actions, ip)
        if verdict is not AccessVerdict.ALLOWED:
            raise no_permission(
                f"User:{username} has no permission to access {kind.word}:{name} from {ip}, {verdict.value}"
            )

    def forget(self, changed: RightsChanged) -> None:
        """Forget the compiled rights of a user, because they have changed."""
        self._rights.pop(changed.username, None)
