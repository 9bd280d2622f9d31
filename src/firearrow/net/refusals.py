"""Answers to requests that can't be served, by the error.

A refusal by the store is logged, but the same one not again soon: each consumer of an unreadable queue meets it with
each pull.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Final

from firearrow.errors import BrokerError, DiskFull, MessageError, StoreError
from firearrow.logs import Log
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, not_supported
from firearrow.wire.frame import AnyCommand

log: Final = Log(__name__)

QUIET_SECONDS: Final = 60.0  # between log lines on the same failure of the store
_KNOWN_MAX: Final = 256


class AdmissionPass(ABC):
    """The decision that admitted a request (``Command.admitted_by``), as rights may change meanwhile.

    A peer may send any value in its place, but never an instance of this class (`admitted_by`).
    """

    __slots__ = ("username",)

    def __init__(self, username: str) -> None:
        self.username: Final = username

    @abstractmethod
    def check(self, request: AnyCommand) -> None:
        """Raise the BrokerError that would refuse the request now."""

    @abstractmethod
    def note_refusal(self, request: AnyCommand, error: BrokerError) -> None:
        """Write to the audit log that a request was refused to its user."""


def admitted_by(request: AnyCommand) -> AdmissionPass | None:
    """Return the decision that admitted a request; None if no access control has decided about it."""
    found = request.admitted_by
    return found if isinstance(found, AdmissionPass) else None


class Refusals:
    """The refusals of a server.

    ``handlers`` serve its codes. ``unserved`` has the reasons for codes without a handler. ``seconds`` returns the
    time.
    """

    def __init__(
        self, handlers: Mapping[int, object], unserved: Mapping[int, str], seconds: Callable[[], float]
    ) -> None:
        self._handlers = handlers
        self._unserved = unserved
        self._seconds = seconds
        self._quiet_until: dict[str, float] = {}

    def now(self, request: AnyCommand, address: str) -> Response | None:
        """Return the refusal of a request that was admitted and would be refused now, otherwise None."""
        admitted = admitted_by(request)
        if admitted is not None:
            try:
                admitted.check(request)
            except BrokerError as error:
                return self.of(request, address, error)
        return None

    def of(self, request: AnyCommand, address: str, error: Exception) -> Response:
        """Return the answer to a request that failed with an error; an unexpected error is logged."""
        if isinstance(error, BrokerError):
            return Response(error.code, error.remark)
        if isinstance(error, MessageError):
            return Response(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal, {error}")
        if isinstance(error, StoreError):
            if not isinstance(error, DiskFull):  # the store has logged it, once
                self._note(error, request.code, address)
            return Response(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now, {error}")
        if isinstance(error, KeyError) and request.code not in self._handlers:
            return not_supported(request.code, self._unserved.get(request.code, ""))
        log.error("request failed", extra={"code": request.code, "address": address}, exc_info=error)
        return Response(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def _note(self, error: StoreError, code: int, address: str) -> None:
        """Log that the store has refused a request, unless the same line is recent."""
        text, now = str(error), self._seconds()
        if now < self._quiet_until.get(text, now):
            return
        if len(self._quiet_until) >= _KNOWN_MAX:
            self._quiet_until.clear()
        self._quiet_until[text] = now + QUIET_SECONDS
        log.error("request is refused by the store", extra={"code": code, "address": address, "error": error})
