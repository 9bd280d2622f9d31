"""Convert RocketMQ's keys to the configuration of an embedded cluster's servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from firearrow.broker.config import KEY_GROUPS, THROWAWAY, BrokerConfig
from firearrow.config.demands import refuse
from firearrow.config.table import Effect, keys, review, take
from firearrow.errors import ConfigError
from firearrow.namesrv.config import KEY_GROUPS as NAMESRV_GROUPS
from firearrow.namesrv.config import NamesrvConfig
from firearrow.proxy.config import ProxyConfig
from firearrow.store.config import StoreConfig

# The cluster itself sets names, addresses and paths of its servers.
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
"""Value of a key: a text as in a properties file, or a number or truth value."""


class Configs(NamedTuple):
    """Configuration of the servers, without the keys that the cluster sets."""

    namesrv: NamesrvConfig
    broker: BrokerConfig
    store: StoreConfig
    proxy: ProxyConfig


def configs_of(given: Mapping[str, Value]) -> Configs:
    """Read keys by RocketMQ's names, on top of defaults for a temporary store.

    Raises ConfigError for a key that the cluster sets, an unknown key, a bad value, and for an unsupported feature.
    """
    decided = sorted(DECIDED & given.keys())
    if decided:
        raise ConfigError(f"an embedded cluster sets {', '.join(decided)} itself")
    pairs = {key: _text(value) for key, value in given.items()}
    refuse(pairs)
    store, rest = take(StoreConfig, {**THROWAWAY, **pairs})
    broker, rest = take(BrokerConfig, rest)
    namesrv, rest = take(NamesrvConfig, rest)
    proxy, _ = take(ProxyConfig, {"grpcServerPort": "0", **pairs})
    rest = {key: text for key, text in rest.items() if key not in keys(ProxyConfig)}
    if rest:
        _refuse_unknown(rest)
    return Configs(namesrv, broker, store, proxy)


def _refuse_unknown(rest: Mapping[str, str]) -> None:
    structs = StoreConfig, BrokerConfig, NamesrvConfig
    for note in review(rest, *structs, servers=KEY_GROUPS + NAMESRV_GROUPS):
        if note.effect is Effect.UNKNOWN:
            raise ConfigError(str(note).replace("is kept and has no effect", "was given"))


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
