"""Connections of a source or sink to brokers, as its options describe them.

Spark's workers block, and the client needs an event loop, so each cluster runs one in a separate thread.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from firearrow.client.routing.nameservers import NameServers
from firearrow.client.session.portal import LoopThread
from firearrow.errors import ConfigError
from firearrow.net.access import Access
from firearrow.net.client import Client
from firearrow.net.encryption import Tls
from firearrow.spark.options import AccessOptions, Location
from firearrow.wire.signature import Credentials

T = TypeVar("T")


class Cluster:
    """A cluster, its client and its name servers, for code without an event loop.

    All coroutines run on one thread. It starts with the first of them and ends with ``close``.
    """

    def __init__(self, place: Location, options: AccessOptions) -> None:
        seconds = options.timeout_ms / 1000
        self.client: Final = Client(access=access_of(options), call_seconds=seconds)
        self.name_servers: Final = NameServers(self.client, place.name_servers, ask_seconds=seconds)
        self._thread: LoopThread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the thread, and return its result."""
        if self._thread is None:
            self._thread = LoopThread("firearrow spark")
        return self._thread.run(work)

    def close(self) -> None:
        """Close all connections; the next ``run`` opens others."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close(self.client.close)


def access_of(options: AccessOptions) -> Access:
    """Return the signature and encryption; raise ConfigError if one half of a pair is missing."""
    credentials = None
    if options.access_key is not None or options.secret_key is not None:
        if options.access_key is None or options.secret_key is None:
            missing = "accessKey" if options.access_key is None else "secretKey"
            raise ConfigError(f"option {missing} is missing: accessKey and secretKey go together")
        credentials = Credentials(options.access_key, options.secret_key, options.security_token or "")
    tls = None
    if options.tls:
        tls = Tls(options.tls_ca, options.tls_certificate, options.tls_key, verify=options.tls_verify)
    return Access(credentials, tls)
