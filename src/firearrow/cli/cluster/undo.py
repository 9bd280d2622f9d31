"""Undo file of a change: the former state, as JSON.

``kind`` is the group of commands whose `undo` reads the file, ``at`` the time of the change, ``nameServers`` the
cluster. The file is durable before the change begins. Only the user may read it: a configuration may have secrets.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from firearrow.cli.failures import FAILED, NothingFound
from firearrow.cli.output.reports import Cell
from firearrow.cli.parameters import content_of, valued
from firearrow.client.admin import Admin
from firearrow.clock import SystemClock
from firearrow.errors import BrokerError, ConfigError, FirearrowError, naming
from firearrow.files import for_the_user_alone, name_of_file, sync_directory
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import SubscriptionGroupConfig

UndoFile = Annotated[
    Path | None, valued("FILE", "undo file to write (default: firearrow-undo-NAME-TIME.json in the working directory)")
]
OfCreated = Annotated[
    Path | None, valued("FILE", "undo file to write (default: as for other changes, but none for what is only created)")
]
FromFile = Annotated[Path, valued(None, "undo file of an earlier `--apply`; - is standard input")]


class Undo(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="kind"):
    """Fields of every undo file; a subclass for each kind has the former state."""

    at: datetime
    name_servers: list[str]


U = TypeVar("U", bound=Undo)


class _Kind(msgspec.Struct):
    kind: str


def circumstances(admin: Admin) -> dict[str, Any]:
    """Give the fields of every undo file, with the present time and cluster."""
    at = datetime.fromtimestamp(SystemClock().now_ms() // 1000, UTC)
    return {"at": at, "name_servers": list(admin.name_servers.addresses)}


def write_undo(path: Path | None, name: str, undo: Undo) -> Path:
    """Write the file, by default with ``name`` in its file name; it is durable on return.

    OSError if it already exists.
    """
    own = name_of_file(name.replace("%", "_"))
    path = path or _free_path(f"firearrow-undo-{own}-{undo.at:%Y%m%dT%H%M%S}Z")
    with naming(path), open(path, "xb", opener=for_the_user_alone) as file:
        file.write(msgspec.json.format(msgspec.json.encode(undo), indent=1) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)
    return path


def forget(path: Path) -> None:
    """Remove the undo file of a change that did not come about."""
    path.unlink()


@asynccontextmanager
async def refusable(path: Path | None, is_as_before: Callable[[], Awaitable[bool]]) -> AsyncIterator[None]:
    """Remove the undo file at the end of a block if servers refused all its changes."""
    try:
        yield
    except BrokerError:
        with suppress(OSError, FirearrowError):  # if nobody can tell, the file stays
            if path is not None and await is_as_before():
                forget(path)
        raise


def _free_path(stem: str) -> Path:
    """Name of a new file; several changes may fall into one second."""
    names = chain([stem], (f"{stem}-{number}" for number in count(2)))
    return next(path for name in names if not (path := Path(f"{name}.json")).exists())


def read_undo(path: Path, kind: type[U]) -> U:
    """Read the file; ConfigError for another kind of file, NothingFound for a missing file."""
    try:
        data = content_of(path)
        found = msgspec.json.decode(data, type=_Kind).kind
        if found != kind.__struct_config__.tag:
            raise ConfigError(f"{path} undoes something else: `firearrow {found} undo` reads it")
        return msgspec.json.decode(data, type=kind)
    except FileNotFoundError:
        raise NothingFound(f"{path}: there is no such file") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no undo file: {error}") from None


# Configuration of topics and groups: what is made or changed, and the way back.

DELETED: Final = "deleted"
HAS_MESSAGES: Final = "has messages"
HAS_CLIENTS: Final = "has clients"
HAS_OFFSETS: Final = "has offsets"
WAS_CHANGED: Final = "was changed since"
_NOT_UNDONE: Final = frozenset({"failed", HAS_MESSAGES, HAS_CLIENTS, HAS_OFFSETS, WAS_CHANGED})

C = TypeVar("C")
K = TypeVar("K", TopicConfig, SubscriptionGroupConfig)


class Had(msgspec.Struct, Generic[C], frozen=True, omit_defaults=True):
    """Former configuration on a broker: ``config``, or None if there was none; then the change makes ``made``."""

    broker: str
    config: C | None
    made: C | None = None

    @property
    def known(self) -> C:
        """The former configuration; without one, the configuration that the change makes."""
        found = self.made if self.config is None else self.config
        assert found is not None, "a change makes what was not there"
        return found


def before_change(
    had: Iterable[Had[K]], new: K, given: Mapping[str, Any], attributes: Mapping[str, str]
) -> list[Had[K]]:
    """Give what an undo file needs of each broker: only those where a change alters something or makes it."""
    after = [(it, altered(it.config or new, given, attributes)) for it in had]
    return [Had(it.broker, it.config, None if it.config else made) for it, made in after if made != it.config]


def is_as_before(was: Iterable[Had[K]], now: Iterable[Had[K]]) -> bool:
    """Tell whether no configuration has changed since a change began."""
    present = {it.broker: it.config for it in now}
    return all(present.get(it.broker) == it.config for it in was)


class UndoTarget(Protocol[K]):
    """Topic or group on the brokers where an undo restores it."""

    async def ask(self, broker: str) -> K | None:
        """Give the present configuration; None without any."""

    async def make(self, broker: str, config: K) -> None:
        """Create or change it, with changes of attributes."""

    async def usage(self, broker: str) -> str:
        """Say in a word or two that it is used; empty if it never was."""

    async def delete(self, broker: str) -> None:
        """Delete it."""


async def given_back(had: Sequence[Had[K]], target: UndoTarget[K], *, apply: bool) -> list[str]:
    """Restore the configurations (``apply``) or preview the changes; give a state for each broker.

    A topic or group that the change made is deleted only if it is unchanged and unused.
    """

    async def one(it: Had[K]) -> str:
        now = await target.ask(it.broker)
        if now == it.config:
            return "the same"
        if it.config is None:
            refused = WAS_CHANGED if now != it.made else await target.usage(it.broker)
            if refused or not apply:
                return refused or f"would be {DELETED}"
            await target.delete(it.broker)
            return DELETED if await target.ask(it.broker) is None else "failed"
        done = "made" if now is None else "changed"
        if not apply:
            return f"would be {done}"
        attributes = _changes(now.attributes if now else {}, it.config.attributes)
        await target.make(it.broker, replace(it.config, attributes=attributes))
        return done if await target.ask(it.broker) == it.config else "failed"

    return [await one(it) for it in had]  # one by one: brokers of a cluster share a route


def code_of(states: Iterable[Cell]) -> int:
    """Give the exit code of an undo by the states of its rows."""
    return 0 if _NOT_UNDONE.isdisjoint(states) else FAILED


def _changes(now: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Give changes of attributes for a broker: ``+name`` to set one, ``-name`` to remove one."""
    given = {f"+{name}": text for name, text in wanted.items() if now.get(name) != text}
    return given | {f"-{name}": "" for name in now if name not in wanted}


def given_of(**fields: Any) -> dict[str, Any]:
    """Give the fields of a configuration that the command line sets."""
    return {name: value for name, value in fields.items() if value is not None}


def changed(had: K, given: Mapping[str, Any], attributes: Mapping[str, str]) -> K:
    """Give the configuration to send: the former one with the given fields, and attributes as changes."""
    return replace(had, **given, attributes={f"+{name}": it for name, it in attributes.items()})


def altered(had: K, given: Mapping[str, Any], attributes: Mapping[str, str]) -> K:
    """Give the configuration after a change."""
    return replace(had, **given, attributes={**had.attributes, **attributes})


def alters(had: K, given: Mapping[str, Any], attributes: Mapping[str, str]) -> bool:
    """Tell whether the given fields differ from the former configuration."""
    return altered(had, given, attributes) != had


def preview_state(had: K | None, given: Mapping[str, Any], attributes: Mapping[str, str]) -> str:
    """Give the state of a previewed change on a broker, whose former configuration is None for a new object."""
    if had is None:
        return "would be made"
    return "would be changed" if alters(had, given, attributes) else "the same"
