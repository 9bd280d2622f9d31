"""Asks etcd, version 3, by HTTP and JSON: what it calls its gRPC gateway, on the same port.

Numbers of 64 bits are text in JSON, keys and values base64. Whether a change that was not answered
was made is not known, and whoever asks for one says so that it can be made twice.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from firearrow.net.httprequest import ask

ANSWER_BYTES_MAX: Final = 64 << 20  # all brokers of some 100,000 names
WHY_CHARS_MAX: Final = 300  # of what answers, but is no etcd

T = TypeVar("T")


class KeyValue(msgspec.Struct, frozen=True):
    """A key; ``version`` counts its changes since the revision in which it was made."""

    key: bytes = b""
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    version: int = 0
    lease: int = 0


class Range(msgspec.Struct, frozen=True):
    """The keys that were found."""

    kvs: list[KeyValue] = []


class Part(msgspec.Struct, frozen=True):
    """What one request of a transaction was answered with."""

    response_range: Range = Range()


class Transaction(msgspec.Struct, frozen=True):
    """Whether all was as it was compared with, and the answers to what was asked for then."""

    succeeded: bool = False
    responses: list[Part] = []


class Lease(msgspec.Struct, frozen=True, rename="upper"):
    """A lease, and the seconds that it has; none: it is over."""

    id: int = 0
    ttl: int = 0


class Kept(msgspec.Struct, frozen=True):
    """A lease that is kept alive; None: etcd can't say at present."""

    result: Lease | None = None


class Nothing(msgspec.Struct, frozen=True):
    """An answer that says no more than that it is done."""


class _Token(msgspec.Struct, frozen=True):
    token: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    message: str


class EtcdRefused(ConnectionError):
    """An etcd that was reached does not do what it was asked for."""


class Etcd:
    """An etcd; each of its ``endpoints`` has so many seconds to answer, one after another."""

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
        """Give the answer of the first endpoint that has one, which is asked first from then on.

        ConnectionError says why none has.
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
            self._token = ""  # etcd forgets those of before its start, and old ones
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
