"""Changes of a server's configuration by a client while the server runs (requests 25 and 318).

A request is taken as a whole or refused as a whole. It may change keys that are `LIVE` in their table, and RocketMQ's
keys that have no effect here: these are kept and shown. A key that takes effect only at the start is refused unless it
has that value already. Otherwise the file and each answer would have a value that the server does not obey. Java:
Configuration#update takes such keys, skips values that it can't read, and continues.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from firearrow.config import properties
from firearrow.config.demands import refuse, shown
from firearrow.config.table import ServerConfig, keys, parse, rocketmq_texts
from firearrow.errors import ConfigError
from firearrow.logs import Log

log: Final = Log(__name__)

# RocketMQ has 583 keys, and all with their values are 20 KiB: a longer text is no configuration.
CHANGE_BYTES_MAX: Final = 256 * 1024
CHANGE_KEYS_MAX: Final = 1000
LOGGED_NAMES_MAX: Final = 5
LOGGED_NAME_CHARS_MAX: Final = 100


def read(body: bytes) -> dict[str, str]:
    """Read the pairs of a request.

    Raises `ConfigError` for a body that is no properties text, UnicodeDecodeError for one that is no UTF-8.
    """
    if len(body) > CHANGE_BYTES_MAX:
        raise ConfigError(f"a change has at most {CHANGE_BYTES_MAX} bytes, this one {len(body)}")
    pairs = properties.loads(body.decode())
    if len(pairs) > CHANGE_KEYS_MAX:
        raise ConfigError(f"a change has at most {CHANGE_KEYS_MAX} keys, this one {len(pairs)}")
    return pairs


def acceptable(pairs: Mapping[str, str], *configs: ServerConfig, servers: Iterable[str]) -> dict[str, str]:
    """Return the pairs that these configurations may take; unknown keys are left out.

    ``servers`` are the groups of RocketMQ's keys that belong here. Raises `ConfigError` for a forbidden pair.
    """
    refuse(pairs)
    tables = {name: (config, key) for config in configs for name, key in keys(type(config)).items()}
    known = {name: text for server in servers for name, text in rocketmq_texts(server).items()}
    for name, value in pairs.items():
        if name in tables:
            config, key = tables[name]
            if parse(key, value) != getattr(config, key.field) and not key.is_live:
                raise ConfigError(
                    f"{name} takes effect only at the start: write {shown(name, value)} into the "
                    "server's file and restart the server"
                )
        elif name in known and not re.fullmatch(known[name], value.strip()):
            raise ConfigError(f"{shown(name, value)} is not of its type")
    others = pairs.keys() - tables.keys()
    if kept := others & known.keys():
        log.warning("keys that have no effect here are kept", extra=_fields(kept))
    if ignored := others - known.keys():
        log.warning("unknown keys are ignored", extra=_fields(ignored))
    return {name: value for name, value in pairs.items() if name in tables or name in known}


def _fields(names: Collection[str]) -> dict[str, object]:
    some = [name[:LOGGED_NAME_CHARS_MAX] for name in sorted(names)[:LOGGED_NAMES_MAX]]
    return {"count": len(names), "keys": some}
