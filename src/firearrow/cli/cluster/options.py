"""Cluster of a command: the options that name it.

The first of these counts, in this order: `--name-server`, `--context`, ``NAMESRV_ADDR``, the context in use, a
name server on this machine (where `firearrow serve` has it). A context has its user and its
encryption; without a context the user is that of ``FIREARROW_ACCESS_KEY`` and
``FIREARROW_SECRET_KEY``. `--user` and `--tls` override both.
"""

# Annotations are evaluated here, and not each as a text by the parser, which takes 0.8 ms longer.
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Final

from firearrow.cli.parameters import Options, Parameter, WrongOptions, seconds, switch, valued
from firearrow.cli.records import Record
from firearrow.errors import ConfigError

if TYPE_CHECKING:
    from firearrow.client.admin import Admin
    from firearrow.net.encryption import Tls
    from firearrow.wire.signature import Credentials

ENVIRONMENT: Final = "NAMESRV_ADDR"
ACCESS_KEY: Final = "FIREARROW_ACCESS_KEY"
SECRET_KEY: Final = "FIREARROW_SECRET_KEY"
HERE: Final = "127.0.0.1:9876"

Topic = Annotated[str, Parameter("the topic's name", names_of="topics")]
Group = Annotated[str, Parameter("the group's name", names_of="groups")]
Broker = Annotated[str, Parameter("the broker's name, or its address")]


class Target(Record):
    """Name servers of a cluster, user and encryption."""

    name_servers: Sequence[str]
    credentials: "Credentials | None"
    tls: "Tls | None"


class ClusterOptions(Options):
    """Options that name a cluster."""

    name_server: Annotated[
        str | None,
        valued(
            "HOST:PORT;...",
            f"name servers of the cluster (default: {ENVIRONMENT}, then the context in use, then {HERE})",
            name=("-n", "--name-server"),
        ),
    ] = None
    context: Annotated[
        str | None, valued("NAME", "the cluster of this name: see `firearrow context`", names_of="contexts")
    ] = None

    user: Annotated[
        str | None, valued("NAME", "the user, for servers with access control", name=("--user", "--access-key"))
    ] = None
    secret_file: Annotated[
        str | None,
        valued("FILE", f"file with the user's secret, readable by you alone (default: {SECRET_KEY}, or you are asked)"),
    ] = None
    tls: Annotated[bool, switch("encrypt connections")] = False
    tls_ca: Annotated[str | None, valued("FILE", "with --tls: authorities to trust (default: the system's)")] = None
    tls_any: Annotated[bool, switch("with --tls: accept any certificate, as RocketMQ's clients do")] = False
    timeout: Annotated[float | None, valued("DURATION", "give up after this time (default: never)", seconds)] = None

    def target(self) -> Target:
        """Give the cluster; ConfigError for options that can't be used."""
        from firearrow.net.address import addresses_of

        given = self.name_server
        context = None
        if self.context is not None or (given is None and not (given := os.environ.get(ENVIRONMENT))):
            from firearrow.cli.cluster.contexts import load_contexts

            known = load_contexts()
            context = known.in_use() if self.context is None else known.named(self.context)
        if given is None or not given:
            given = context.name_servers if context is not None else HERE
        if self.user is not None:
            credentials: Credentials | None = self._user(self.user)
        else:
            credentials = _of_environment() if context is None else context.credentials()
        tls = self._encryption(None if context is None else context.encryption())
        return Target(addresses_of(given), credentials, tls)

    def _user(self, name: str) -> "Credentials":
        from firearrow.wire.signature import Credentials

        if self.secret_file is not None:
            from pathlib import Path

            from firearrow.cli.cluster.contexts import secret_in

            return Credentials(name, secret_in(Path(self.secret_file)))
        secret = os.environ.get(SECRET_KEY)
        if not secret and sys.stdin.isatty():
            from getpass import getpass

            secret = getpass(f"secret of {name}: ")
        if not secret:
            raise ConfigError(f"the secret of user {name!r} is missing: give --secret-file, or set {SECRET_KEY}")
        return Credentials(name, secret)

    def _encryption(self, of_context: "Tls | None") -> "Tls | None":
        if not self.tls:
            return of_context
        from firearrow.net.encryption import Tls

        return Tls(self.tls_ca, verify=not self.tls_any)

    def check(self) -> None:
        """Raise WrongOptions for options that need another one."""
        if self.secret_file is not None and self.user is None:
            raise WrongOptions("argument --secret-file: it is that of a --user")
        if (self.tls_ca is not None or self.tls_any) and not self.tls:
            raise WrongOptions("how to encrypt can only be said with --tls")

    @asynccontextmanager
    async def admin(self) -> "AsyncIterator[Admin]":
        """Administer the cluster for an ``async with`` block."""
        from firearrow.client.admin import Admin

        target = self.target()
        async with Admin.of(target.name_servers, target.credentials, target.tls) as admin:
            yield admin


ANY: Final = ClusterOptions()
"""The cluster without any option."""


def _of_environment() -> "Credentials | None":
    access, secret = os.environ.get(ACCESS_KEY), os.environ.get(SECRET_KEY)
    if not access:
        return None
    if not secret:
        raise ConfigError(f"{ACCESS_KEY} is set, and {SECRET_KEY} is not")
    from firearrow.wire.signature import Credentials

    return Credentials(access, secret)
