"""Commands about consumer groups and clients, and the text of consumers' reports about themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import concurrent_order, digits, fixed, shown, text_order
from firearrow.cli.mqadmin.topics import attribute_changes, in_order
from firearrow.client.admin.cluster import cluster_with
from firearrow.errors import ConfigError, FirearrowError
from firearrow.files import name_of_file
from firearrow.message.names import dlq_topic, retry_topic
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import (
    ConsumerRunningInfo,
    MessageQueue,
    PopProcessQueueInfo,
    ProcessQueueInfo,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from firearrow.wire.codes import version_name

YOUNG_MS: Final = 2 * 60 * 1000  # until this age a consumer's subscription may differ
BLOCKED_MS: Final = 60 * 1000

_QUEUE_FIELDS: Final = (
    "commitOffset", "cachedMsgMinOffset", "cachedMsgMaxOffset", "cachedMsgCount",
    "cachedMsgSizeInMiB", "transactionMsgMinOffset", "transactionMsgMaxOffset",
    "transactionMsgCount", "locked", "tryUnlockTimes", "lastLockTimestamp", "droped",
    "lastPullTimestamp", "lastConsumeTimestamp",
)  # fmt: skip
_CLIENT: Final = "{:<36} {:<22} {:<10} {}"
_REPORT: Final = "{:<10} {:<40} {:<20} {}"
_RETRY_POLICIES: Final = {
    "exponentialRetryPolicy": ("ExponentialRetryPolicy", ("initial", "max", "multiplier")),
    "customizedRetryPolicy": ("CustomizedRetryPolicy", ("next",)),
}


def config_values(group: SubscriptionGroupConfig) -> dict[str, str]:
    """Give a group's settings in RocketMQ's order and form; a missing value is ``null``."""
    values: dict[str, str] = {}
    for field in msgspec.structs.fields(group):
        value = getattr(group, field.name)
        if field.name == "group_retry_policy":
            values[field.encode_name] = _policy_text(value)
        elif field.name == "attributes":
            values[field.encode_name] = shown({name: value[name] for name in text_order(value)})
        elif field.name == "subscription_data_set" and value is not None:
            values[field.encode_name] = f"[{', '.join(map(_subscription_text, value))}]"
        else:
            values[field.encode_name] = shown(value)
    return values


def _policy_text(policy: Mapping[str, Any]) -> str:
    parts = [f"type={shown(policy.get('type'))}"]
    for name, (kind, members) in _RETRY_POLICIES.items():
        own = policy.get(name)
        text = "null" if own is None else f"{kind}{{{_members(own, members)}}}"
        parts.append(f"{name}={text}")
    return f"GroupRetryPolicy{{{', '.join(parts)}}}"


def _subscription_text(data: Mapping[str, Any]) -> str:
    members = _members(data, ("topic", "expressionType", "expression", "version"))
    return f"SimpleSubscriptionData{{{members}}}"


def _members(values: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return ", ".join(f"{name}={shown(values.get(name))}" for name in names)


async def update_group(run: Invocation) -> None:
    """Create a group or change it, on a broker or on all masters of a cluster."""
    policy = run.get("p")
    settings: dict[str, Any] = {}
    if policy:
        settings["group_retry_policy"] = fastjson.loads(policy)
    group = SubscriptionGroupConfig(
        group_name=run.text("g"),
        consume_enable=run.flag("s", True),
        consume_from_min_enable=run.flag("m", False),
        consume_broadcast_enable=run.flag("d", False),
        consume_message_orderly=run.flag("o", False),
        retry_queue_nums=run.number("q", 1),
        retry_max_times=run.number("r", 16),
        broker_id=run.number("i", 0),
        which_broker_when_consume_slowly=run.number("w", 1),
        notify_consumer_ids_changed_enable=run.flag("a", True),
        attributes=attribute_changes(run.text("attributes")) if run.get("attributes") else {},
        **settings,
    )

    async def create(address: str) -> None:
        await run.admin.groups.create(address, group)

    if await run.change_brokers(create, "create subscription group to {} success."):
        pairs = ", ".join(f"{name}={text}" for name, text in config_values(group).items())
        run.write(f"SubscriptionGroupConfig{{{pairs}}}")


async def update_groups(run: Invocation) -> None:
    """Create or change the groups of a file."""
    data = run.file_in("f")
    groups = fastjson.decode(data, list[SubscriptionGroupConfig]) if data is not None else []
    if not groups:
        return
    done = "success, please check the result later."
    if address := run.get("b"):
        await run.admin.groups.create_all(address, groups)
        run.line(f"submit batch of group config to {address} {done}")
        return
    for master in await run.masters(run.text("c")):
        await run.admin.groups.create_all(master, groups)
        run.line(f"submit batch of subscription group config to {master} {done}")
    run.usage()


async def set_mode(run: Invocation) -> None:
    """Make a group pull or pop a topic."""
    topic, group, shared = run.text("t"), run.text("g"), run.number("q", 0)
    mode: Literal["PULL", "POP"]
    match run.text("m"):
        case "PULL" | "POP" as mode:
            pass
        case other:
            raise ConfigError(f"-m {other!r}: allowed is PULL or POP")

    async def change(address: str) -> None:
        await run.admin.groups.set_mode(address, group, topic, mode, shared)

    if await run.change_brokers(change, "set consume mode to {} success."):
        run.write(f"topic[{topic}] group[{group}] consume mode[{mode}] popShareQueueNum[{shared}]")


async def delete_group(run: Invocation) -> None:
    """Delete a group; from a cluster, its retry and dead-letter topics too."""
    group, clean = run.text("g"), run.flag("r", False)
    said = f"delete subscription group [{group}] from broker"
    if address := run.get("b"):
        await run.admin.groups.delete(address, group, clean_offset=clean)
        run.line(f"{said} [{address}] success.")
    elif cluster := run.get("c"):
        for master in await run.masters(cluster):
            await run.admin.groups.delete(master, group, clean_offset=clean)
            run.line(f"{said} [{master}] in cluster [{cluster}] success.")
        with run.noting():
            await run.admin.delete_topic(retry_topic(group), cluster)
            await run.admin.delete_topic(dlq_topic(group), cluster)
    else:
        run.usage()


async def get_config(run: Invocation) -> None:
    """Show the configuration of a group on each broker."""
    group = run.text("g")
    info = await run.admin.cluster()
    for name in text_order(info.broker_addr_table):
        address = info.broker_addr_table[name].address
        known = (await run.admin.groups.configs(address)).subscription_group_table
        if group not in known:
            continue
        bar = "=" * 29
        run.line(f"{bar}{shown(cluster_with(name, info))}:{name}{bar}")
        for key, text in config_values(known[group]).items():
            run.line(f"{key:<40}=  {'' if text == 'null' else text}")


async def producer_connection(run: Invocation) -> None:
    """List the clients of a producer group."""
    found = await run.admin.producers(run.text("g"), run.text("t"))
    for number, client in enumerate(found.connection_set, 1):
        run.line(
            f"{number:04d}  {client.client_id:<32} {client.client_addr:<22} "
            f"{shown(client.language):<8} {version_name(client.version)}"
        )


async def all_producers(run: Invocation) -> None:
    """List the producers of a broker."""
    table = (await run.admin.groups.all_producers(run.text("b"))).data
    for group in text_order(table):
        for client in table[group]:
            run.line(
                f"producer group ({group}) instance : clientId={client.client_id},"
                f"remoteIP={client.remote_ip}, language={shown(client.language)}, "
                f"version={client.version}, lastUpdateTimestamp={client.last_update_timestamp}"
            )
        if not table[group]:
            run.line(f"producer group ({group}) instances are empty")


async def consumer_connection(run: Invocation) -> None:
    """List the clients of a consumer group and their subscriptions."""
    found = await run.admin.consumers(run.text("g"), run.get("b"))
    run.line(_CLIENT.format("#ClientId", "#ClientAddr", "#Language", "#Version"))
    for client in found.connection_set:
        version = version_name(client.version)
        run.line(_CLIENT.format(client.client_id, client.client_addr, shown(client.language), version))
    run.line("\nBelow is subscription:")
    run.line(f"{'#Topic':<20} #SubExpression")
    for topic in concurrent_order(found.subscription_table):
        wanted = found.subscription_table[topic]
        run.line(f"{wanted.topic:<20} {wanted.sub_string}")
    run.line()
    run.line(f"ConsumeType: {shown(found.consume_type)}")
    run.line(f"MessageModel: {shown(found.message_model)}")
    run.line(f"ConsumeFromWhere: {shown(found.consume_from_where)}")


async def consumer_status(run: Invocation) -> None:
    """Show a consumer's report about itself, or write the reports of all into files and compare them."""
    group, stacks = run.text("g"), run.has("s")
    found = await run.admin.consumers(group, run.get("b"))
    if client_id := run.get("i"):
        info = await run.admin.running_info(group, client_id, stacks=stacks)
        run.write(info_text(info))
        return
    now = run.clock.now_ms()
    infos: dict[str, ConsumerRunningInfo] = {}
    run.line(_REPORT.format("#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile"))
    for client in found.connection_set:
        try:
            info = await run.admin.running_info(group, client.client_id, stacks=stacks)
        except (OSError, FirearrowError) as error:
            run.note(error)
            continue
        infos[client.client_id] = info
        path = _written(str(now), client.client_id, info_text(info))
        run.line(_REPORT.format(len(infos), client.client_id, version_name(client.version), path))
    _compare(run, infos)


def _written(directory: str, name: str, text: str) -> Path:
    path = Path(directory, name_of_file(name))
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _compare(run: Invocation, infos: dict[str, ConsumerRunningInfo]) -> None:
    if not infos:
        return
    ordered = dict(sorted(infos.items()))
    now = run.clock.now_ms()
    if not same_subscriptions(list(ordered.values()), now):
        run.write("\n\nWARN: Different subscription in the same group of consumer!!!")
        return
    run.write("\n\nSame subscription in the same group of consumer")
    run.line("\n\nRebalance OK")
    for client_id, info in ordered.items():
        run.write(queue_troubles(client_id, info, now))


# --- reports of consumers ---


def _held_text(held: ProcessQueueInfo) -> str:
    values = [getattr(held, name) for name in held.__struct_fields__]
    pairs = [
        f"{name}={digits(value) if name.startswith('last') else shown(value)}"
        for name, value in zip(_QUEUE_FIELDS, values, strict=True)
    ]
    return f"ProcessQueueInfo [{', '.join(pairs)}]"


def info_text(info: ConsumerRunningInfo) -> str:
    """Write a consumer's whole report about itself."""
    parts = ["#Consumer Properties#\n"]
    parts += [f"{name:<40}: {info.properties[name]}\n" for name in concurrent_order(info.properties)]
    parts.append("\n\n#Consumer Subscription#\n")
    for number, wanted in enumerate(_sorted(info.subscription_set), 1):
        parts.append(
            f"{number:03d} Topic: {wanted.topic:<40} "
            f"ClassFilter: {shown(wanted.class_filter_mode):<8} "
            f"SubExpression: {wanted.sub_string}\n"
        )
    parts += _queues_text(info)
    parts.append(
        f"\n\n#Consumer RT&TPS#\n{'#Topic':<64}  {'#Pull RT':>14} {'#Pull TPS':>14} "
        f"{'#Consume RT':>14} {'#ConsumeOK TPS':>14} {'#ConsumeFailed TPS':>18} "
        f"{'#ConsumeFailedMsgsInHour':>25}\n"
    )
    for topic, rates in sorted(info.status_table.items()):
        parts.append(
            f"{topic:<32}  {fixed(rates.pull_rt, 2):>14} {fixed(rates.pull_tps, 2):>14} "
            f"{fixed(rates.consume_rt, 2):>14} {fixed(rates.consume_ok_tps, 2):>14} "
            f"{fixed(rates.consume_failed_tps, 2):>18} {rates.consume_failed_msgs:>25}\n"
        )
    parts.append("\n\n#User Consume Info#\n")
    parts += [f"{name:<40}: {text}\n" for name, text in sorted(info.user_consumer_info.items())]
    if info.jstack is not None:
        parts.append(f"\n\n#Consumer jstack#\n{info.jstack}")
    return "".join(parts)


def _queues_text(info: ConsumerRunningInfo) -> list[str]:
    head = f"{'#Broker Name':<32}  {'#QID':<4}"
    details = f"{head}  {'#ProcessQueueInfo':<20}\n"
    held, popped = info.mq_table, info.mq_pop_table
    parts = [f"\n\n#Consumer Offset#\n{'#Topic':<64}  {head}  {'#Consumer Offset':<20}\n"]
    parts += [f"{_place(one, 32)}  {held[one].commit_offset:<20}\n" for one in in_order(held)]
    parts.append(f"\n\n#Consumer MQ Detail#\n{'#Topic':<64}  {details}")
    parts += [f"{_place(one, 64)}  {_held_text(held[one])}\n" for one in in_order(held)]
    parts.append(f"\n\n#Consumer Pop Detail#\n{'#Topic':<32}  {details}")
    parts += [f"{_place(one, 32)}  {_popped_text(popped[one])}\n" for one in in_order(popped)]
    return parts


def _popped_text(popped: PopProcessQueueInfo) -> str:
    return (
        f"PopProcessQueueInfo [waitAckCount:{popped.wait_ack_count}, "
        f"droped:{shown(popped.droped)}, lastPopTimestamp:{popped.last_pop_timestamp}]"
    )


def _place(queue: MessageQueue, width: int) -> str:
    return f"{queue.topic:<{width}}  {queue.broker_name:<32}  {queue.queue_id:<4}"


def _sorted(subscriptions: Sequence[SubscriptionData]) -> list[SubscriptionData]:
    return sorted(subscriptions, key=lambda wanted: f"{wanted.topic}@{wanted.sub_string}")


def same_subscriptions(infos: Sequence[ConsumerRunningInfo], now_ms: int) -> bool:
    """Tell whether the consumers of a group have the same subscriptions; for young consumers always true."""
    first = infos[0]
    started = int(first.properties.get("PROP_CONSUMER_START_TIMESTAMP", now_ms))
    if not first.is_push or now_ms - started <= YOUNG_MS:
        return True
    wanted = [_wanted(info) for info in infos]
    return all(own == wanted[0] for own in wanted)


def _wanted(info: ConsumerRunningInfo) -> list[tuple[str, str, str]]:
    return [(wanted.topic, wanted.sub_string, wanted.expression_type) for wanted in _sorted(info.subscription_set)]


def queue_troubles(client_id: str, info: ConsumerRunningInfo, now_ms: int) -> str:
    """Write a line for each queue that a push consumer can't lock or does not process."""
    if not info.is_push:
        return ""
    lines: list[str] = []
    for queue in in_order(info.mq_table):
        held = info.mq_table[queue]
        if info.is_ordered and not held.locked:
            late = f"can't lock for a while, {now_ms - held.last_lock_timestamp}ms"
        elif info.is_ordered and held.droped and held.try_unlock_times > 0:
            late = f"unlock {held.try_unlock_times} times, still failed"
        elif not info.is_ordered and held.cached_msg_count and _idle_ms(held, now_ms) > BLOCKED_MS:
            late = f"can't consume for a while, maybe blocked, {_idle_ms(held, now_ms)}ms"
        else:
            continue
        lines.append(f"{client_id} {queue.text} {late}\n")
    return "".join(lines)


def _idle_ms(held: ProcessQueueInfo, now_ms: int) -> int:
    return now_ms - held.last_consume_timestamp
