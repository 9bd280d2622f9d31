"""From the command line to the configuration of the servers that it asks for.

Where a setting is given twice, the first of these wins: an option of its own (`--store`,
`--broker-port`, `-n`), `--set`, the file of `-c`, the environment (`NAMESRV_ADDR`), the default.

The modules of a server are imported when that server is asked for: a name server alone needs
neither the store nor numpy.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from firearrow.cli import EMBEDDED_STORE
from firearrow.config import properties
from firearrow.config.demands import refuse, refuse_of_jvm
from firearrow.config.table import Note, ServerConfig, as_properties, load, review, take
from firearrow.namesrv.config import KEY_GROUPS as NAMESRV_GROUPS
from firearrow.namesrv.config import NamesrvConfig

if TYPE_CHECKING:
    from firearrow.broker.config import BrokerConfig
    from firearrow.store.config import StoreConfig

_ELSEWHERE = ("192.0.2.1", 9)  # reserved for documentation; nothing is sent to it


class ServerPlan(msgspec.Struct, frozen=True):
    """Which servers to run, and how."""

    namesrv: NamesrvConfig | None
    broker: BrokerConfig | None
    store: StoreConfig | None
    notes: list[Note]
    """Sentences on keys that were given and have no effect."""
    broker_file: Path | None = None
    """The properties file of the broker, which is rewritten when a client changes a key."""

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> ServerPlan:
        """Read file and options; raises `ConfigError` for what cannot be served."""
        pairs = properties.load(options.file) if options.file else {}
        pairs |= dict(options.pairs)
        refuse(pairs)
        refuse_of_jvm(os.environ)
        return {"serve": _serve, "namesrv": _namesrv, "broker": _broker}[options.command](
            options, pairs
        )

    def describe(self) -> str:
        """Give the whole configuration as properties text, a section for each server."""
        servers: dict[str, ServerConfig | None] = {
            "name server": self.namesrv,
            "broker": self.broker,
            "store": self.store,
        }
        return "\n".join(
            f"# {title}\n{properties.dumps(as_properties(config))}"
            for title, config in servers.items()
            if config is not None
        )


def _serve(options: argparse.Namespace, pairs: dict[str, str]) -> ServerPlan:
    from firearrow.broker.config import KEY_GROUPS, BrokerConfig
    from firearrow.store.config import StoreConfig

    pairs = {"storePathRootDir": EMBEDDED_STORE, "bindAddress": "127.0.0.1"} | pairs
    pairs |= _broker_options(options)
    store, rest = take(StoreConfig, pairs)
    broker, rest = take(BrokerConfig, rest)
    namesrv, rest = take(NamesrvConfig, _in_store(store) | rest)
    notes = review(
        rest, StoreConfig, BrokerConfig, NamesrvConfig, servers=KEY_GROUPS + NAMESRV_GROUPS
    )
    return ServerPlan(
        namesrv=msgspec.structs.replace(
            namesrv, listen_port=options.namesrv_port, bind_address=broker.bind_address
        ),
        broker=_complete(msgspec.structs.replace(broker, extra=rest)),
        store=_absolute(store),
        notes=notes,
    )


def _namesrv(options: argparse.Namespace, pairs: dict[str, str]) -> ServerPlan:
    given = {"listenPort": options.port, "bindAddress": options.host}
    pairs |= _present(given)
    if options.file:  # as upstream: what clients change is there at the next start
        pairs["configStorePath"] = str(options.file.absolute())
    namesrv, notes = load(NamesrvConfig, pairs, servers=NAMESRV_GROUPS)
    return ServerPlan(namesrv=namesrv, broker=None, store=None, notes=notes)


def _broker(options: argparse.Namespace, pairs: dict[str, str]) -> ServerPlan:
    from firearrow.broker.config import KEY_GROUPS, BrokerConfig
    from firearrow.store.config import StoreConfig

    pairs = _present({"namesrvAddr": os.environ.get("NAMESRV_ADDR")}) | pairs
    pairs |= _broker_options(options)
    store, rest = take(StoreConfig, pairs)
    broker, rest = take(BrokerConfig, rest)
    notes = review(rest, StoreConfig, BrokerConfig, servers=KEY_GROUPS)
    broker = _complete(msgspec.structs.replace(broker, extra=rest))
    file = Path(options.file) if options.file else None
    return ServerPlan(
        namesrv=None, broker=broker, store=_absolute(store), notes=notes, broker_file=file
    )


def _broker_options(options: argparse.Namespace) -> dict[str, str]:
    return _present(
        {
            "storePathRootDir": options.store,
            "listenPort": options.broker_port,
            "bindAddress": options.host,
            "namesrvAddr": options.namesrv_addr,
        }
    )


def _present(values: Mapping[str, str | int | None]) -> dict[str, str]:
    return {key: str(value) for key, value in values.items() if value is not None}


def _in_store(store: StoreConfig) -> dict[str, str]:
    """Keep the files of an embedded name server with the store, not in the home directory."""
    directory = store.root_path.absolute() / "namesrv"
    return {
        "kvConfigPath": str(directory / "kvConfig.json"),
        "configStorePath": str(directory / "namesrv.properties"),
    }


def _absolute(store: StoreConfig) -> StoreConfig:
    return msgspec.structs.replace(
        store,
        store_path_root_dir=str(store.root_path.absolute()),
        store_path_commit_log=str(store.commit_log_path.absolute()),
    )


def _complete(broker: BrokerConfig) -> BrokerConfig:
    """Settle the addresses that a broker announces."""
    address = broker.broker_ip1 or reachable(broker.bind_address)
    return msgspec.structs.replace(
        broker, broker_ip1=address, broker_ip2=broker.broker_ip2 or address
    )


def reachable(host: str) -> str:
    """Give an address under which others reach a server that listens on this one.

    Of a wildcard that is the address of the interface on the way out, or loopback without one.
    """
    if not _is_wildcard(host):
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)  # chooses a route and a local address, sends nothing
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        return False
