"""Read answers of servers as values. An error about a malformed answer names the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from firearrow.errors import MessageError, RemoteProtocolError
from firearrow.logs import Log
from firearrow.wire import fastjson
from firearrow.wire.bodies import Route
from firearrow.wire.frame import AnyCommand

log: Final = Log(__name__)

B = TypeVar("B")


def read_body(answer: AnyCommand, kind: type[B], what: str) -> B:
    """Read the body of an answer. Raises RemoteProtocolError if the body is malformed."""
    return body_or_fault(answer, kind, lambda: f"a server sent no {what}")


def body_or_fault(answer: AnyCommand, kind: type[B], fault: Callable[[], str]) -> B:
    """Read the body as `read_body` does; ``fault`` gives the text of the error."""
    try:
        return fastjson.decode(answer.body, kind)
    except MessageError as error:
        raise RemoteProtocolError(f"{fault()}: {error}") from None


def read_route(answer: AnyCommand, topic: str) -> Route:
    """Read a route without its unusable entries; the log has a line for each of them."""
    return usable_route(read_body(answer, Route, "route"), topic)


def usable_route(found: Route, topic: str) -> Route:
    """Leave out the unusable entries of a route; the log has a line for each of them."""
    route, faults = found.usable()
    for fault in faults:
        log.warning("entry of a route is left out", extra={"topic": topic, "reason": fault})
    return route


def read_number(answer: AnyCommand, name: str, address: str) -> int:
    """Read a field of an answer. Raises RemoteProtocolError if it is not a number."""
    text = answer.ext.get(name, "")
    try:
        return int(text)
    except ValueError:
        raise RemoteProtocolError(f"{address} sent {name}={text!r}") from None
