"""The file that undoes a change: what was before, as JSON.

``kind`` is the group of commands whose `undo` reads it, ``at`` when it was written, ``nameServers``
of which cluster it is. It is on the disk before anything is changed, and for the user alone: keys
of a configuration may be secret.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from firearrow.cli.failures import NothingFound
from firearrow.cli.parameters import valued
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.clock import SystemClock
from firearrow.errors import ConfigError
from firearrow.files import for_the_user_alone, name_of_file, naming, sync_directory
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import SubscriptionGroupConfig

UndoFile = Annotated[
    Path | None, valued("FILE", "the file that undoes it (default: firearrow-undo-NAME-TIME.json here)")
]
FromFile = Annotated[Path, valued(None, "a file that `--apply` has written")]


class Undo(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="kind"):
    """What each has; a subclass for a kind says what was before."""

    at: datetime
    name_servers: list[str]


U = TypeVar("U", bound=Undo)


class _Kind(msgspec.Struct):
    kind: str


def circumstances(admin: Admin) -> dict[str, Any]:
    """Give what each has, as it is now."""
    at = datetime.fromtimestamp(SystemClock().now_ms() // 1000, UTC)
    return {"at": at, "name_servers": list(admin.name_servers.addresses)}


def write_undo(path: Path | None, name: str, undo: Undo) -> Path:
    """Write the file, by default one with ``name`` in its own; it is on the disk on return.

    OSError if it is there already.
    """
    own = name_of_file(name.replace("%", "_"))
    path = path or _free_path(f"firearrow-undo-{own}-{undo.at:%Y%m%dT%H%M%S}Z")
    with naming(path), open(path, "xb", opener=for_the_user_alone) as file:
        file.write(msgspec.json.format(msgspec.json.encode(undo), indent=1) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)
    return path


def _free_path(stem: str) -> Path:
    """A name that no file has: several changes may be made in one second."""
    names = chain([stem], (f"{stem}-{number}" for number in count(2)))
    return next(path for name in names if not (path := Path(f"{name}.json")).exists())


def read_undo(path: Path, kind: type[U]) -> U:
    """Read the file; ConfigError if it is none of this kind, NothingFound if it is not there."""
    try:
        data = path.read_bytes()
        found = msgspec.json.decode(data, type=_Kind).kind
        if found != kind.__struct_config__.tag:
            raise ConfigError(f"{path} undoes something else: `firearrow {found} undo` reads it")
        return msgspec.json.decode(data, type=kind)
    except FileNotFoundError:
        raise NothingFound(f"{path}: there is no such file") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no undo file: {error}") from None


# What a change leaves as it is of a topic or a group, and giving brokers back what they had.


C = TypeVar("C")
K = TypeVar("K", TopicConfig, SubscriptionGroupConfig)


class Had(msgspec.Struct, Generic[C], frozen=True):
    """What a broker had."""

    broker: str
    config: C


async def given_back(
    had: Sequence[Had[K]],
    ask: Callable[[str], Awaitable[K | None]],
    make: Callable[[str, K], Awaitable[None]],
    *,
    apply: bool,
) -> list[str]:
    """Give it back (``apply``) or look what there is to do; give a state for each broker.

    ``ask`` gives the config that a broker has now, ``make`` sends it another, with changes of attributes.
    """

    async def one(it: Had[K]) -> str:
        now = await ask(it.broker)
        if now == it.config:
            return "the same"
        done = "made" if now is None else "changed"
        if not apply:
            return f"would be {done}"
        attributes = _changes(now.attributes if now else {}, it.config.attributes)
        await make(it.broker, replace(it.config, attributes=attributes))
        return done if await ask(it.broker) == it.config else "failed"

    return await concurrently(had, one)


def _changes(now: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Give what makes attributes others: ``+name`` to set one, ``-name`` to remove one."""
    given = {f"+{name}": text for name, text in wanted.items() if now.get(name) != text}
    return given | {f"-{name}": "" for name in now if name not in wanted}


def given_of(**fields: Any) -> dict[str, Any]:
    """Give the fields of a configuration that a user has said something of."""
    return {name: value for name, value in fields.items() if value is not None}


def changed(had: K, given: Mapping[str, Any], attributes: Mapping[str, str]) -> K:
    """Give what brokers are told: what they had, but for what is given; attributes as changes."""
    return replace(had, **given, attributes={f"+{name}": it for name, it in attributes.items()})


def alters(had: K, given: Mapping[str, Any], attributes: Mapping[str, str]) -> bool:
    """Tell whether what is given differs from what a broker had."""
    return replace(had, **given, attributes={**had.attributes, **attributes}) != had
