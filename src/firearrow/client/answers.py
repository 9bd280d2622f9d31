"""What servers answer, read: what is not as it ought to be is an error that names the server."""

from __future__ import annotations

from typing import TypeVar

from firearrow.errors import MessageError, RemoteProtocolError
from firearrow.wire import fastjson
from firearrow.wire.frame import AnyCommand

B = TypeVar("B")


def read_body(answer: AnyCommand, kind: type[B], what: str) -> B:
    """Read the body of an answer; RemoteProtocolError if it is not what it ought to be."""
    return body_or_fault(answer, kind, f"a server sent no {what}")


def body_or_fault(answer: AnyCommand, kind: type[B], fault: str) -> B:
    """The same, with other words for what is wrong."""
    try:
        return fastjson.decode(answer.body, kind)
    except MessageError as error:
        raise RemoteProtocolError(f"{fault}: {error}") from None


def read_number(answer: AnyCommand, name: str, address: str) -> int:
    """Read a field of an answer; RemoteProtocolError if it is no number."""
    text = answer.ext.get(name, "")
    try:
        return int(text)
    except ValueError:
        raise RemoteProtocolError(f"{address} sent {name}={text!r}") from None
