"""The commands about consumer groups and clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import concurrent_order, shown, text_order
from firearrow.cli.mqadmin.runninginfo import info_text, queue_troubles, same_subscriptions
from firearrow.cli.mqadmin.topics import attribute_changes
from firearrow.client.admin.cluster import cluster_with
from firearrow.client.routing.queues import address_of
from firearrow.errors import ConfigError, FirearrowError
from firearrow.files import name_of_file
from firearrow.message.names import dlq_topic, retry_topic
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import ConsumerRunningInfo, SubscriptionGroupConfig
from firearrow.wire.codes import version_name

_RETRY_POLICIES: Final = {
    "exponentialRetryPolicy": ("ExponentialRetryPolicy", ("initial", "max", "multiplier")),
    "customizedRetryPolicy": ("CustomizedRetryPolicy", ("next",)),
}


def config_values(group: SubscriptionGroupConfig) -> dict[str, str]:
    """A group's settings in upstream's order and words; what is not set is ``null``."""
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
    """Make a group or change it, on a broker or on all masters of a cluster."""
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
    address = run.get("b")
    cluster = run.get("c")
    if address:
        await run.admin.groups.create(address, group)
        run.line(f"create subscription group to {address} success.")
    elif cluster:
        for master in text_order(await run.masters(cluster)):
            try:
                await run.admin.groups.create(master, group)
                run.line(f"create subscription group to {master} success.")
            except (OSError, FirearrowError) as error:
                run.note(error)
    else:
        run.usage()
        return
    pairs = ", ".join(f"{name}={text}" for name, text in config_values(group).items())
    run.write(f"SubscriptionGroupConfig{{{pairs}}}")


async def update_groups(run: Invocation) -> None:
    """Make or change the groups of a file."""
    data = run.file_in("f")
    groups = fastjson.decode(data, list[SubscriptionGroupConfig]) if data is not None else []
    if not groups:
        return
    done = "success, please check the result later."
    if address := run.get("b"):
        await run.admin.groups.create_all(address, groups)
        run.line(f"submit batch of group config to {address} {done}")
        return
    for master in text_order(await run.masters(run.text("c"))):
        await run.admin.groups.create_all(master, groups)
        run.line(f"submit batch of subscription group config to {master} {done}")
    run.usage()


async def set_mode(run: Invocation) -> None:
    """Have a group pull or pop a topic."""
    topic, group, shared = run.text("t"), run.text("g"), run.number("q", 0)
    mode: Literal["PULL", "POP"]
    match run.text("m"):
        case "PULL" | "POP" as mode:
            pass
        case other:
            raise ConfigError(f"-m {other!r}: allowed is PULL or POP")
    if address := run.get("b"):
        await run.admin.groups.set_mode(address, group, topic, mode, shared)
        run.line(f"set consume mode to {address} success.")
    elif cluster := run.get("c"):
        for master in text_order(await run.masters(cluster)):
            try:
                await run.admin.groups.set_mode(master, group, topic, mode, shared)
                run.line(f"set consume mode to {master} success.")
            except (OSError, FirearrowError) as error:
                run.note(error)
    else:
        run.usage()
        return
    run.write(f"topic[{topic}] group[{group}] consume mode[{mode}] popShareQueueNum[{shared}]")


async def delete_group(run: Invocation) -> None:
    """Delete a group, from a cluster with its retry and dead-letter topics."""
    group, clean = run.text("g"), run.flag("r", False)
    said = f"delete subscription group [{group}] from broker"
    if address := run.get("b"):
        await run.admin.groups.delete(address, group, clean_offset=clean)
        run.line(f"{said} [{address}] success.")
    elif cluster := run.get("c"):
        for master in text_order(await run.masters(cluster)):
            await run.admin.groups.delete(master, group, clean_offset=clean)
            run.line(f"{said} [{master}] in cluster [{cluster}] success.")
        try:
            await run.admin.delete_topic(retry_topic(group), cluster)
            await run.admin.delete_topic(dlq_topic(group), cluster)
        except (OSError, FirearrowError) as error:
            run.note(error)
    else:
        run.usage()


async def get_config(run: Invocation) -> None:
    """Show what each broker knows of a group."""
    group = run.text("g")
    info = await run.admin.cluster()
    for name in text_order(info.broker_addr_table):
        address = address_of(info.broker_addr_table[name])
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
    """List the clients of a consumer group and what they subscribe to."""
    found = await run.admin.consumers(run.text("g"), run.get("b"))
    run.line(f"{'#ClientId':<36} {'#ClientAddr':<22} {'#Language':<10} #Version")
    for client in found.connection_set:
        run.line(
            f"{client.client_id:<36} {client.client_addr:<22} {shown(client.language):<10} "
            f"{version_name(client.version)}"
        )
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
    """Show what a consumer says of itself, or write that of all into files and compare them."""
    group, stacks = run.text("g"), run.has("s")
    found = await run.admin.consumers(group, run.get("b"))
    if client_id := run.get("i"):
        info = await run.admin.running_info(group, client_id, stacks=stacks)
        run.write(info_text(info))
        return
    now = run.clock.now_ms()
    infos: dict[str, ConsumerRunningInfo] = {}
    run.line(f"{'#Index':<10} {'#ClientId':<40} {'#Version':<20} #ConsumerRunningInfoFile")
    for client in found.connection_set:
        try:
            info = await run.admin.running_info(group, client.client_id, stacks=stacks)
        except (OSError, FirearrowError) as error:
            run.note(error)
            continue
        infos[client.client_id] = info
        path = _written(str(now), client.client_id, info_text(info))
        version = version_name(client.version)
        run.line(f"{len(infos):<10} {client.client_id:<40} {version:<20} {path}")
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
