"""A broker with access control, and clients that sign for one user or another."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from firearrow.wire.command import Command, FieldValue, request
from firearrow.wire.signature import Credentials, sign
from tests.broker.serving import Caller, Serving, calling
from tests.net.talker import talking

ROOT = Credentials("root", "root's secret")
WITH_USERS: Mapping[str, Any] = {
    "init_authentication_user": json.dumps({"username": "root", "password": "root's secret"})
}
AUTHENTICATED: Mapping[str, Any] = {"authentication_enabled": True, **WITH_USERS}
AUTHORIZED: Mapping[str, Any] = {"authorization_enabled": True, **AUTHENTICATED}


class Signer(Caller):
    """A connection on which one user signs; None: nobody does."""

    credentials: Credentials | None = ROOT

    def signed(self, code: int, fields: Mapping[str, FieldValue], body: bytes = b"") -> Command[dict[str, str]]:
        """A request."""
        command = request(code, fields, body, opaque=next(self._opaque))
        if self.credentials is not None:
            sign(command.ext, body, self.credentials)
        command.binary = self._binary
        return command

    def tell(self, code: int, fields: Mapping[str, FieldValue], body: bytes = b"", *, oneway: bool = False) -> int:
        """Send a request and return its opaque."""
        assert not oneway, "tests here want to know"
        command = self.signed(code, fields, body)
        self.talker.ask(command)
        return command.opaque

    async def user(self, name: str, **info: str) -> Credentials:
        """Make a user, by whoever signs here."""
        credentials = Credentials(name, f"secret of {name}")
        body = json.dumps({"password": credentials.secret_key} | info).encode()
        made = await self.call(3001, {"username": name}, body)
        assert (made.code, made.remark) == (0, None)
        return credentials

    async def allow(self, name: str, *entries: tuple[str, Sequence[str]], decision: str = "Allow") -> None:
        """Say what a user may do: resources, and actions on them."""
        found = [{"resource": it, "actions": list(on), "decision": decision} for it, on in entries]
        acl = {"policies": [{"policyType": "Custom", "entries": found}]}
        made = await self.call(3006, {"subject": f"User:{name}"}, json.dumps(acl).encode())
        assert (made.code, made.remark) == (0, None)


@asynccontextmanager
async def signing(served: Serving, credentials: Credentials | None, *, binary: bool = False) -> AsyncIterator[Signer]:
    """A connection of its own for a user."""
    async with talking(served.port) as talker:
        signer = Signer(served, talker, binary)
        signer.credentials = credentials
        yield signer


def protected(
    root: Path,
    main: Callable[[Serving, Signer], Coroutine[Any, Any, None]],
    config: Mapping[str, Any] = AUTHORIZED,
    **options: Any,
) -> None:
    """Run a test against a broker with access control; the first connection is root's."""

    async def run(served: Serving, _: Caller) -> None:
        async with signing(served, ROOT) as signer:
            await main(served, signer)

    calling(root, run, **config, **options)
