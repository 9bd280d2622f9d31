"""Contexts: a file with names for clusters, and the addresses, user and encryption of each.

    use = "production"

    [contexts.production]
    name-servers = "10.0.0.1:9876;10.0.0.2:9876"
    access-key = "admin"
    secret-file = "/home/me/.rocketmq-secret"
    tls = true

It is ``$XDG_CONFIG_HOME/firearrow/contexts.toml`` (``~/.config`` by default). A secret is never in
it: it comes from a variable of the environment or from a file that nobody else can read.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Annotated, Final

import msgspec

from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import NothingFound
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table
from firearrow.cli.parameters import Options, Parameter, WrongOptions, switch, valued
from firearrow.errors import ConfigError, naming
from firearrow.files import for_the_user_alone
from firearrow.net.address import addresses_of
from firearrow.net.encryption import Tls
from firearrow.wire.signature import Credentials

DIRECTORY: Final = "XDG_CONFIG_HOME"
OTHERS_MAY: Final = stat.S_IRWXG | stat.S_IRWXO


class Context(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    """Addresses, user and encryption of a cluster."""

    name_servers: str
    access_key: str | None = None
    secret_env: str | None = None
    secret_file: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_verify: bool = True

    def credentials(self) -> Credentials | None:
        """Give the user of the context, with the secret; ConfigError if the secret is missing."""
        return credentials_of(self.access_key, self.secret_env, self.secret_file)

    def encryption(self) -> Tls | None:
        """Give the TLS settings; None without encryption."""
        if not self.tls:
            return None
        files = (self.tls_ca, self.tls_certificate, self.tls_key)
        return Tls(*files, verify=self.tls_verify)


def credentials_of(access_key: str | None, secret_env: str | None, secret_file: str | None) -> Credentials | None:
    """Give a user with the secret, from a file or a variable; None without a name, ConfigError if it is missing."""
    if access_key is None:
        return None
    if secret_file is not None:
        return Credentials(access_key, secret_in(Path(secret_file)))
    secret = os.environ.get(secret_env or "")
    if not secret:
        where = f"{secret_env} is not set" if secret_env else "none is named"
        raise ConfigError(f"the secret of access key {access_key!r}: {where}")
    return Credentials(access_key, secret)


class Contexts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The file; ``use`` names the context that counts if the command line names none."""

    use: str | None = None
    contexts: dict[str, Context] = {}

    def named(self, name: str) -> Context:
        """Give a context by its name; NothingFound lists the existing ones."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise NothingFound(f"there is no context {name!r}; there are: {known}")
        return self.contexts[name]

    def in_use(self) -> Context | None:
        """Give the context that counts if the command line names none."""
        return None if self.use is None else self.named(self.use)


def path_of_contexts() -> Path:
    """Path of the file, which may not exist yet."""
    home = os.environ.get(DIRECTORY)
    return (Path(home) if home else Path.home() / ".config") / "firearrow" / "contexts.toml"


def load_contexts() -> Contexts:
    """Read the file; without a file there are no contexts. ConfigError names the fault in the file."""
    path = path_of_contexts()
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Contexts()
    import tomllib  # only needed with a file

    try:
        return msgspec.convert(tomllib.loads(data.decode()), Contexts)
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}") from None


def save_contexts(contexts: Contexts) -> None:
    """Write the file, for the user alone."""
    path = path_of_contexts()
    new = path.with_suffix(".new")
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(new, "w", encoding="utf-8", opener=for_the_user_alone) as file:
            file.write(as_toml(contexts))
        new.replace(path)


def as_toml(contexts: Contexts) -> str:
    """Give the text of the file."""
    lines = [] if contexts.use is None else [f"use = {_quoted(contexts.use)}"]
    for name, context in sorted(contexts.contexts.items()):
        lines += ["", f"[contexts.{_quoted(name)}]"]
        lines += [f"{key} = {_quoted(value)}" for key, value in msgspec.to_builtins(context).items()]
    return "\n".join(lines).lstrip("\n") + "\n"


def secret_in(path: Path) -> str:
    """Read a secret, the first line of a file; ConfigError if other users can read the file."""
    with naming(path):
        mode = path.stat().st_mode
        if mode & OTHERS_MAY:
            raise ConfigError(f"{path} can be read by others: chmod 600 {path}")
        text = path.read_text(encoding="utf-8").partition("\n")[0].strip()
    if not text:
        raise ConfigError(f"{path} has no secret in its first line")
    return text


def _quoted(value: str | bool) -> str:
    return json.dumps(value, ensure_ascii=False)  # TOML writes strings and booleans as JSON does


# --- `firearrow context`: add, use and remove contexts ---


COLUMNS: Final = ("inUse", "name", "nameServers", "accessKey", "tls")

Name = Annotated[str, Parameter("the context's name", names_of="contexts")]

app: Final = CommandGroup()


@app.command("list")
def list_contexts(*, output: Output = PLAIN) -> None:
    """List the contexts."""
    output.show(_table(load_contexts()))


class ContextOptions(Options):
    """Addresses, user and encryption of a cluster."""

    name_server: Annotated[str, valued("HOST:PORT;...", "name servers of the cluster", name=("-n", "--name-server"))]
    access_key: Annotated[str | None, valued("NAME", "the user, for servers with access control")] = None
    secret_env: Annotated[str | None, valued("VARIABLE", "variable of the environment with the user's secret")] = None
    secret_file: Annotated[Path | None, valued("FILE", "file with the user's secret, readable by you alone")] = None
    tls: Annotated[bool, switch("encrypt connections")] = False
    tls_ca: Annotated[Path | None, valued("FILE", "authorities to trust (default: the system's)")] = None
    tls_certificate: Annotated[Path | None, valued("FILE", "certificate to show to the servers")] = None
    tls_key: Annotated[Path | None, valued("FILE", "key of that certificate")] = None
    tls_any: Annotated[bool, switch("accept any certificate, as RocketMQ's clients do")] = False

    def context(self) -> Context:
        """Give the context; WrongOptions for options that don't fit, ConfigError for a file that can't be used."""
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
            raise WrongOptions("a secret is that of an --access-key")
        if self.access_key and sum(has_secret) != 1:
            raise WrongOptions("an --access-key needs one of --secret-env and --secret-file")
        if not self.tls and (self.tls_ca or self.tls_certificate or self.tls_key or self.tls_any):
            raise WrongOptions("how to encrypt can only be said with --tls")


@app.command("add")
def add_context(
    name: Name,
    /,
    *,
    options: ContextOptions,
    use: Annotated[bool, switch("use it from now on")] = False,
    output: Output = PLAIN,
) -> None:
    """Add or replace a context; the first context is used from then on."""
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
    """Remove a context."""
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
