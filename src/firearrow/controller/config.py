"""A controller's configuration: keys of RocketMQ's ControllerConfig and NettyServerConfig."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from msgspec import field

from firearrow.config.metrics import MetricsKeys
from firearrow.config.table import (
    LIVE,
    FilePath,
    KeyList,
    OptionalName,
    PeerList,
    PositiveInt,
    PositiveLong,
)
from firearrow.errors import ConfigError

# The groups of RocketMQ's keys that belong to a controller, see `firearrow.config.table.load`.
KEY_GROUPS = ("controller", "server", "client")
MEMBERS_MAX: Final = 9  # more would only have each change wait for more machines


def _at_home(*names: str) -> str:
    return str(Path.home().joinpath(*names))


class ControllerConfig(MetricsKeys, frozen=True):
    """Which controllers there are, which one this is, and how it treats brokers."""

    # --- the group ---
    # fmt: off
    controller_d_leger_group: Annotated[OptionalName, "name of the group of controllers"] = ""
    controller_d_leger_peers: Annotated[PeerList, "all controllers of the group, this one among them: `n0-host:port;n1-host:port`"] = ""
    controller_d_leger_self_id: Annotated[str, "which of them this is, `n0`"] = ""
    controller_store_path: Annotated[FilePath, "directory of what the controllers have agreed on"] = field(default_factory=lambda: _at_home("DLedgerController"))

    # --- files ---
    config_store_path: Annotated[FilePath, "file that a changed configuration is written to"] = field(default_factory=lambda: _at_home("controller", "controller.properties"))
    config_black_list: Annotated[KeyList, "keys that no client may change, separated by `;`"] = "configBlackList;configStorePath"

    # --- brokers ---
    scan_not_active_broker_interval: Annotated[PositiveLong, "ms between looks for brokers that no longer report", LIVE] = 5000
    scan_inactive_master_interval: Annotated[PositiveLong, "ms between looks for brokers without a living master", LIVE] = 5000
    elect_master_max_retry_count: Annotated[PositiveInt, "how often an election is tried when a master is lost", LIVE] = 3
    enable_elect_unclean_master: Annotated[bool, "whether a broker that lacks messages may become master when no other one lives: what it lacks is lost", LIVE] = False
    process_read_event: Annotated[bool, "whether also what only asks is agreed on before it is answered", LIVE] = False
    notify_broker_role_changed: Annotated[bool, "whether brokers are told of a new master at once, not when they ask", LIVE] = True
    # fmt: on

    def members(self) -> dict[str, str]:
        """Give the addresses of all controllers by name; ConfigError if this one has none."""
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
            raise ConfigError(f"controllerDLegerPeers has {len(members)}, {MEMBERS_MAX} may be")
        return members
