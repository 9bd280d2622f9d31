"""Sign-in: users of the cluster's own access control, whose rights the brokers apply to each request of their pages.

A cluster needs a sign-in if the console listens on another address than this machine's own, if the context has a user,
or if there is a provider of OpenID Connect (`openid`). A browser acts as a user only after its password was shown, or
with a role for it. Passwords are kept in memory until the session ends; a cookie only has the number of the session.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import Final, NamedTuple

from starlette.requests import Request

from firearrow.cli.cluster.masters import masters_in
from firearrow.cli.cluster.options import Target
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.clock import Clock
from firearrow.errors import FirearrowError
from firearrow.wire.signature import Credentials

LOCAL_HOSTS: Final = ("127.0.0.1", "localhost", "::1")
"""Names by which a machine reaches itself alone."""
CALLBACK: Final = "/openid/callback"
"""Address to which a provider of OpenID Connect sends browsers back."""
SESSION: Final = "session"
IDLE_SECONDS: Final = 12 * 60 * 60.0
SESSIONS_MAX: Final = 10_000
FAILED_SECONDS: Final = 1.0
"""Wait after a wrong password, for all who try: one of a hundred million takes years to guess."""


class NotAdmitted(FirearrowError):
    """A sign-in that failed."""


class WrongPassword(NotAdmitted):
    """A user or a password that the brokers do not know."""


class SignedIn(NamedTuple):
    """Somebody in a cluster: the name for the log of changes, and the user as whom the console asks the brokers.

    The sign-in ends at the monotonic time ``until``, in seconds.
    """

    name: str
    credentials: Credentials | None = None
    read_only: bool = False
    until: float = math.inf


@dataclass(slots=True)
class _Session:
    users: dict[str, SignedIn] = field(default_factory=dict)
    seen: float = 0.0


class Sessions:
    """Sessions of browsers, each with a user for some clusters."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._sessions: dict[str, _Session] = {}
        self._trying = asyncio.Lock()

    def user(self, request: Request, cluster: str) -> SignedIn | None:
        """Give the user of a browser in a cluster; None before a sign-in, and after its end."""
        session, now = self._sessions.get(request.session.get(SESSION, "")), self._clock.monotonic()
        if session is None or now - session.seen > IDLE_SECONDS:
            return None
        session.seen = now
        user = session.users.get(cluster)
        return user if user is not None and now < user.until else None

    async def sign_in(self, request: Request, cluster: str, target: Target, user: Credentials) -> None:
        """Let a browser act as a user. Raises WrongPassword, or FirearrowError if no password can be checked."""
        async with self._trying:
            try:
                await check(target, user)
            except WrongPassword:
                await asyncio.sleep(FAILED_SECONDS)
                raise
        self.admit(request, {cluster: SignedIn(user.access_key, user)})

    def admit(self, request: Request, users: Mapping[str, SignedIn]) -> None:
        """Let a browser act as the users of some clusters, in a session with a new number."""
        session = self._sessions.pop(request.session.pop(SESSION, ""), _Session())
        session.users.update(users)
        session.seen = self._clock.monotonic()
        number = token_urlsafe(32)  # a number from before the sign-in may be known to others
        self._sessions[number] = session
        request.session[SESSION] = number
        while len(self._sessions) > SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]

    def sign_out(self, request: Request) -> None:
        """Forget the users of a browser."""
        self._sessions.pop(request.session.pop(SESSION, ""), None)


async def check(target: Target, user: Credentials) -> None:
    """Return if a cluster's brokers know a user by this password.

    Raises WrongPassword, or FirearrowError if they check no passwords: then nobody could be kept out.
    """
    async with (
        Admin.of(target.name_servers, None, target.tls) as anybody,
        Admin.of(target.name_servers, user, target.tls) as somebody,
    ):
        masters = masters_in(await anybody.cluster())
        open_to_all = await concurrently(masters, lambda it: anybody.auth.accepts(it.address))
        if any(open_to_all):
            where = ", ".join(it.broker for it, is_open in zip(masters, open_to_all, strict=True) if is_open)
            raise FirearrowError(f"{where} has no access control, so no password can be checked")
        if not all(await concurrently(masters, lambda it: somebody.auth.accepts(it.address))):
            raise WrongPassword(f"the brokers do not know user {user.access_key!r} with this password")
