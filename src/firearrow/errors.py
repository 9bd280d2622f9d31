"""The single tree of errors that Firearrow raises, and the table from response codes to classes.

::

    FirearrowError
    ├── ProtocolError
    │   ├── LocalProtocolError      this side tried something the protocol forbids
    │   └── RemoteProtocolError     the peer did
    ├── StoreError
    │   ├── CorruptStore            bytes on disk contradict the format
    │   ├── DiskFull                there is no room, or too little to write on
    │   ├── PutLater                the message is in flight to another broker
    │   └── StoreLocked             another process has the store open
    ├── CannotListen                a port is not available
    ├── ConfigError                 a setting is unknown or has an impossible value
    │   └── MissingPackage          a package of an extra is not installed
    ├── CatalogError                a catalog of Iceberg tables failed
    ├── DataLost                    messages that a reader wanted are gone
    ├── ClientError                 an operation of a client failed
    │   ├── SendFailed              a message was not sent, or not confirmed
    │   └── NoReply                 a request to another application was not answered in time
    ├── FilterError                 a filter expression can't be read
    ├── MessageError                a message, or a part of one, is malformed
    └── BrokerError                 a server answered with a code other than success
        ├── BrokerFailed            1: the server failed by an internal error
        ├── BrokerBusy              2, 215: overload or flow control, try another broker
        ├── BrokerUnavailable       14, 1500, 211, 501: it serves no such request now
        ├── NotSupported            3, 15: unknown request code or version
        ├── NotDurable              10, 11, 12: stored, but not as safely as asked
        ├── InvalidRequest          13, 18, 23, 25, 28, 29, 604: the request itself is wrong
        ├── NotPermitted            16 and the quotas 2017, 2018
        ├── NotFound                19, 22, 204, 206, 208 and the classes below
        │   ├── TopicNotFound       17
        │   ├── GroupNotFound       24, 26, 27
        │   └── AuthNotFound        3001, 3002: no such user or policy
        ├── TransactionRefused      4, 200 to 203, 205
        ├── ConsumeFailed           207, 212, 213 and the pull and poll states 20, 21, 209, 210
        ├── ControllerError         2000 to 2016
        └── ClientSideError         negative codes, never sent by a server

Numbers are RocketMQ's ``ResponseCode``. `BrokerError.lookup` names the class for a code; a code
that has no row falls back to its family, and at last to `BrokerError`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class FirearrowError(Exception):
    """Root of every error that Firearrow raises on purpose."""


class ProtocolError(FirearrowError):
    """The remoting protocol was violated."""


class LocalProtocolError(ProtocolError):
    """This side tried an operation that the protocol forbids; nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that the protocol forbids; its connection cannot be used further."""


class StoreError(FirearrowError):
    """The message store cannot do the requested operation."""


class CorruptStore(StoreError):
    """Bytes on disk contradict the store format."""


class DiskFull(StoreError):
    """There is no room for a write, or so little that nothing may be written.

    Nothing was written. Every send gets this error as long as the disk is full; the store logs it once.
    """


class PutLater(StoreError):
    """The message is in flight to another broker: the caller that puts it again gets the result."""


class StoreLocked(StoreError):
    """Another process holds the lock of the store directory."""


class CannotListen(FirearrowError, OSError):
    """A server can't listen on its address and port, its ``filename``; ``strerror`` has the reason."""


class ConfigError(FirearrowError):
    """A setting is unknown or has a value that it cannot have."""


class MissingPackage(ConfigError, ImportError):
    """A package is not installed, which an extra of Firearrow brings. ``needs`` begins the sentence."""

    def __init__(self, needs: str, package: str, extra: str) -> None:
        super().__init__(f"{needs} {package}: pip install 'firearrow[{extra}]'")


def require_packages(needs: str, extra: str, *packages: str) -> None:
    """Raise MissingPackage unless all packages of an extra are installed. None is imported."""
    from importlib.util import find_spec  # most programs have no use for it

    for package in packages:
        if find_spec(package) is None:
            raise MissingPackage(needs, package, extra)


class CatalogError(FirearrowError):
    """A catalog of Iceberg tables does not answer, or refuses a request."""


class DataLost(FirearrowError):
    """Messages that a reader wanted are gone: retention was faster, or the queue began again."""


class ClientError(FirearrowError):
    """A client could not do an operation for its application; the cause is the underlying error."""


class SendFailed(ClientError):
    """A message was not sent, or no broker has confirmed it: then it may exist nevertheless.

    ``topic`` and ``broker`` name the destination (None if there was none to try), ``tries`` the count of attempts. The
    last failure is the error's ``__cause__``, ``code`` its response code (None where no broker refused it).
    """

    def __init__(self, topic: str, broker: str | None, tries: int, reason: str, code: int | None = None) -> None:
        super().__init__(topic, broker, tries, reason, code)
        self.topic = topic
        self.broker = broker
        self.tries = tries
        self.reason = reason
        self.code = code

    def __str__(self) -> str:
        where = "" if self.broker is None else f" on broker {self.broker!r}"
        tries = "" if self.tries < 2 else f" in {self.tries} tries"
        return f"topic {self.topic!r}{where}: the message was not sent{tries}: {self.reason}"


class NoReply(ClientError, TimeoutError):
    """A request to another application was not answered in time; it may have been handled."""


class FilterError(FirearrowError):
    """A filter expression can't be read.

    ``position`` is the character of the fault, None if the fault has no single place. ``after_end`` tells that the text
    before it is complete.
    """

    def __init__(self, reason: str, position: int | None = None, *, after_end: bool = False) -> None:
        super().__init__(reason, position)
        self.reason = reason
        self.position = position
        self.after_end = after_end

    def __str__(self) -> str:
        place = "" if self.position is None else f" at character {self.position}"
        return f"expression{place}: {self.reason}"


class MessageError(FirearrowError):
    """A message, or a part of one, is malformed.

    ``field`` names the part in the terms of its format, ``position`` is its first byte in the parsed buffer. Both are
    None where they do not apply.
    """

    def __init__(self, reason: str, field: str | None = None, position: int | None = None) -> None:
        super().__init__(reason, field, position)
        self.reason = reason
        self.field = field
        self.position = position

    def __str__(self) -> str:
        place = "" if self.position is None else f" at byte {self.position}"
        return f"{self.field or ''}{place}: {self.reason}" if self.field or place else self.reason


class BrokerError(FirearrowError):
    """A broker or name server answered with a code other than success.

    ``code`` is the response code, ``remark`` its text and ``address`` the server as ``host:port``, None if unknown.
    ``about`` names the subject of the request.
    """

    def __init__(self, code: int, remark: str = "", address: str | None = None, about: str = "") -> None:
        super().__init__(code, remark, address, about)
        self.code = code
        self.remark = remark
        self.address = address
        self.about = about

    def __str__(self) -> str:
        subject = f"{self.about}: " if self.about else ""
        server = f" from {self.address}" if self.address else ""
        return f"{subject}code {self.code}{server}: {self.remark or 'no remark'}"

    @classmethod
    def of(cls, code: int, remark: str | None, address: str | None = None, about: str = "") -> BrokerError:
        """Return the error for an answer of a server, of the class for its code."""
        return cls.lookup(code)(code, remark or "", address, about)

    @classmethod
    def lookup(cls, code: int) -> type[BrokerError]:
        """Return the class for a response code: its own, its family's, or `BrokerError`."""
        found = _BY_CODE.get(code)
        if found is not None:
            return found
        return next((family for codes, family in _FAMILIES if code in codes), BrokerError)


class BrokerFailed(BrokerError):
    """The server failed by an internal error while it handled the request."""


class BrokerBusy(BrokerError):
    """The server sheds load; the request was not handled and may be tried on another broker."""


class BrokerUnavailable(BrokerError):
    """The server does not serve this request at present: stopping, a slave, not the leader."""


class NotSupported(BrokerError):
    """The server knows no such request code or version."""


class NotDurable(BrokerError):
    """The message is stored and visible, but a flush or a replica did not confirm in time."""


class InvalidRequest(BrokerError):
    """The request carries a value that no server would accept."""


class NotPermitted(BrokerError):
    """Rights, a read-only broker or topic, or a quota forbid the request."""


class NotFound(BrokerError):
    """The subject of the request does not exist on this server."""


class TopicNotFound(NotFound):
    """The topic has no route or no configuration on this server."""


class GroupNotFound(NotFound):
    """The consumer group, its subscription or its filter data is unknown to the server."""


class AuthNotFound(NotFound):
    """The user or the access policy does not exist."""


class TransactionRefused(BrokerError):
    """The server could not begin, commit or roll back the transaction."""


class ConsumeFailed(BrokerError):
    """The broker could not serve a consumer, or a consumer did not answer in time."""


class ControllerError(BrokerError):
    """The controller of a replica group refused the request."""


class ClientSideError(BrokerError):
    """A failure that a client reports in the form of a code; no server sends these."""


MAY_PASS = OSError, BrokerFailed, BrokerBusy, BrokerUnavailable
"""Errors that another attempt, or another server, may not meet."""

_BY_CODE: dict[int, type[BrokerError]] = {
    1: BrokerFailed,
    2: BrokerBusy,
    3: NotSupported,
    4: TransactionRefused,
    10: NotDurable,
    11: NotDurable,
    12: NotDurable,
    13: InvalidRequest,
    14: BrokerUnavailable,
    15: NotSupported,
    16: NotPermitted,
    17: TopicNotFound,
    18: InvalidRequest,
    19: NotFound,
    20: ConsumeFailed,
    21: ConsumeFailed,
    22: NotFound,
    23: InvalidRequest,
    24: GroupNotFound,
    25: InvalidRequest,
    26: GroupNotFound,
    27: GroupNotFound,
    28: InvalidRequest,
    29: InvalidRequest,
    204: NotFound,
    205: TransactionRefused,
    206: NotFound,
    207: ConsumeFailed,
    208: NotFound,
    209: ConsumeFailed,
    210: ConsumeFailed,
    211: BrokerUnavailable,
    212: ConsumeFailed,
    213: ConsumeFailed,
    215: BrokerBusy,
    501: BrokerUnavailable,
    604: InvalidRequest,
    1500: BrokerUnavailable,
    2017: NotPermitted,
    2018: NotPermitted,
}

# Only for codes without a row above. The upper ends leave room for codes of later releases.
_FAMILIES: tuple[tuple[range, type[BrokerError]], ...] = (
    (range(-9999, 0), ClientSideError),
    (range(200, 204), TransactionRefused),
    (range(2000, 2017), ControllerError),
    (range(3001, 3100), AuthNotFound),
)


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Add the file's name to an OSError: calls on descriptors don't have it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
