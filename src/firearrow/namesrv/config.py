"""The name server's configuration: keys of RocketMQ's NamesrvConfig and NettyServerConfig."""

from pathlib import Path
from typing import Annotated

from msgspec import field

from firearrow.config.listening import ListeningKeys
from firearrow.config.table import LIVE, CountInt, FilePath, KeyList, Port, PositiveLong

# The groups of RocketMQ's keys that belong to a name server, see `firearrow.config.table.load`.
KEY_GROUPS = ("namesrv", "server", "client")


def _in_home(name: str) -> str:
    return str(Path.home() / "namesrv" / name)


class NamesrvConfig(ListeningKeys, frozen=True):
    """Keys of a name server: its addresses, its files, and its rules for brokers."""

    # --- connections ---
    # fmt: off
    listen_port: Annotated[Port, "port to listen on; 0 takes a free one"] = 9876

    # --- files ---
    kv_config_path: Annotated[FilePath, "file that keeps the key-value configuration"] = field(default_factory=lambda: _in_home("kvConfig.json"))
    config_store_path: Annotated[FilePath, "file that a changed configuration is written to"] = field(default_factory=lambda: _in_home("namesrv.properties"))
    config_black_list: Annotated[KeyList, "keys that no client may change, separated by `;`"] = "configBlackList;configStorePath;kvConfigPath"

    # --- routes ---
    scan_not_active_broker_interval: Annotated[PositiveLong, "ms between checks for brokers that no longer report", LIVE] = 5000
    delete_topic_with_broker_registration: Annotated[bool, "whether a topic that a broker no longer registers is removed", LIVE] = False
    order_message_enable: Annotated[bool, "whether routes carry the order configuration of their topic", LIVE] = False
    return_order_topic_config_to_broker: Annotated[bool, "whether brokers get the order configuration when they register", LIVE] = True
    support_acting_master: Annotated[bool, "whether a slave may stand in for a lost master in routes", LIVE] = False
    notify_min_broker_id_changed: Annotated[bool, "whether brokers are notified when the smallest id of their name changes", LIVE] = False
    enable_all_topic_list: Annotated[bool, "whether clients may list all topics", LIVE] = True
    enable_topic_list: Annotated[bool, "whether clients may list topics by cluster and kind", LIVE] = True
    need_wait_for_service: Annotated[bool, "whether routes are withheld for waitSecondsForService after the start", LIVE] = False
    wait_seconds_for_service: Annotated[CountInt, "seconds after the start that routes are withheld", LIVE] = 45

    # --- the controller ---
    enable_controller_in_namesrv: Annotated[bool, "whether a controller runs in the same process; its keys are the same as for `firearrow controller`"] = False
    # fmt: on
