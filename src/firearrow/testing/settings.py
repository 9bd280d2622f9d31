"""From RocketMQ's keys to the configuration of the servers of an embedded cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from firearrow.broker.config import KEY_GROUPS, THROWAWAY, BrokerConfig
from firearrow.config.demands import refuse
from firearrow.config.table import Effect, review, take
from firearrow.errors import ConfigError
from firearrow.namesrv.config import KEY_GROUPS as NAMESRV_GROUPS
from firearrow.namesrv.config import NamesrvConfig
from firearrow.store.config import StoreConfig

# The cluster itself says who its servers are, where they listen and what they write to.
DECIDED: Final = frozenset(
    {
        "bindAddress",
        "brokerIP1",
        "brokerIP2",
        "brokerName",
        "configStorePath",
        "kvConfigPath",
        "listenPort",
        "namesrvAddr",
        "storePathCommitLog",
        "storePathRootDir",
    }
)

Value = str | int | bool
"""What a key can be given: a text as in a properties file, or the number or truth that it means."""


class Configs(NamedTuple):
    """How the servers are configured, but for what the cluster decides."""

    namesrv: NamesrvConfig
    broker: BrokerConfig
    store: StoreConfig


def configs_of(given: Mapping[str, Value]) -> Configs:
    """Read keys by RocketMQ's names, on top of those that suit a store that is thrown away.

    Raises ConfigError for a key that the cluster decides, one that nobody knows, a bad value, and
    for what this version can't do.
    """
    decided = sorted(DECIDED & given.keys())
    if decided:
        raise ConfigError(f"an embedded cluster decides {', '.join(decided)} itself")
    pairs = {key: _text(value) for key, value in given.items()}
    refuse(pairs)
    store, rest = take(StoreConfig, {**THROWAWAY, **pairs})
    broker, rest = take(BrokerConfig, rest)
    namesrv, rest = take(NamesrvConfig, rest)
    if rest:
        _refuse_unknown(rest)
    return Configs(namesrv, broker, store)


def _refuse_unknown(rest: Mapping[str, str]) -> None:
    structs = StoreConfig, BrokerConfig, NamesrvConfig
    for note in review(rest, *structs, servers=KEY_GROUPS + NAMESRV_GROUPS):
        if note.effect is Effect.UNKNOWN:
            raise ConfigError(str(note).replace("is kept and has no effect", "was given"))


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
