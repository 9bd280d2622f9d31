"""Calls of an administrator to servers: by address, or to any name server that answers.

A refusal and a server that does not answer are told with what was asked about: the topic, the
group, the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from firearrow.client.session.answers import body_or_fault, read_number
from firearrow.errors import BrokerError, ConfigError, RemoteProtocolError
from firearrow.net.address import first_answer
from firearrow.net.client import Client
from firearrow.wire import fastjson
from firearrow.wire.bodies import DataVersion
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import Header

B = TypeVar("B")


class Page(Protocol):
    """A part of a table."""

    @property
    def data_version(self) -> DataVersion:
        """Of the whole table."""


P = TypeVar("P", bound=Page)

CALL_SECONDS: Final = 5.0  # as upstream's tools have it
CHANGES_MAX: Final = 100  # of a table while it is read


class Calls:
    """Asks brokers and name servers."""

    def __init__(self, client: Client, name_servers: Sequence[str]) -> None:
        self._client = client
        self.name_servers: Final = tuple(name_servers)
        self._preferred = list(name_servers)

    async def call(
        self,
        address: str,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        *,
        about: str = "",
        seconds: float = CALL_SECONDS,
    ) -> AnyCommand:
        """Ask a server; raises as `Client.call`, with what it was asked about."""
        answer = await self.answer(address, code, header, body, about=about, seconds=seconds)
        if answer.code != 0:
            raise BrokerError.of(answer.code, answer.remark, address, about)
        return answer

    async def answer(
        self,
        address: str,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        *,
        about: str = "",
        seconds: float = CALL_SECONDS,
    ) -> AnyCommand:
        """Ask a server and give its answer whatever its code is."""
        given = fields_in(header)
        return await self.answer_fields(address, code, given, body, about=about, seconds=seconds)

    async def answer_fields(
        self,
        address: str,
        code: RequestCode,
        given: Mapping[str, FieldValue],
        body: bytes = b"",
        *,
        about: str = "",
        seconds: float = CALL_SECONDS,
    ) -> AnyCommand:
        """Ask as ``answer`` does, with the fields as they are on the wire."""
        try:
            return await self._client.answer(address, code, given, body, timeout_seconds=seconds)
        except TimeoutError as error:
            raise TimeoutError(f"{about}: {error}" if about else str(error)) from None

    async def read(
        self,
        address: str,
        code: RequestCode,
        kind: type[B],
        header: Header | None = None,
        *,
        about: str = "",
        seconds: float = CALL_SECONDS,
    ) -> B:
        """Ask a server and read the body of its answer."""
        answer = await self.call(address, code, header, about=about, seconds=seconds)
        return read_body(answer, kind, f"{about}: {address}" if about else address)

    async def pages(
        self,
        address: str,
        code: RequestCode,
        kind: type[P],
        header_of: Callable[[int, str], Header],
        table_of: Callable[[P], Mapping[str, object]],
        total_field: str,
    ) -> list[P]:
        """Read a table that a broker gives page by page; again if it changes meanwhile.

        ``header_of`` makes the header for what begins after so many entries, of a version. Raises
        RemoteProtocolError for what is no page, or if it changes again and again.
        """
        found: list[P] = []
        names: set[str] = set()
        version, changes = "", 0
        while changes < CHANGES_MAX:
            answer = await self.call(address, code, header_of(len(names), version))
            page = read_body(answer, kind, address)
            changed = fastjson.dumps(page.data_version).decode()
            if version and changed != version:
                found.clear()
                names.clear()
                version, changes = "", changes + 1
                continue
            version = changed
            found.append(page)
            names.update(table_of(page))
            if total_field not in answer.ext or not table_of(page):
                return found
            if len(names) >= read_number(answer, total_field, address):
                return found
        raise RemoteProtocolError(f"{address}: its table changes faster than it can be read")

    async def ask(self, code: RequestCode, header: Header | None = None, *, about: str = "") -> AnyCommand:
        """Ask one name server after another, the one that answered last first.

        Raises ConnectionError with what each of them said when none answers.
        """
        if not self._preferred:
            raise ConfigError("no name server is known")
        return await first_answer(self._preferred, lambda address: self.call(address, code, header, about=about))

    async def read_any(self, code: RequestCode, kind: type[B], header: Header | None = None, *, about: str = "") -> B:
        """Ask any name server and read the body of its answer."""
        answer = await self.ask(code, header, about=about)
        return read_body(answer, kind, about or "a name server")


def fields_in(header: Header | None) -> dict[str, FieldValue]:
    """Give the ext fields of a header: those that are not None, by their names on the wire."""
    found = {} if header is None else msgspec.to_builtins(header)
    return {name: value for name, value in found.items() if value is not None}


def read_body(answer: AnyCommand, kind: type[B], whose: str) -> B:
    """Read the body of an answer; RemoteProtocolError if it is not what it ought to be."""
    return body_or_fault(answer, kind, f"{whose}: the answer can't be read")
