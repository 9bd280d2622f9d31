"""Client of etcd, version 3, by HTTP and JSON: etcd's gRPC gateway, on the same port.

Numbers of 64 bits are text in JSON, keys and values base64. If a change gets no answer, its outcome is unknown.
Therefore every caller phrases a change so that it may be made twice.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from firearrow.net.http import ask

ANSWER_BYTES_MAX: Final = 64 << 20  # all brokers of some 100,000 names
WHY_CHARS_MAX: Final = 300  # of an answer that is not etcd's

T = TypeVar("T")


class KeyValue(msgspec.Struct, frozen=True):
    """A key; ``version`` counts its changes since the revision that created it."""

    key: bytes = b""
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    version: int = 0
    lease: int = 0


class RangeResponse(msgspec.Struct, frozen=True):
    """The keys that were found."""

    kvs: list[KeyValue] = []


class ResponseOp(msgspec.Struct, frozen=True):
    """Answer to one request of a transaction."""

    response_range: RangeResponse = RangeResponse()


class TxnResponse(msgspec.Struct, frozen=True):
    """Answer to a transaction: the result of its comparisons, and the answers to the chosen requests."""

    succeeded: bool = False
    responses: list[ResponseOp] = []


class Lease(msgspec.Struct, frozen=True, rename="upper"):
    """A lease and its duration in seconds; without seconds it is over."""

    id: int = 0
    ttl: int = 0


class Kept(msgspec.Struct, frozen=True):
    """A renewed lease; None if etcd can't tell at present."""

    result: Lease | None = None


class Nothing(msgspec.Struct, frozen=True):
    """An answer without content: the request is done."""


class _Token(msgspec.Struct, frozen=True):
    token: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    message: str


class EtcdRefused(ConnectionError):
    """Refusal of a request by an etcd that was reached."""


class Etcd:
    """An etcd; ``seconds`` is the time of each of its ``endpoints`` to answer, one after another."""

    def __init__(
        self,
        endpoints: Sequence[str],
        seconds: float,
        credentials: tuple[str, str] = ("", ""),
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._endpoints = deque(endpoints)
        self._seconds = seconds
        self._credentials = credentials
        self._context = context
        self._token = ""

    async def call(self, path: str, request: Mapping[str, Any], answer: type[T]) -> T:
        """Return the first endpoint's answer; that endpoint is the first to try from then on.

        Raises ConnectionError with the reasons if none answers.
        """
        whys: list[str] = []
        for _ in range(len(self._endpoints)):
            endpoint = self._endpoints[0]
            try:
                async with asyncio.timeout(self._seconds):
                    return await self._call(endpoint, path, request, answer)
            except OSError as error:
                why = str(error) or f"no answer within {self._seconds:g} s"
                whys.append(f"{endpoint}: {why}")
                self._endpoints.rotate(-1)
        raise ConnectionError("; ".join(whys))

    async def _call(self, endpoint: str, path: str, request: Mapping[str, Any], answer: type[T]) -> T:
        had_token = bool(self._token)
        try:
            return await self._authenticated(endpoint, path, request, answer)
        except EtcdRefused:
            self._token = ""  # etcd forgets tokens at its start, and old ones
            if not had_token:
                raise
        return await self._authenticated(endpoint, path, request, answer)

    async def _authenticated(self, endpoint: str, path: str, request: Mapping[str, Any], answer: type[T]) -> T:
        name, password = self._credentials
        if name and not self._token:
            user = {"name": name, "password": password}
            self._token = (await self._post(endpoint, "auth/authenticate", user, _Token)).token
        return await self._post(endpoint, path, request, answer)

    async def _post(self, endpoint: str, path: str, request: Mapping[str, Any], answer: type[T]) -> T:
        found = await ask(
            f"{endpoint}/v3/{path}",
            body=msgspec.json.encode(request),
            headers={"Authorization": self._token} if self._token else {},
            bytes_max=ANSWER_BYTES_MAX,
            context=self._context if endpoint.startswith("https:") else None,
        )
        try:
            if found.is_ok:
                return msgspec.json.decode(found.body, type=answer, strict=False)
            raise EtcdRefused(msgspec.json.decode(found.body, type=_Refusal).message)
        except (ValueError, RecursionError):
            shown = f"{found.status} {found.body.decode(errors='replace')[:WHY_CHARS_MAX]}"
            raise ConnectionError(f"it does not answer as etcd does: {shown!r}") from None
