"""A server's own configuration, which clients read and change (318, 319; 1009, 1010)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TypeVar

from firearrow.config import changes, properties, table
from firearrow.config.table import ServerConfig
from firearrow.errors import BrokerError, ConfigError
from firearrow.files import replace_atomically
from firearrow.wire.codes import ResponseCode
from firearrow.wire.frame import AnyCommand

C = TypeVar("C", bound=ServerConfig)


def text_of(config: ServerConfig) -> bytes:
    """Return all keys except secrets, sorted, one ``key=value`` a line."""
    return properties.dumps(dict(sorted(table.public_properties(config).items()))).encode()


def save(config: ServerConfig, path: str) -> None:
    """Write all keys to the server's file, with secrets; its permissions stay the same.

    OSError if it can't be written.
    """
    pairs = dict(sorted(table.as_properties(config).items()))
    replace_atomically(Path(path), properties.dumps(pairs).encode())


def changed(request: AnyCommand, config: C, black_list: Collection[str], *, servers: Iterable[str]) -> C | None:
    """Return the configuration after a request's changes, None if the request changes nothing.

    A request succeeds or fails as a whole. Raises BrokerError for a key of the ``black_list`` or one that can't be
    changed. ``servers`` are the groups of RocketMQ's keys that belong to the server.

    Java: DefaultRequestProcessor#updateConfig skips values that it can't read.
    """
    try:
        pairs = changes.read(request.body)
    except (ConfigError, UnicodeDecodeError) as error:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"request {request.code} has a bad body: {error}") from None
    if not pairs.keys().isdisjoint(black_list):
        raise BrokerError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
    if not pairs:
        return None
    try:
        own = changes.acceptable(pairs, config, servers=servers)
        return table.update(config, own)
    except ConfigError as error:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from None
