"""Table of the keys that demand features which this version lacks.

Most of RocketMQ's keys without effect here tune a missing part, a thread pool for example: a warning is enough. The
keys of this table demand more: a check of clients, messages on a second broker, data in another place. Ignoring them
would open a protected server, or lose messages that must be safe. A server therefore does not start with them, and a
client can't set them. Values that demand nothing, such as RocketMQ's defaults, pass.

RocketMQ has some keys as properties of the JVM (``-Dtls.server.mode=...``, see `firearrow.config.tls`). They are also
read from the variables that its start scripts read.

    refuse({"aclEnable": "true"})   ->  ConfigError: aclEnable=true asks for the access control of
                                        RocketMQ 4, which this version does not have; remove the
                                        key to start without it
    refuse({"aclEnable": "false"})  ->  nothing
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from firearrow.errors import ConfigError

JVM_VARIABLES: Final = ("JAVA_OPT", "JAVA_OPT_EXT", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
SHOWN_CHARS_MAX: Final = 200  # of a value: a remark and a line of the log hold no more
_JVM_PROPERTY: Final = re.compile(r"-D(tls\.[\w.]+)=(\S*)")
_SECRET: Final = re.compile(r"passw|secret|token|credentials|initAuthenticationUser", re.IGNORECASE)
_HAS_SECRET: Final = re.compile(r"\W(password|secretKey)\W", re.IGNORECASE)


class Demand(NamedTuple):
    """Demand of a key, unless its whole value matches ``harmless``."""

    what: str
    harmless: str


def _asking(what: str, harmless: str, *keys: str) -> dict[str, Demand]:
    return dict.fromkeys(keys, Demand(what, harmless))


_OFF: Final = "(?i:false)"
_FEW: Final = "[01]"  # copies, including this broker's own
_NONE: Final = ""

# fmt: off
DEMANDS: Final[Mapping[str, Demand]] = {
    # --- who may do what ---
    **_asking("the access control of RocketMQ 4", _OFF, "aclEnable", "enableAclRpcHookForClusterMode"),
    **_asking("checks of clients' certificates, which tls.server.need.client.auth alone asks for",
              "(?i:true|false)", "tls.server.authClient"),
    # --- other brokers ---
    **_asking("replicas that decide among themselves", _OFF, "enableDLegerCommitLog"),
    **_asking("two masters that copy each other", _OFF, "duplicationEnable"),
    **_asking("controllers that agree by JRaft", "(?i:DLedger|etcd)", "controllerType"),
    **_asking("a lookup of name servers by DNS or HTTP instead of namesrvAddr", _OFF,
              "fetchNameSrvAddrByDnsLookup", "fetchNamesrvAddrByAddressServer"),
    **_asking("a lookup of name servers by DNS or HTTP instead of namesrvAddr", _NONE, "namesrvDomain"),
    **_asking("a proxy between it and other servers", r"(\{\s*\})?", "socksProxyConfig"),
    **_asking("routes of another environment", _OFF, "clusterTest"),
    # --- where and how data are kept ---
    **_asking("a store plug-in", _NONE, "messageStorePlugIn"),
    **_asking("a CommitLog in several directories", "[^,]*", "storePathCommitLog"),
    **_asking("a CommitLog in several directories", _NONE, "readOnlyCommitLogStorePaths"),
    **_asking("another file format for topics, groups and offsets", "v1", "configManagerVersion"),
    **_asking("another file format for topics, groups and offsets", _OFF,
              "useSingleRocksDBForAllConfigs"),
    **_asking("queues in files and in RocksDB at once", _OFF, "rocksdbCQDoubleWriteEnable"),
    **_asking("an index, timers or transactions in RocksDB", _OFF,
              "indexRocksDBEnable", "timerRocksDBEnable", "transRocksDBEnable"),
    **_asking("a write buffer outside the page cache", _OFF,
              "transientStorePoolEnable"),
    **_asking("checksums of whole messages", _OFF, "enabledAppendPropCRC", "forceVerifyPropCRC"),
    **_asking("a disk shared by several brokers", _FEW, "replicasPerDiskPartition"),
    # --- what clients get ---
    **_asking("exclusion of slow consumer groups", _OFF, "disableConsumeIfConsumerReadSlowly"),
}
# fmt: on


def refuse(pairs: Mapping[str, str]) -> None:
    """Raise a `ConfigError` for the first pair that demands a missing feature."""
    for key, value in pairs.items():
        demand = DEMANDS.get(key)
        if demand is not None and value and not re.fullmatch(demand.harmless, value.strip()):
            raise ConfigError(
                f"{shown(key, value)} asks for {demand.what}, which this version does not have; "
                "remove the key to start without it"
            )


def refuse_of_jvm(environment: Mapping[str, str]) -> None:
    """Raise a `ConfigError` for options of a JVM in the environment that demand a missing feature."""
    for variable, key, value in jvm_properties(environment):
        try:
            refuse({key: value})
        except ConfigError as error:
            raise ConfigError(f"{variable}: {error}") from None


def jvm_properties(environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Return the TLS properties in variables for a JVM: variable, key and value."""
    for variable in JVM_VARIABLES:
        for key, value in _JVM_PROPERTY.findall(environment.get(variable, "")):
            yield variable, key, value.strip("\"'")


def is_secret(key: str, value: str) -> bool:
    """Tell whether the value of a key is a secret of the server.

    The value of a misspelt key may be one, too: users are written as ``{"username":...,"password":...}``.
    """
    return bool(_SECRET.search(key) or _HAS_SECRET.search(value))


def shown(key: str, value: str) -> str:
    """Return ``key=value`` for one line to people, without the value if it is a secret."""
    if is_secret(key, value):
        return key
    if len(value) > SHOWN_CHARS_MAX:
        return f"{key}={value[:SHOWN_CHARS_MAX]!r}..."
    return f"{key}={value if value.isprintable() else repr(value)}"
