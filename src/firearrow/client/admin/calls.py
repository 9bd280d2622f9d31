"""Calls of an administrator to servers: by address, or to any name server that answers.

An error of a call names its subject: the topic, the group or the key of the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from firearrow.client.session.answers import body_or_fault, read_number
from firearrow.errors import BrokerError, ConfigError, RemoteProtocolError
from firearrow.net.address import first_answer
from firearrow.net.client import Client
from firearrow.wire import fastjson
from firearrow.wire.bodies import BrokerData, ClusterInfo, DataVersion, Route
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand

if TYPE_CHECKING:
    from firearrow.wire.headers import Header

B = TypeVar("B")
R = TypeVar("R")
T = TypeVar("T")


class Page(Protocol):
    """One page of a table."""

    @property
    def data_version(self) -> DataVersion:
        """Version of the whole table."""


P = TypeVar("P", bound=Page)
Silent = Callable[[str], float | None]
"""Seconds for which a server has not answered, by its address; None for one that answers."""

CALL_SECONDS: Final = 5.0  # as in RocketMQ's tools
CHANGES_MAX: Final = 100  # restarts of reading a table because it changed
ANY_QUEUE: Final = -1
CONCURRENT_REQUESTS: Final = 16  # enough to hide the network's latency, few for any server

_SUBJECTS: Final = {
    **dict.fromkeys(("consumerGroup", "group", "groupName", "compareGroup", "srcGroup"), "group"),
    "destGroup": "group",
    "producerGroup": "producer group",
    "parentTopic": "topic",
    "topic": "topic",
    "liteTopic": "lite topic",
    "queueId": "queue",
    "clientId": "client",
    "msgId": "message",
    "cluster": "cluster",
    "brokerName": "broker",
    "namespace": "namespace",
    "key": "key",
    "statsName": "counter",
    "statsKey": "key",
    "username": "user",
    "subject": "subject",
}
"""Fields of headers that tell what a request is about, in the order in which an error names them."""


def nobody(_: str) -> None:
    """Know no silent server."""


class SilentServer(TimeoutError):
    """A server that is not asked, because it has not answered for some time."""


class Calls:
    """Sends requests to brokers and name servers.

    An error takes its subject from the header's fields unless ``about`` gives it. ``silent`` gives the seconds for
    which a server has not answered, where that is known: such a server is not asked. With ``omits_silent``, routes and
    lists of brokers are without such servers.
    """

    def __init__(
        self, client: Client, name_servers: Sequence[str], silent: Silent = nobody, *, omits_silent: bool = False
    ) -> None:
        self._client = client
        self._silent = silent
        self._omits_silent = omits_silent
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
        """Send a request to a server; raises as `Client.call`, with the request's subject."""
        answer = await self.answer(address, code, header, body, about=about, seconds=seconds)
        if answer.code != 0:
            raise BrokerError.of(answer.code, answer.remark, address, about or subject_of(header))
        return answer

    async def answer(
        self,
        address: str,
        code: RequestCode,
        header: Header | Mapping[str, FieldValue] | None = None,
        body: bytes = b"",
        *,
        about: str = "",
        seconds: float = CALL_SECONDS,
    ) -> AnyCommand:
        """Send a request to a server and give the answer whatever its code is.

        In place of a header its fields may be given by their names on the wire.
        """
        fields = header if isinstance(header, Mapping) else fields_in(header)
        self._refuse_silent(address)
        try:
            return await self._client.answer(address, code, fields, body, timeout_seconds=seconds)
        except TimeoutError as error:
            self._refuse_silent(address)
            subject = about or subject_of(header)
            raise TimeoutError(f"{subject}: {error}" if subject else str(error)) from None

    def _refuse_silent(self, address: str) -> None:
        if (seconds := self._silent(address)) is not None:
            raise SilentServer(f"{address} has not answered for {seconds:.0f} s, so it is not asked")

    async def read(
        self,
        address: str,
        code: RequestCode,
        kind: type[B],
        header: Header | None = None,
        body: bytes = b"",
        *,
        about: str = "",
        seconds: float = CALL_SECONDS,
    ) -> B:
        """Send a request to a server and read the body of the answer."""
        answer = await self.call(address, code, header, body, about=about, seconds=seconds)
        return _body(answer, kind, address, header, about)

    async def read_or_none(
        self, address: str, code: RequestCode, kind: type[B], header: Header | None = None
    ) -> B | None:
        """Read the body of the answer as ``read`` does; None if it is empty."""
        answer = await self.call(address, code, header)
        return _body(answer, kind, address, header) if answer.body else None

    async def number(self, address: str, code: RequestCode, name: str, header: Header | None = None) -> int:
        """Send a request to a server and read a field of the answer that is a number."""
        return read_number(await self.call(address, code, header), name, address)

    async def config(self, address: str, code: RequestCode) -> dict[str, str]:
        """Read the configuration of a server."""
        from firearrow.config import properties  # few commands read or change a configuration

        answer = await self.call(address, code)
        return properties.loads(answer.body.decode())

    async def update_config(self, address: str, code: RequestCode, changes: Mapping[str, str]) -> None:
        """Change keys of the configuration of a server."""
        from firearrow.config import properties

        await self.call(address, code, body=properties.dumps(changes).encode(), about=f"keys {', '.join(changes)}")

    async def pages(
        self,
        address: str,
        code: RequestCode,
        kind: type[P],
        header_of: Callable[[int, str], Header],
        table_of: Callable[[P], Mapping[str, object]],
        total_field: str,
    ) -> list[P]:
        """Read a table that a broker gives page by page; start again if it changes meanwhile.

        ``header_of`` gives the header of a page by the number of entries before it and the table's version. Raises
        RemoteProtocolError for an answer that is no page, or after 100 changes.
        """
        found: list[P] = []
        names: set[str] = set()
        version, changes = "", 0
        while changes < CHANGES_MAX:
            answer = await self.call(address, code, header_of(len(names), version))
            page = _body(answer, kind, address)
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

    async def ask(self, code: RequestCode, header: Header | None = None) -> AnyCommand:
        """Send a request to one name server after another, the last one that answered first.

        Raises ConnectionError with the error of each of them when none answers.
        """
        if not self._preferred:
            raise ConfigError("no name server is known")
        return await first_answer(self._preferred, lambda address: self.call(address, code, header))

    async def read_any(self, code: RequestCode, kind: type[B], header: Header | None = None) -> B:
        """Send a request to any name server and read the body of the answer."""
        found = _body(await self.ask(code, header), kind, "a name server", header)
        return _without(found, self._silent) if self._omits_silent else found


class Part:
    """Part of `Admin`: the requests about one subject. An address is that of a broker unless the method says more."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls


def _without(found: B, silent: Silent) -> B:
    """Give a route or a list of brokers without those that are silent; any other body as it is."""
    if isinstance(found, ClusterInfo):
        brokers = {name: _answering(it, silent) for name, it in found.broker_addr_table.items()}
        return replace(found, broker_addr_table={name: it for name, it in brokers.items() if it.broker_addrs})
    if isinstance(found, Route):
        answering = [it for data in found.broker_datas if (it := _answering(data, silent)).broker_addrs]
        names = {it.broker_name for it in answering}
        queues = [it for it in found.queue_datas if it.broker_name in names]
        return replace(found, broker_datas=answering, queue_datas=queues)
    return found


def _answering(broker: BrokerData, silent: Silent) -> BrokerData:
    addresses = {number: it for number, it in broker.broker_addrs.items() if silent(it) is None}
    return replace(broker, broker_addrs=addresses)


def fields_in(header: Header | None) -> dict[str, FieldValue]:
    """Give the ext fields of a header: the values that are not None, by their names on the wire."""
    found = {} if header is None else msgspec.to_builtins(header)
    return {name: value for name, value in found.items() if value is not None}


def subject_of(header: Header | Mapping[str, FieldValue] | None) -> str:
    """Name the subject of a request, for an error: ``group 'g', topic 'T'``."""
    fields = header if isinstance(header, Mapping) else fields_in(header)
    named = ((word, fields.get(name, "")) for name, word in _SUBJECTS.items())
    return ", ".join(f"{word} {value!r}" for word, value in named if value not in ("", ANY_QUEUE))


def _body(answer: AnyCommand, kind: type[B], server: str, header: Header | None = None, about: str = "") -> B:
    """Read the body of an answer; RemoteProtocolError if it is not of this kind."""

    def fault() -> str:
        whose = ": ".join(filter(None, [about or subject_of(header), server]))
        return f"{whose}: the answer can't be read"

    return body_or_fault(answer, kind, fault)


async def concurrently(items: Iterable[T], ask: Callable[[T], Awaitable[R]]) -> list[R]:
    """Call ``ask`` for each item, a few at once, and give the answers in the order of the items."""
    room = asyncio.Semaphore(CONCURRENT_REQUESTS)

    async def one(item: T) -> R:
        async with room:
            return await ask(item)

    return await asyncio.gather(*map(one, items))
