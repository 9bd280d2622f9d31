"""Configuration of servers, from the command line, the file and the environment.

If a setting is given twice, the first of these wins: a specific option (`--store`, `--broker-port`, `-n`), `--set`, the
file of `-c`, the environment (`NAMESRV_ADDR`), the default.

A server imports its modules only when the command line asks for it: a name server alone needs neither the store nor
numpy.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from firearrow.cli import EMBEDDED_STORE
from firearrow.cli.serving.brokerprocesses import (
    BrokerPlan,
    ProcessPlan,
    broker_plans,
    check_alone,
    check_several,
    divided_keys,
)
from firearrow.cli.serving.options import (
    BrokerOptions,
    ControllerOptions,
    NamesrvOptions,
    ProxyOptions,
    ServeOptions,
    ServerOptions,
)
from firearrow.config import properties
from firearrow.config.demands import refuse, refuse_of_jvm, shown
from firearrow.config.table import Note, ServerConfig, as_properties, keys, load, public_properties, review, take
from firearrow.config.tls import TLS_FIELDS, with_tls
from firearrow.errors import ConfigError
from firearrow.machine import memory_bytes
from firearrow.namesrv.config import KEY_GROUPS as NAMESRV_GROUPS
from firearrow.namesrv.config import NamesrvConfig
from firearrow.net.budget import MEMORY_PARTS
from firearrow.wire import fastjson

if TYPE_CHECKING:
    from firearrow.broker.config import BrokerConfig
    from firearrow.broker.state.settings import SharedFile
    from firearrow.controller.config import ControllerConfig
    from firearrow.proxy.config import ProxyConfig
    from firearrow.store.config import StoreConfig

NAMESRV_PORT = 9876
_ELSEWHERE = ("192.0.2.1", 9)  # reserved for documentation; nothing is sent to it


class ServerPlan(msgspec.Struct, frozen=True):
    """Servers to run, with their configuration."""

    namesrv: NamesrvConfig | None
    broker: BrokerConfig | None
    store: StoreConfig | None
    notes: list[Note]
    """Sentences on keys that have no effect."""
    proxy: ProxyConfig | None = None
    """Keys of the broker's gRPC port, None without one."""
    is_grpc_port_given: bool = False
    is_remoting_port_given: bool = False
    """True if a key or an option sets the port of a proxy for remoting clients."""
    broker_file: Path | SharedFile | None = None
    """Properties file for changes by clients, of one broker or of several."""
    controller: ControllerConfig | None = None
    brokers: tuple[BrokerPlan, ...] = ()
    """Brokers in separate processes, which register with the name server of this process."""
    cluster_proxy: ProxyConfig | None = None
    """Proxy in front of the brokers of a cluster."""
    workers: tuple[ProcessPlan, ...] = ()
    """Processes of the proxy, which share its port; empty: it runs in this process."""
    is_worker: bool = False

    @classmethod
    def from_options(cls, options: ServerOptions) -> ServerPlan:
        """Read file and options; raises `ConfigError` for an impossible configuration."""
        if isinstance(options, ProxyOptions):
            return _proxy(options)
        pairs = properties.load(options.file) if options.file else {}
        pairs |= dict(options.pairs)
        refuse_of_jvm(os.environ)
        pairs = with_tls(pairs, os.environ)
        refuse(pairs)
        match options:
            case ServeOptions():
                return _several(options, pairs) if options.brokers > 1 else _serve(options, pairs)
            case BrokerOptions():
                return _broker(options, pairs)
            case NamesrvOptions():
                return _namesrv(options, pairs)
            case ControllerOptions():
                return _controller(options, pairs)
        raise AssertionError(f"no server has {type(options).__name__}")

    def describe(self) -> str:
        """Give the whole configuration as properties text, a section for each server.

        Secrets appear as keys in comments, without their values.
        """
        servers: dict[str, ServerConfig | None] = {
            "name server": self.namesrv,
            "controller": self.controller,
            "broker": self.broker,
            "store": self.store,
            "proxy": self.cluster_proxy,
        }
        parts = [f"# {title}\n{_described(config)}" for title, config in servers.items() if config is not None]
        for one in self.brokers:
            alone = of_broker(one.pairs)
            assert alone.broker is not None, "the plan of a broker"
            assert alone.store is not None, "a broker has a store"
            parts.append(f"# {one.name}\n{_described(alone.broker, alone.store)}")
        return "\n".join(parts)


def _described(*configs: ServerConfig) -> str:
    told = {key: text for it in configs for key, text in public_properties(it).items()}
    known = {key for it in configs for key in as_properties(it)}
    hidden = [f"# {key} is not shown\n" for key in sorted(known - told.keys())]
    return properties.dumps(told) + "".join(hidden)


def _serve(options: ServeOptions, pairs: dict[str, str]) -> ServerPlan:
    from firearrow.broker.config import KEY_GROUPS, BrokerConfig
    from firearrow.store.config import StoreConfig

    pairs = _embedded(options, pairs)
    store, rest = take(StoreConfig, pairs)
    broker, rest = take(BrokerConfig, rest)
    namesrv, rest = take(NamesrvConfig, _in_store(store) | rest)
    controller, rest = _in_name_server(namesrv, pairs, rest)
    proxy, rest = _grpc_of(broker, pairs, rest)
    notes = review(rest, StoreConfig, BrokerConfig, NamesrvConfig, servers=KEY_GROUPS + NAMESRV_GROUPS)
    check_alone(store.root_path)
    return ServerPlan(
        proxy=proxy,
        is_grpc_port_given="grpcServerPort" in pairs,
        namesrv=_beside(namesrv, options, broker),
        broker=_complete(msgspec.structs.replace(broker, extra=rest)),
        store=_absolute(store),
        notes=notes,
        controller=controller,
    )


def _embedded(options: ServeOptions, pairs: dict[str, str]) -> dict[str, str]:
    """Keys of `serve`: its defaults, the file, and the options."""
    if options.ephemeral:
        from firearrow.broker.config import THROWAWAY

        pairs = {**THROWAWAY, "listenPort": "0"} | pairs | {"storePathCommitLog": ""}
    pairs = {"storePathRootDir": EMBEDDED_STORE, "bindAddress": "127.0.0.1"} | pairs
    return pairs | _present(options.given())


def _beside(namesrv: NamesrvConfig, options: ServeOptions, broker: BrokerConfig) -> NamesrvConfig:
    """Give a name server the bind address and the encryption of the broker."""
    return msgspec.structs.replace(
        namesrv,
        listen_port=_namesrv_port(options),
        bind_address=broker.bind_address,
        **{key: getattr(broker, key) for key in TLS_FIELDS},
    )


def _several(options: ServeOptions, pairs: dict[str, str]) -> ServerPlan:
    """Settle several brokers; a fault in any of them is an error before the first start."""
    from firearrow.broker.config import KEY_GROUPS, BrokerConfig
    from firearrow.store.config import StoreConfig

    shared, own = divided_keys(_embedded(options, pairs), options.brokers)
    store, rest = take(StoreConfig, shared)
    broker, rest = take(BrokerConfig, rest)
    namesrv, rest = take(NamesrvConfig, _in_store(store) | rest)
    controller, rest = _in_name_server(namesrv, shared, rest)
    root = store.root_path.absolute()
    check_several(root, own)
    known = NamesrvConfig, BrokerConfig, StoreConfig
    proxy, rest = _grpc_of(broker, shared, rest)
    notes = review(rest, *known, servers=KEY_GROUPS + NAMESRV_GROUPS)
    not_theirs = keys(NamesrvConfig).keys() - keys(BrokerConfig).keys()
    plain = {name: text for name, text in shared.items() if name not in not_theirs}
    plain["enableGrpc"] = "false"  # one proxy serves all
    brokers = broker_plans(plain, own, root, thrown_away=options.ephemeral)
    for one in brokers:
        of_broker(one.pairs)
        mine = {name: text for name, text in own[one.name].items() if name not in shared}
        notes += review(take(BrokerConfig, take(StoreConfig, mine)[1])[1], *known)
    return ServerPlan(
        namesrv=_beside(namesrv, options, broker),
        broker=None,
        store=None,
        notes=notes,
        controller=controller,
        brokers=brokers,
        proxy=None if proxy is None else _of_all(proxy, broker),
        is_grpc_port_given="grpcServerPort" in shared,
    )


def _of_all(proxy: ProxyConfig, broker: BrokerConfig) -> ProxyConfig:
    """Give the proxy of several brokers the bind address and the encryption of the brokers, and no metrics."""
    tls = {key: getattr(broker, key) for key in TLS_FIELDS}
    return msgspec.structs.replace(proxy, bind_address=broker.bind_address, metrics_exporter_type="DISABLE", **tls)


def _namesrv_port(options: ServeOptions) -> int:
    if options.namesrv_port is not None:
        return options.namesrv_port
    return 0 if options.ephemeral else NAMESRV_PORT


def _namesrv(options: NamesrvOptions, pairs: dict[str, str]) -> ServerPlan:
    pairs |= _present(options.given())
    if options.file:  # as in RocketMQ: changes by clients survive a restart
        pairs["configStorePath"] = str(options.file.absolute())
    namesrv, rest = take(NamesrvConfig, pairs)
    controller, rest = _in_name_server(namesrv, pairs, rest)
    if rest.get("metricsExporterType", "DISABLE").strip() != "DISABLE":
        raise ConfigError(
            f"{shown('metricsExporterType', rest['metricsExporterType'])}: a name server has no "
            "metrics, as in RocketMQ; remove the key to start it"
        )
    return ServerPlan(
        namesrv=msgspec.structs.replace(namesrv, extra=rest),
        broker=None,
        store=None,
        notes=review(rest, NamesrvConfig, servers=NAMESRV_GROUPS),
        controller=controller,
    )


def _in_name_server(
    namesrv: NamesrvConfig, pairs: Mapping[str, str], rest: dict[str, str]
) -> tuple[ControllerConfig | None, dict[str, str]]:
    """Settle the controller of a name server, if the configuration asks for one; give it and the remaining keys.

    Both read one file. Changes of the controller by clients are stored with its other files.
    """
    if not namesrv.enable_controller_in_namesrv:
        return None, rest
    from firearrow.controller.config import ControllerConfig

    controller, _ = take(ControllerConfig, pairs)
    store = Path(controller.controller_store_path)
    controller = msgspec.structs.replace(controller, config_store_path=str(store / "controller.properties"))
    controller.members()
    return controller, {key: rest[key] for key in rest if key not in keys(ControllerConfig)}


def _controller(options: ControllerOptions, pairs: dict[str, str]) -> ServerPlan:
    from firearrow.controller.config import KEY_GROUPS, ControllerConfig

    pairs |= _present(options.given())
    if options.file:  # as in RocketMQ: changes by clients survive a restart
        pairs["configStorePath"] = str(options.file.absolute())
    controller, notes = load(ControllerConfig, pairs, servers=KEY_GROUPS)
    controller.members()
    return ServerPlan(namesrv=None, broker=None, store=None, notes=notes, controller=controller)


def _broker(options: BrokerOptions, pairs: dict[str, str]) -> ServerPlan:
    pairs = _present({"namesrvAddr": os.environ.get("NAMESRV_ADDR")}) | pairs
    return of_broker(pairs | _present(options.given()), options.file)


def of_broker(pairs: Mapping[str, str], file: Path | SharedFile | None = None) -> ServerPlan:
    """Give the plan of a single broker by its keys; changes by clients rewrite ``file``."""
    from firearrow.broker.config import KEY_GROUPS, BrokerConfig
    from firearrow.store.config import StoreConfig

    store, rest = take(StoreConfig, pairs)
    check_alone(store.root_path)
    broker, rest = take(BrokerConfig, rest)
    proxy, rest = _grpc_of(broker, pairs, rest)
    notes = review(rest, StoreConfig, BrokerConfig, servers=KEY_GROUPS)
    broker = _complete(msgspec.structs.replace(broker, extra=rest))
    return ServerPlan(
        namesrv=None,
        broker=broker,
        store=_absolute(store),
        notes=notes,
        proxy=proxy,
        broker_file=file,
        is_grpc_port_given="grpcServerPort" in pairs,
    )


def _grpc_of(
    broker: BrokerConfig, pairs: Mapping[str, str], rest: dict[str, str]
) -> tuple[ProxyConfig | None, dict[str, str]]:
    """Settle the gRPC port of a broker, with the keys of RocketMQ's proxy; give it and the remaining keys.

    A broker at a free port has a free port for gRPC, too, unless one is given.
    """
    from firearrow.proxy.config import ProxyConfig

    table = keys(ProxyConfig)
    port = {"grpcServerPort": "0"} if not broker.listen_port else {}
    config, _ = take(ProxyConfig, port | {name: text for name, text in pairs.items() if name in table})
    left = {name: text for name, text in rest.items() if name not in table}
    return (config if broker.enable_grpc else None), left


def _proxy(options: ProxyOptions) -> ServerPlan:
    from firearrow.proxy.config import pairs_of, path_of

    usual = path_of(os.environ)
    file = options.file or (usual if usual is not None and usual.is_file() else None)
    try:
        pairs = {} if file is None else pairs_of(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    pairs |= {**dict(options.pairs), **_present(options.given())}
    plan = _in_front(pairs)
    config = plan.cluster_proxy
    assert config is not None, "the plan of a proxy"
    if options.workers > 1:
        each = (config.request_memory_bytes_max or memory_bytes() // MEMORY_PARTS) // options.workers
        pairs |= {"requestMemoryBytesMax": str(each)}
        first = config.metrics_prom_exporter_port
        workers = [
            ProcessPlan(f"worker-{number + 1}", pairs | {"metricsPromExporterPort": str(first and first + number)})
            for number in range(options.workers)
        ]
        plan = msgspec.structs.replace(plan, workers=tuple(workers))
    return plan


def _in_front(pairs: Mapping[str, str]) -> ServerPlan:
    """Give the plan of a proxy. If its port for gRPC is a free one, that for remoting is free, too, unless given."""
    from firearrow.proxy.config import load

    free = {"remotingListenPort": "0"} if pairs.get("grpcServerPort") == "0" else {}
    config, notes = load(fastjson.dumps({**free, **pairs}), os.environ)
    if config.proxy_mode == "local":
        raise ConfigError("proxyMode=local: a broker serves gRPC clients itself, run `firearrow broker` with the keys")
    if not config.namesrv_addr.strip("; "):
        raise ConfigError("no name servers: neither -n nor namesrvAddr nor NAMESRV_ADDR names any")
    return ServerPlan(
        namesrv=None,
        broker=None,
        store=None,
        notes=notes,
        is_remoting_port_given="remotingListenPort" in pairs,
        cluster_proxy=config,
    )


def of_worker(pairs: Mapping[str, str]) -> ServerPlan:
    """Give the plan of a worker of a proxy; the supervisor has logged the notes on its keys."""
    return msgspec.structs.replace(_in_front(pairs), is_worker=True, notes=[])


def _present(values: Mapping[str, str | int | None]) -> dict[str, str]:
    return {key: str(value) for key, value in values.items() if value is not None}


def _in_store(store: StoreConfig) -> dict[str, str]:
    """Keep the files of an embedded name server with the store, not in the home directory."""
    directory = store.root_path.absolute() / "namesrv"
    return {"kvConfigPath": str(directory / "kvConfig.json"), "configStorePath": str(directory / "namesrv.properties")}


def _absolute(store: StoreConfig) -> StoreConfig:
    return msgspec.structs.replace(
        store,
        store_path_root_dir=str(store.root_path.absolute()),
        store_path_commit_log=str(store.commit_log_path.absolute()),
    )


def _complete(broker: BrokerConfig) -> BrokerConfig:
    """Settle the announced addresses of a broker."""
    address = broker.broker_ip1 or reachable(broker.bind_address)
    return msgspec.structs.replace(broker, broker_ip1=address, broker_ip2=broker.broker_ip2 or address)


def reachable(host: str) -> str:
    """Give an address that reaches a server with this bind address.

    For a wildcard it is the address of the outgoing interface, or loopback without one.
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
    except ValueError:  # a host name
        return False
