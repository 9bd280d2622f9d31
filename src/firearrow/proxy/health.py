"""gRPC's health service, which tells load balancers whether the server takes calls.

Source: gRPC's health checking protocol, `grpc.health.v1`. All services of a server have one status.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from firearrow.net.grpc import Call, Method
from firearrow.proxy import grpcmessages as m
from firearrow.proxy.descriptors import parsed
from firearrow.wire.grpc import CallFailed, Status

SERVICE: Final = "grpc.health.v1.Health"
NAME_CHARACTERS_MAX: Final = 100  # of an unknown service, in the answer's header fields


class Health:
    """Status of ``services`` (full names), and the calls that watch it. The empty name is the whole server."""

    def __init__(self, services: Iterable[str], *, is_serving: bool = True) -> None:
        self._services = {"", SERVICE, *services}
        self._is_serving = is_serving
        self._watching: set[Call] = set()

    def methods(self) -> dict[bytes, Method]:
        """Return the methods of the service, by path."""
        handlers = {"Check": self._check, "Watch": self._watch}
        return {f"/{SERVICE}/{name}".encode(): Method(f"Health/{name}", it) for name, it in handlers.items()}

    @property
    def is_serving(self) -> bool:
        """Status of all services."""
        return self._is_serving

    @property
    def watching(self) -> int:
        """Number of calls that watch a known service."""
        return len(self._watching)

    def change(self, *, is_serving: bool) -> None:
        """Set the status, and send it to the calls that watch it if it differs."""
        if is_serving == self._is_serving:
            return
        self._is_serving = is_serving
        status = self._status()
        for call in self._watching:
            call.send(status)

    def stop(self) -> None:
        """Send the calls that watch it that the server does not serve any more, and end them."""
        self.change(is_serving=False)
        watching, self._watching = self._watching, set()
        for call in watching:
            call.end()

    def _status(self) -> bytes:
        known = m.HealthCheckResponse.ServingStatus
        status = known.SERVING if self._is_serving else known.NOT_SERVING
        return m.HealthCheckResponse(status=status).SerializeToString()

    def _check(self, _: Call, message: bytes) -> bytes:
        service = parsed(m.HealthCheckRequest, message).service
        if service not in self._services:
            raise CallFailed(Status.NOT_FOUND, f"there is no service {service[:NAME_CHARACTERS_MAX]}")
        return self._status()

    def _watch(self, call: Call, message: bytes) -> None:
        """Send the status now and after each change, until the client cancels; an unknown service stays unknown."""
        if parsed(m.HealthCheckRequest, message).service in self._services:
            self._watching.add(call)
            call.cancelled = lambda: self._watching.discard(call)
            call.send(self._status())
        else:
            unknown = m.HealthCheckResponse.ServingStatus.SERVICE_UNKNOWN
            call.send(m.HealthCheckResponse(status=unknown).SerializeToString())
