"""A controller's configuration: keys of RocketMQ's ControllerConfig and NettyServerConfig."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta, field

from firearrow.config.metrics import MetricsKeys
from firearrow.config.table import (
    LIVE,
    FilePath,
    KeyList,
    OptionalName,
    OptionalPath,
    PeerList,
    PositiveInt,
    PositiveLong,
)
from firearrow.errors import ConfigError

# The groups of RocketMQ's keys that belong to a controller, see `firearrow.config.table.load`.
KEY_GROUPS = ("controller", "server", "client", "auth")
MEMBERS_MAX: Final = 9  # with more, each change would only wait for more machines


ControllerType = Annotated[str, Meta(pattern="(?i:DLedger|etcd)", title="DLedger or etcd")]
_URL: Final = r"https?://(\[[0-9a-fA-F:.]+\]|[^\s:;/@\[\]]+)(:[0-9]{1,5})?/?"
UrlList = Annotated[
    str,
    Meta(
        pattern=rf"[\s;]*({_URL}(\s*;[\s;]*{_URL})*[\s;]*)?",
        title="http://host:port or https://host:port, several separated by ;",
    ),
]
LeaseSeconds = Annotated[int, Meta(ge=2, le=600)]  # etcd's least is 2, with its usual heartbeats


def _at_home(*names: str) -> str:
    return str(Path.home().joinpath(*names))


class ControllerConfig(MetricsKeys, frozen=True):
    """Keys of a controller: its group, its own name in it, and its rules for brokers."""

    # --- the group ---
    # fmt: off
    controller_d_leger_group: Annotated[OptionalName, "name of the group of controllers"] = ""
    controller_d_leger_peers: Annotated[PeerList, "all controllers of the group, this one among them: `n0-host:port;n1-host:port`"] = ""
    controller_d_leger_self_id: Annotated[str, "which of them this is, `n0`"] = ""
    controller_store_path: Annotated[FilePath, "directory of the state that the controllers have agreed on"] = field(default_factory=lambda: _at_home("DLedgerController"))

    # --- another way to agree ---
    controller_type: Annotated[ControllerType, "how they agree: `DLedger` is by Raft among themselves, `etcd` by an etcd that there is"] = "DLedger"
    controller_etcd_endpoints: Annotated[UrlList, "etcd: all its members, `http://host:2379;http://host2:2379`"] = ""
    controller_etcd_prefix: Annotated[OptionalName, "etcd: begins the keys of all groups"] = "/firearrow/controller"
    controller_etcd_lease_seconds: Annotated[LeaseSeconds, "etcd: how long a controller leads that no longer reaches it, and how long one that was killed is missed"] = 5
    controller_etcd_user: Annotated[str, "etcd: a user who may read and write below the prefix, if it asks for one"] = ""
    controller_etcd_password: Annotated[str, "etcd: the password of that user"] = ""
    controller_etcd_trust_cert_path: Annotated[OptionalPath, "etcd: file with the authorities that sign its certificates; empty: those that the system trusts"] = ""
    controller_etcd_cert_path: Annotated[OptionalPath, "etcd: file with the certificate that the controller shows (PEM)"] = ""
    controller_etcd_key_path: Annotated[OptionalPath, "etcd: file with its key; empty: it is in the same file"] = ""

    # --- files ---
    config_store_path: Annotated[FilePath, "file that a changed configuration is written to"] = field(default_factory=lambda: _at_home("controller", "controller.properties"))
    config_black_list: Annotated[KeyList, "keys that no client may change, separated by `;`"] = "configBlackList;configStorePath"

    # --- access ---
    inner_client_authentication_credentials: Annotated[str, 'keys that the controllers of a group sign with, as `{"accessKey":"...","secretKey":"..."}`: the same in all, and as the brokers have; a server that does not sign with them is no controller'] = ""
    authentication_enabled: Annotated[bool, "whether brokers and tools have to sign with them, too"] = False

    # --- brokers ---
    scan_not_active_broker_interval: Annotated[PositiveLong, "ms between looks for brokers that no longer report", LIVE] = 5000
    scan_inactive_master_interval: Annotated[PositiveLong, "ms between looks for brokers without a living master", LIVE] = 5000
    elect_master_max_retry_count: Annotated[PositiveInt, "how often an election is tried when a master is lost", LIVE] = 3
    enable_elect_unclean_master: Annotated[bool, "whether a broker that lacks messages may become master when no other one lives: the messages that it lacks are lost", LIVE] = False
    process_read_event: Annotated[bool, "whether also what only asks is agreed on before it is answered", LIVE] = False
    notify_broker_role_changed: Annotated[bool, "whether brokers are told of a new master at once, not when they ask", LIVE] = True
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse etcd without an endpoint, and required signatures without credentials."""
        super().__post_init__()
        if self.authentication_enabled and not self.inner_client_authentication_credentials:
            raise ConfigError(
                "authenticationEnabled=true needs innerClientAuthenticationCredentials: the key with which "
                "brokers, tools and other controllers sign"
            )
        if self.agrees_by_etcd and not self.etcd_endpoints():
            raise ConfigError("controllerType=etcd needs controllerEtcdEndpoints: http://host:2379")

    @property
    def agrees_by_etcd(self) -> bool:
        """Tell whether the controllers agree by etcd."""
        return self.controller_type.lower() == "etcd"

    def etcd_endpoints(self) -> list[str]:
        """Return the addresses of etcd's members."""
        urls = (url.strip() for url in self.controller_etcd_endpoints.split(";"))
        return [url.rstrip("/") for url in urls if url]

    def members(self) -> dict[str, str]:
        """Return the addresses of all controllers by name; raises ConfigError if this one has none."""
        pairs = (one.strip().partition("-") for one in self.controller_d_leger_peers.split(";"))
        named = [(name, address) for name, _, address in pairs if name]
        members = dict(named)
        own = self.controller_d_leger_self_id
        if not self.controller_d_leger_group:
            raise ConfigError("controllerDLegerGroup is missing: a name for all controllers")
        if not members:
            raise ConfigError("controllerDLegerPeers is missing: n0-host:port;n1-host:port")
        if own not in members:
            names = ", ".join(members)
            raise ConfigError(f"controllerDLegerSelfId={own}: controllerDLegerPeers has {names}")
        if not len(named) == len(members) == len(set(members.values())):
            raise ConfigError("controllerDLegerPeers has a name or an address twice")
        if len(members) > MEMBERS_MAX:
            raise ConfigError(f"controllerDLegerPeers has {len(members)} controllers, the limit is {MEMBERS_MAX}")
        return members
