"""`firearrow context`: keeps how to reach clusters, by names of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec

from firearrow.cli.commands import CommandGroup
from firearrow.cli.completion import contexts
from firearrow.cli.contexts import Context, Contexts, load_contexts, save_contexts, secret_in
from firearrow.cli.listing import PLAIN, Output
from firearrow.cli.parameters import Parameter, options, switch, valued
from firearrow.cli.refusals import WrongCommandLine
from firearrow.cli.reports import Cell, Table
from firearrow.errors import ConfigError
from firearrow.net.address import addresses_of

COLUMNS: Final = ("inUse", "name", "nameServers", "accessKey", "tls")

Name = Annotated[str, Parameter("the context's name", completer=contexts)]

app = CommandGroup()


@app.command("list")
def list_contexts(*, output: Output = PLAIN) -> None:
    """List the contexts."""
    output.show(_table(load_contexts()))


@options
class ContextOptions:
    """How a cluster is reached."""

    name_server: Annotated[str, valued("HOST:PORT;...", "name servers of the cluster", name=("-n", "--name-server"))]
    access_key: Annotated[str | None, valued("NAME", "the user, for servers with access control")] = None
    secret_env: Annotated[str | None, valued("VARIABLE", "variable of the environment with the user's secret")] = None
    secret_file: Annotated[Path | None, valued("FILE", "file with the user's secret, which only you can read")] = None
    tls: Annotated[bool, switch("encrypt connections")] = False
    tls_ca: Annotated[Path | None, valued("FILE", "authorities to trust (default: the system's)")] = None
    tls_certificate: Annotated[Path | None, valued("FILE", "certificate to show to the servers")] = None
    tls_key: Annotated[Path | None, valued("FILE", "key of that certificate")] = None
    tls_any: Annotated[bool, switch("take any certificate, as RocketMQ's clients do")] = False

    def context(self) -> Context:
        """Give the context; raises if the options don't fit, and if a file can't be used."""
        self._check()
        if self.secret_file is not None:
            secret_in(self.secret_file)
        context = Context(
            name_servers=";".join(addresses_of(self.name_server)),
            access_key=self.access_key,
            secret_env=self.secret_env,
            secret_file=_absolute(self.secret_file),
            tls=self.tls,
            tls_ca=_absolute(self.tls_ca),
            tls_certificate=_absolute(self.tls_certificate),
            tls_key=_absolute(self.tls_key),
            tls_verify=not self.tls_any,
        )
        if encryption := context.encryption():
            encryption.context()
        return context

    def _check(self) -> None:
        has_secret = bool(self.secret_env), bool(self.secret_file)
        if any(has_secret) and not self.access_key:
            raise WrongCommandLine("a secret is that of an --access-key")
        if self.access_key and sum(has_secret) != 1:
            raise WrongCommandLine("an --access-key needs one of --secret-env and --secret-file")
        if not self.tls and (self.tls_ca or self.tls_certificate or self.tls_key or self.tls_any):
            raise WrongCommandLine("how to encrypt can only be said with --tls")


@app.command("add")
def add_context(
    name: Name,
    /,
    *,
    options: ContextOptions,
    use: Annotated[bool, switch("use it from now on")] = False,
    output: Output = PLAIN,
) -> None:
    """Add a context, or replace it; the first one is used from then on."""
    if not name.strip() or not name.isprintable():
        raise ConfigError(f"{name!r} can't be a context's name")
    before = load_contexts()
    used = name if use or before.use is None else before.use
    contexts = Contexts(used, {**before.contexts, name: options.context()})
    save_contexts(contexts)
    output.show(_table(contexts))


@app.command("use")
def use_context(name: Name, /, *, output: Output = PLAIN) -> None:
    """Use a context from now on."""
    before = load_contexts()
    before.named(name)
    contexts = msgspec.structs.replace(before, use=name)
    save_contexts(contexts)
    output.show(_table(contexts))


@app.command("remove")
def remove_context(name: Name, /, *, output: Output = PLAIN) -> None:
    """Forget a context."""
    before = load_contexts()
    before.named(name)
    kept = {other: context for other, context in before.contexts.items() if other != name}
    contexts = Contexts(None if before.use == name else before.use, kept)
    save_contexts(contexts)
    output.show(_table(contexts))


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.expanduser().absolute())


def _table(contexts: Contexts) -> Table:
    rows: list[list[Cell]] = [
        [name == contexts.use, name, it.name_servers, it.access_key, it.tls]
        for name, it in sorted(contexts.contexts.items())
    ]
    return Table("Contexts", COLUMNS, rows)
