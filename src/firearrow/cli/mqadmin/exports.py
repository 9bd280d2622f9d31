"""Commands that write topics, groups, configurations and counters of a cluster into JSON files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from firearrow.cli.mqadmin.invocation import Invocation, or_none
from firearrow.cli.mqadmin.javatext import concurrent_order, copied_concurrent_order, shown, text_order
from firearrow.cli.mqadmin.offsets import PUT, day_sum
from firearrow.cli.mqadmin.servers import masters_with_slaves
from firearrow.errors import ConfigError, FirearrowError
from firearrow.files import for_the_user_alone, make_own_directory
from firearrow.message import names
from firearrow.wire import fastjson
from firearrow.wire.bodies import MASTER_ID, TopicConfig, TopicConfigTable
from firearrow.wire.client_bodies import SubscriptionGroupConfig, SubscriptionGroupTable
from firearrow.wire.codes import PROTOCOL_VERSION, version_name

DIRECTORY: Final = Path("/tmp/rocketmq/export")
PERMS: Final = 8  # a perm is less than this
# Groups that a broker creates at its start, and internal groups of clients.
OWN_GROUPS: Final = names.SYSTEM_GROUPS | {
    "DEFAULT_CONSUMER", "DEFAULT_PRODUCER", "SCHEDULE_CONSUMER", "__MONITOR_CONSUMER",
    "CLIENT_INNER_PRODUCER", "SELF_TEST_P_GROUP",
}  # fmt: skip
KEYS: Final = (
    "brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime",
    "filterServerNums", "flushDiskType", "maxMessageSize", "messageDelayLevel",
    "msgTraceTopicName", "slaveReadEnable", "traceOn", "traceTopicEnable", "useTLS",
    "autoCreateTopicEnable", "autoCreateSubscriptionGroup",
)  # fmt: skip


def hashed(table: Mapping[str, Any]) -> dict[str, Any]:
    """Sort a map in the order of a `HashMap`."""
    return {name: table[name] for name in text_order(table)}


def _write(run: Invocation, name: str, content: Any) -> Path:
    text = fastjson.dumps(content, pretty=True)
    if run.get("f"):
        path = Path(run.text("f"), name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    else:
        path = DIRECTORY / name
        make_own_directory(DIRECTORY)
        with open(path, "wb", opener=for_the_user_alone) as file:
            file.write(text)
    return path


async def metadata(run: Invocation) -> None:
    """Write the users' topics and groups, of a broker or of all masters of a cluster together."""
    if address := run.get("b"):
        await _metadata_of_broker(run, address)
        return
    if not run.get("c"):
        run.usage()
        return
    topics: dict[str, TopicConfig] = {}
    groups: dict[str, SubscriptionGroupConfig] = {}
    for master in await run.masters(run.text("c")):
        found = (await user_topics(run, master)).topic_config_table
        for name in found:
            topics[name] = _added(found[name], topics.get(name))
        known = (await user_groups(run, master)).subscription_group_table
        for name in known:
            groups[name] = _added_group(known[name], groups.get(name))
    content: dict[str, Any] = {"exportTime": run.clock.now_ms()}
    only = next((option for option in "tg" if run.has(option)), "")
    if only != "g":
        content["topicConfigTable"] = hashed(topics)
    if only != "t":
        content["subscriptionGroupTable"] = hashed(groups)
    files = {"t": "topic.json", "g": "subscriptionGroup.json", "": "metadata.json"}
    run.line(f"export {_write(run, files[only], hashed(content))} success")


async def _metadata_of_broker(run: Invocation, address: str) -> None:
    content: msgspec.Struct
    if run.has("t"):
        name, content = "topic.json", await user_topics(run, address)
    elif run.has("g"):
        name, content = "subscriptionGroup.json", await user_groups(run, address)
    else:
        return
    run.write(f"export {_write(run, name, content)} success")


def _added(topic: TopicConfig, other: TopicConfig | None) -> TopicConfig:
    """Add the queues of another broker's topic."""
    if other is None:
        return topic
    return msgspec.structs.replace(
        topic,
        read_queue_nums=topic.read_queue_nums + other.read_queue_nums,
        write_queue_nums=topic.write_queue_nums + other.write_queue_nums,
    )


def _added_group(group: SubscriptionGroupConfig, other: SubscriptionGroupConfig | None) -> SubscriptionGroupConfig:
    if other is None:
        return group
    queues = group.retry_queue_nums + other.retry_queue_nums
    return msgspec.structs.replace(group, retry_queue_nums=queues)


async def user_topics(run: Invocation, address: str) -> TopicConfigTable:
    """Give the topics of a broker without system topics; with ``-s``, also retry and dead-letter topics."""
    table = await run.admin.topics.configs(address)
    own = set(await run.admin.topics.system_names(address))

    def is_users(name: str, topic: TopicConfig) -> bool:
        special = names.is_retry(name) or names.is_dlq(name)
        return (
            name not in own
            and not names.is_system_topic(name)
            and (run.has("s") or not special)
            and topic.perm in range(PERMS)
        )

    found = table.topic_config_table
    order = copied_concurrent_order(found)
    kept = {name: found[name] for name in order if is_users(name, found[name])}
    return TopicConfigTable(table.data_version, kept)


async def user_groups(run: Invocation, address: str) -> SubscriptionGroupTable:
    """Give the groups of a broker without system groups."""
    table = await run.admin.groups.configs(address)
    found = table.subscription_group_table
    kept = {
        name: _in_rocketmqs_form(found[name])
        for name in copied_concurrent_order(found)
        if name not in OWN_GROUPS and not name.startswith(names.SYSTEM_GROUP_PREFIX)
    }
    return SubscriptionGroupTable(table.data_version, kept, table.forbidden_table)


def _in_rocketmqs_form(group: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
    """Arrange a group's retry policy as RocketMQ writes it: names in order, delays in a line."""
    policy = {
        name: {key: tuple(item) if isinstance(item, list) else item for key, item in part.items()}
        if isinstance(part, dict)
        else part
        for name, part in sorted(group.group_retry_policy.items())
    }
    return msgspec.structs.replace(group, group_retry_policy=policy)


async def configs(run: Invocation) -> None:
    """Write some keys of each master's configuration, and the size of the cluster."""
    found: dict[str, Any] = {}
    pairs = await masters_with_slaves(run, run.text("c"))
    for master in pairs:
        config = await run.admin.brokers.config(master)
        kept = [key for key in KEYS if key in config]
        own = {key: config[key] for key in concurrent_order(kept)}
        found[config.get("brokerName", master)] = own
    scale = {
        "namesrvSize": len(run.admin.name_servers.addresses),
        "masterBrokerSize": len(pairs),
        "slaveBrokerSize": sum(map(len, pairs.values())),
    }
    content = {"brokerConfigs": hashed(found), "clusterScale": hashed(scale)}
    run.write(f"export {_write(run, 'configs.json', hashed(content))} success")


async def metrics(run: Invocation) -> None:
    """Write rates and counts of each master of a cluster, and their sums."""
    cluster = run.text("c")
    info = await run.admin.cluster()
    if cluster not in info.cluster_addr_table:
        raise ConfigError(f"there is no cluster {cluster!r}")
    rates: Counter[str] = Counter()
    days: Counter[str] = Counter()
    report: dict[str, Any] = {}
    for name in text_order(info.cluster_addr_table[cluster]):
        broker = info.broker_addr_table.get(name)
        if broker is not None:
            report[name] = await _metrics_of(run, broker.broker_addrs[MASTER_ID], rates, days)
    kinds = ("NormalInTps", "NormalOutTps", "TransInTps", "ScheduleInTps")
    day_kinds = ("NormalOneDayInNum", "NormalOneDayOutNum", "TransOneDayInNum")
    totals = {
        "totalTps": hashed({f"total{kind}": float(rates[_lower(kind)]) for kind in kinds}),
        "totalOneDayNum": hashed({_lower(kind): days[_lower(kind)] for kind in (*day_kinds, "ScheduleOneDayInNum")}),
    }
    content = {"evaluateReport": hashed(report), "totalData": hashed(totals)}
    run.write(f"export {_write(run, 'metrics.json', hashed(content))} success")


def _lower(name: str) -> str:
    return name[0].lower() + name[1:]


async def _metrics_of(run: Invocation, address: str, rates: Counter[str], days: Counter[str]) -> dict[str, Any]:
    counted = await run.admin.brokers.runtime(address)
    config = await run.admin.brokers.config(address)
    groups = await user_groups(run, address)
    topics = await user_topics(run, address)
    own_rates = {
        "normalInTps": _first(counted.get("putTps", "0")),
        "normalOutTps": _first(counted.get("getTransferredTps", "0")),
    }
    own_days = {
        f"normalOneDay{way}Num": int(counted[f"msg{verb}TotalTodayMorning"])
        - int(counted[f"msg{verb}TotalYesterdayMorning"])
        for way, verb in (("In", "Put"), ("Out", "Get"))
    }
    for kind, topic in (("trans", names.TRANS_HALF_TOPIC), ("schedule", names.SCHEDULE_TOPIC)):
        rate, day = await _put_of(run, address, topic)
        own_rates[f"{kind}InTps"] = rate
        own_days[f"{kind}OneDayInNum"] = day
    for name, rate in own_rates.items():
        rates[name] += rate  # type: ignore[assignment]
    for name, day in own_days.items():
        days[name] += day
    disk = {name: counted.get(name) for name in ("commitLogDiskRatio", "consumeQueueDiskRatio")}
    quota = {
        "diskRatio": hashed(disk),
        "tps": hashed(own_rates),
        "oneDayNum": hashed(own_days),
        "messageAverageSize": counted.get("putMessageAverageSize"),
        "topicSize": len(topics.topic_config_table),
        "groupSize": len(groups.subscription_group_table),
    }
    environment = {
        "cpuNum": config.get("clientCallbackExecutorThreads"),
        "totalMemKBytes": counted.get("totalMemKBytes"),
    }
    clients = await _clients(run, groups)
    version = {"rocketmqVersion": version_name(PROTOCOL_VERSION), "clientInfo": dict.fromkeys(clients).keys()}
    parts = {"runtimeEnv": hashed(environment), "runtimeQuota": hashed(quota), "runtimeVersion": hashed(version)}
    return hashed(parts)


def _first(text: str) -> float:
    words = text.split()
    return float(words[0]) if words else 0.0


async def _put_of(run: Invocation, address: str, topic: str) -> tuple[float, int]:
    counter = await or_none(run.admin.brokers.counter(address, PUT, topic))
    return (counter.stats_minute.tps, day_sum(counter)) if counter else (0.0, 0)


async def _clients(run: Invocation, groups: SubscriptionGroupTable) -> list[str]:
    """List the languages and versions of all connected consumers."""
    found: dict[str, None] = {}
    for name in groups.subscription_group_table:
        consumers = await or_none(run.admin.consumers(name))
        for client in consumers.connection_set if consumers else ():
            found[f"{shown(client.language)}%{version_name(client.version)}"] = None
    return text_order(found)


async def pop_records(run: Invocation) -> None:
    """Make brokers move their records of popped messages from RocksDB into the log."""
    # Java: ExportPopRecordCommand#execute takes ``-d false`` for a dry run.
    dry = (run.get("d") or "").lower() == "false"
    if address := run.get("b"):
        config = await run.admin.brokers.config(address)
        await _export_pops(run, address, config.get("brokerName", ""), dry=dry)
    elif cluster := run.get("c"):
        info = await run.admin.cluster()
        for name in text_order(info.cluster_addr_table.get(cluster, [])):
            broker = info.broker_addr_table.get(name)
            for one in broker.broker_addrs.values() if broker else ():
                await _export_pops(run, one, name, dry=dry)


async def _export_pops(run: Invocation, address: str, name: str, *, dry: bool) -> None:
    where = f"brokerName={name}, brokerAddr={address}, dryRun={shown(dry)}"
    try:
        if not dry:
            await run.admin.brokers.export_pops(address)
    except (OSError, FirearrowError) as error:
        run.fail(f"Export broker records error, {where}\n{error}")
        return
    run.line(f"Export broker records, {where}")
