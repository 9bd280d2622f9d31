"""Sign-in: users of the cluster's own access control, whose rights the brokers apply to each request of their pages.

A cluster needs a sign-in if the console listens on another address than this machine's own, or if the context has a
user: the console never acts with the rights of that user for somebody who has not shown its password. Passwords are
kept in memory until the session ends; a cookie only has the number of the session.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import Final

from starlette.requests import Request

from firearrow.cli.cluster.masters import masters_in
from firearrow.cli.cluster.options import Target
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.clock import Clock
from firearrow.errors import FirearrowError
from firearrow.wire.signature import Credentials

SESSION: Final = "session"
IDLE_SECONDS: Final = 12 * 60 * 60.0
SESSIONS_MAX: Final = 10_000
FAILED_SECONDS: Final = 1.0
"""Wait after a wrong password, for all who try: one of a hundred million takes years to guess."""


class WrongPassword(FirearrowError):
    """A user or a password that the brokers do not know."""


@dataclass(slots=True)
class _Session:
    users: dict[str, Credentials] = field(default_factory=dict)
    seen: float = 0.0


class Sessions:
    """Sessions of browsers, each with a user for some clusters."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._sessions: dict[str, _Session] = {}
        self._trying = asyncio.Lock()

    def user(self, request: Request, cluster: str) -> Credentials | None:
        """Give the user of a browser in a cluster; None before a sign-in."""
        session = self._sessions.get(request.session.get(SESSION, ""))
        if session is None or self._clock.monotonic() - session.seen > IDLE_SECONDS:
            return None
        session.seen = self._clock.monotonic()
        return session.users.get(cluster)

    async def sign_in(self, request: Request, cluster: str, target: Target, user: Credentials) -> None:
        """Let a browser act as a user. Raises WrongPassword, or FirearrowError if no password can be checked."""
        async with self._trying:
            try:
                await check(target, user)
            except WrongPassword:
                await asyncio.sleep(FAILED_SECONDS)
                raise
        session = self._sessions.get(request.session.get(SESSION, ""), _Session())
        session.users[cluster], session.seen = user, self._clock.monotonic()
        number = token_urlsafe(32)  # a number from before the sign-in may be known to others
        self._sessions.pop(request.session.pop(SESSION, ""), None)
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
