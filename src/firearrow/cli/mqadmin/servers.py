"""Commands about clusters, brokers, name servers and controllers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import fixed, moment, shown, text_order
from firearrow.client.admin.cluster import addresses_of_cluster, brokers_of, servers_in
from firearrow.clock import HOUR_MS
from firearrow.errors import ConfigError, FirearrowError
from firearrow.wire.admin_bodies import HaStatus
from firearrow.wire.bodies import MASTER_ID, ClusterInfo
from firearrow.wire.controller_bodies import ReplicaIdentity, ReplicasInfo

NO_MASTER: Final = "NO_MASTER"
TIMER_ENGINES: Final = {"R": "ROCKSDB_TIMELINE", "F": "FILE_TIME_WHEEL"}
_TOTALS: Final = (
    ("msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning"),
    ("msgGetTotalTodayMorning", "msgGetTotalYesterdayMorning"),
    ("msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
    ("msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
)  # a column is the difference of the two counters
_SLAVE: Final = "{:<32}  {:<16} {:>16} {:>16} {:>16} {:>16}"
_TOTALS_LINE: Final = "{:<16}  {:<32} {:>14} {:>14} {:>14} {:>14}"


# --- clusters ---


async def list_clusters(run: Invocation) -> None:
    """List clusters and brokers, again with an interval."""
    await run.again(_print_clusters)


async def _print_clusters(run: Invocation) -> None:
    info = await run.admin.cluster()
    only = run.get("c")
    clusters = [only] if only else text_order(info.cluster_addr_table)
    await (_print_totals if run.has("m") else _print_rates)(run, clusters, info)


async def _print_totals(run: Invocation, clusters: list[str], info: ClusterInfo) -> None:
    heads = "#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday"
    run.line(_TOTALS_LINE.format("#Cluster Name", "#Broker Name", *heads))
    for cluster, name, _, address in servers_in(info, clusters):
        numbers = [0, 0, 0, 0]
        try:
            counted = await run.admin.brokers.runtime(address)
            numbers = [int(counted[now]) - int(counted[before]) for now, before in _TOTALS]
        except (OSError, FirearrowError, KeyError, ValueError):  # as in RocketMQ, the totals are then 0
            pass
        run.line(_TOTALS_LINE.format(cluster, name, *numbers))


async def _print_rates(run: Invocation, clusters: list[str], info: ClusterInfo) -> None:
    run.line(
        f"{'#Cluster Name':<22}  {'#Broker Name':<22}  {'#BID':<4}  {'#Addr':<22} "
        f"{'#Version':<16}  {'#InTPS(LOAD)':>16}  {'#OutTPS(LOAD)':>30}  "
        f"{'#Timer(Progress)':<22}  {'#PCWait(ms)':<11}  {'#Hour':<12}  {'#SPACE':<8}  "
        f"{'#ACTIVATED':<10}"
    )
    for cluster, name, number, address in servers_in(info, clusters):
        counted: dict[str, str] = {}
        with run.noting():
            counted = await run.admin.brokers.runtime(address)
        run.line(f"{cluster:<22}  {name:<22}  {number:<4}  {address:<22} " + _rates(counted, run.clock.now_ms()))


def _rates(counted: Mapping[str, str], now_ms: int) -> str:
    missing = "null" if counted else ""

    def value(name: str, otherwise: str = missing) -> str:
        return counted.get(name, otherwise)

    rate_in = fixed(_first(value("putTps")), 2)
    rate_out = fixed(_first(value("getTransferredTps")), 2)
    send, pull = (
        f"{value(f'{kind}ThreadPoolQueueSize')},{value(f'{kind}ThreadPoolQueueHeadWaitTimeMills')}ms"
        for kind in ("send", "pull")
    )
    unknown = "N" if counted else ""
    ack = f"{value('ackThreadPoolQueueSize', unknown)},{value('ackThreadPoolQueueHeadWaitTimeMills', unknown)}ms"
    earliest, space = counted.get("earliestMessageTimeStamp"), counted.get("commitLogDiskRatio")
    hours = (now_ms - int(earliest)) / HOUR_MS if earliest else 0.0
    return (
        f"{value('brokerVersionDesc'):<16}  {f'{rate_in:>9}({send})':>16}  "
        f"{f'{rate_out:>9}({pull}|{ack})':>30}  {_timer(counted):<22}  "
        f"{value('pageCacheLockTimeMills'):>11}  {fixed(hours, 2):<12}  "
        f"{fixed(float(space) if space else 0.0, 4):<8}  "
        f"{shown(counted.get('brokerActive', '').lower() == 'true'):>10}"
    )


def _first(text: str) -> float:
    """Read the first of several rates."""
    words = text.split()
    return float(words[0]) if words and words[0] != "null" else 0.0


def _timer(counted: Mapping[str, str]) -> str:
    """Describe timed messages: the lag in reading and in the log, the count of pending ones, the rates."""
    behind, offset, waiting, rate_in, rate_out = (
        counted.get(f"timer{name}", "0")
        for name in ("ReadBehind", "OffsetBehind", "CongestNum", "EnqueueTps", "DequeueTps")
    )
    rates = f"{fixed(float(rate_in), 1)}, {fixed(float(rate_out), 1)}"
    return f"{behind}-{offset}({fixed(int(waiting) / 10_000, 1)}w, {rates})"


# --- brokers ---


async def broker_status(run: Invocation) -> None:
    """Show the counters of a broker, or of all brokers of a cluster."""
    if address := run.get("b"):
        for name, text in sorted((await run.admin.brokers.runtime(address)).items()):
            run.line(f"{name:<32}: {text}")
        return
    for one in await run.all_brokers(run.text("c")):
        counted: dict[str, str] = {}
        with run.noting():
            counted = await run.admin.brokers.runtime(one)
        for name, text in sorted(counted.items()):
            run.line(f"{one:<24} {name:<32}: {text}")


async def update_broker_config(run: Invocation) -> None:
    """Change a key of a broker, of a cluster's masters or of all its brokers."""
    changes = {run.text("k"): run.text("v")}

    async def change(address: str) -> None:
        await run.admin.brokers.update_config(address, changes)

    await run.change_brokers(change, "update broker config success, {}", with_slaves=run.has("a"))


async def get_broker_config(run: Invocation) -> None:
    """Show the configuration of a broker, or of all masters and slaves of a cluster."""
    if address := run.get("b"):
        await _print_config(run, f"============{address}============", address)
        return
    for master, slaves in (await masters_with_slaves(run, run.text("c"))).items():
        await _print_config(run, f"============Master: {master}============", master)
        for slave in slaves:
            await _print_config(run, f"============My Master: {master}=====Slave: {slave}============", slave)


async def masters_with_slaves(run: Invocation, cluster: str) -> dict[str, list[str]]:
    """Give the slaves of each master of a cluster; slaves without a master are under one key."""
    info = await run.admin.cluster()
    found: dict[str, list[str]] = {}
    if cluster not in info.cluster_addr_table:
        await run.masters(cluster)  # prints that the cluster is unknown
    for name in text_order(info.cluster_addr_table.get(cluster, [])):
        broker = info.broker_addr_table.get(name)
        if broker is not None:
            slaves = [one for number, one in broker.broker_addrs.items() if number != MASTER_ID]
            master = broker.broker_addrs.get(MASTER_ID, NO_MASTER)
            found.setdefault(master, []).extend(slaves)
    return {master: found[master] for master in text_order(found)}


async def _print_config(run: Invocation, head: str, address: str) -> None:
    run.line(head)
    if address != NO_MASTER:
        run.keys(await run.admin.brokers.config(address))
        run.line()


async def clean_queues(run: Invocation) -> None:
    """Delete queue files whose messages are deleted."""
    await _clean(run, run.admin.brokers.clean_queues)


async def clean_log(run: Invocation) -> None:
    """Delete expired log files."""
    await _clean(run, run.admin.brokers.clean_log)


async def clean_topics(run: Invocation) -> None:
    """Delete queues of deleted topics."""
    await _clean(run, run.admin.brokers.clean_topics)


async def _clean(run: Invocation, clean: Callable[[str], Awaitable[None]]) -> None:
    """Clean one broker, the brokers of a cluster or all; print ``false`` if there is none."""
    if address := run.get("b"):
        addresses = [address]
    else:
        info = await run.admin.cluster()
        clusters = [run.text("c")] if run.get("c") else text_order(info.cluster_addr_table)
        known = [cluster for cluster in clusters if cluster in info.cluster_addr_table]
        addresses = [one for cluster in known for one in addresses_of_cluster(info, cluster)]
    for one in addresses:
        await clean(one)
    (run.write if addresses else run.fail)("success" if addresses else "false")


async def reset_flush_offset(run: Invocation) -> None:
    """Tell a slave its master's flushed offset."""
    offset = run.number("o")
    await run.admin.brokers.set_flush_offset(run.text("b"), offset)
    run.line(f"reset master flush offset to {offset} success")


async def set_timer_engine(run: Invocation) -> None:
    """Choose the storage of timed messages."""
    engine = run.text("e")
    if engine not in TIMER_ENGINES:
        run.line("switchTimerEngine engineType must be R or F")
        return

    async def change(address: str) -> None:
        await run.admin.brokers.set_timer_engine(address, engine)

    await run.change_brokers(change, f"switchTimerEngine to {TIMER_ENGINES[engine]} success, {{}}")


async def ha_status(run: Invocation) -> None:
    """Show the progress of replication, again with an interval."""
    await run.again(_print_replication)


async def _print_replication(run: Invocation) -> None:
    if address := run.get("b"):
        _print_ha(run, address, await run.admin.brokers.ha_status(address))
    elif cluster := run.get("c"):
        for master in await run.masters(cluster):
            _print_ha(run, master, await run.admin.brokers.ha_status(master))
    else:
        run.usage()


def _print_ha(run: Invocation, address: str, status: HaStatus) -> None:
    if not status.master:
        client = status.ha_client_runtime_info
        run.write(
            f"\n#MasterAddr\t{shown(client.master_addr)}\n"
            f"#CommitLogMaxOffset\t{client.max_offset}\n"
            f"#TransferSpeed(KB/s)\t{fixed(client.transferred_byte_in_second / 1024, 2)}\n"
            f"#LastReadTime\t{moment(client.last_read_timestamp)}\n"
            f"#LastWriteTime\t{moment(client.last_write_timestamp)}\n"
            f"#MasterFlushOffset\t{client.master_flush_offset}\n"
        )
        return
    run.write(
        f"\n#MasterAddr\t{address}\n"
        f"#MasterCommitLogMaxOffset\t{status.master_commit_log_max_offset}\n"
        f"#SlaveNum\t{len(status.ha_connection_info)}\n"
        f"#InSyncSlaveNum\t{status.in_sync_slave_nums}\n"
    )
    heads = "#SlaveAddr", "#SlaveAckOffset", "#Diff", "#TransferSpeed(KB/s)", "#Status", "#TransferFromWhere"
    run.line(_SLAVE.format(*heads))
    for one in status.ha_connection_info:
        speed = fixed(one.transferred_byte_in_second / 1024, 2)
        state = "OK" if one.in_sync else "Fall Behind"
        place = shown(one.addr), one.slave_ack_offset, one.diff
        run.line(_SLAVE.format(*place, speed, state, one.transfer_from_where))


# --- name servers ---


async def update_kv(run: Invocation) -> None:
    """Set a key of the name servers."""
    await run.admin.name_servers.put(run.text("s"), run.text("k"), run.text("v"))
    run.line("create or update kv config to namespace success.")


async def delete_kv(run: Invocation) -> None:
    """Delete a key of the name servers."""
    await run.admin.name_servers.delete(run.text("s"), run.text("k"))
    run.line("delete kv config from namespace success.")


async def get_namesrv_config(run: Invocation) -> None:
    """Show the configuration of each name server."""
    await _print_configs(run, run.admin.name_servers.addresses, run.admin.name_servers.config)


async def _print_configs(
    run: Invocation, addresses: Iterable[str], config_of: Callable[[str], Awaitable[dict[str, str]]]
) -> None:
    configs = {address: await config_of(address) for address in addresses}
    for address in text_order(configs):
        run.line(f"============{address}============")
        run.keys(configs[address])


async def update_namesrv_config(run: Invocation) -> None:
    """Change a key of each name server."""
    key, value = run.text("k"), run.text("v")
    servers = run.admin.name_servers
    for address in servers.addresses:
        await servers.update_config(address, {key: value})
    given = f"[{', '.join(servers.addresses)}]" if run.has("n") else ""
    run.line(f"update name server config success!{given}\n{key} : {value}")


async def wipe_write_perm(run: Invocation) -> None:
    """Take the write permission from a broker's routes."""
    await _change_perm(run, "wipe", run.admin.name_servers.wipe_write_perm)


async def add_write_perm(run: Invocation) -> None:
    """Give the write permission back to a broker's routes."""
    await _change_perm(run, "add", run.admin.name_servers.add_write_perm)


async def _change_perm(run: Invocation, verb: str, change: Callable[[str, str], Awaitable[int]]) -> None:
    broker = run.text("b")
    for address in run.admin.name_servers.addresses:
        said = f"{verb} write perm of broker[{broker}] in name server[{address}]"
        try:
            run.line(f"{said} OK, {await change(address, broker)}")
        except (OSError, FirearrowError) as error:
            run.line(f"{said} Failed")
            run.note(error)


# --- controllers ---


async def controller_group(run: Invocation) -> None:
    """Show the leader and the members of a group of controllers."""
    found = await run.admin.controllers.group(run.text("a"))
    run.line(f"\n#ControllerGroup\t{found.name}")
    run.line(f"#ControllerLeaderId\t{shown(found.leader)}")
    run.write(f"#ControllerLeaderAddress\t{shown(found.leader_address)}")
    for peer in found.peers:
        run.write(f"\n#Peer:\t{peer}")
    run.line()


async def in_sync(run: Invocation) -> None:
    """Show the replicas in sync of a broker name or of a cluster's names, again with an interval."""
    await run.again(_print_in_sync)


async def _print_in_sync(run: Invocation) -> None:
    if broker := run.get("b"):
        brokers = [broker]
    elif cluster := run.get("c"):
        brokers = text_order(brokers_of(await run.admin.cluster(), cluster))
    else:
        run.usage()
        return
    controller, _, _ = run.text("a").partition(";")
    table = (await run.admin.controllers.replicas(controller, brokers)).replicas_info_table
    for name in text_order(table):
        _print_replicas(run, name, table[name])


def _print_replicas(run: Invocation, name: str, found: ReplicasInfo) -> None:
    run.write(
        f"\n#brokerName\t{name}\n#MasterBrokerId\t{shown(found.master_broker_id)}\n"
        f"#MasterAddr\t{shown(found.master_address)}\n#MasterEpoch\t{found.master_epoch}\n"
        f"#SyncStateSetEpoch\t{found.sync_state_set_epoch}\n"
        f"#SyncStateSetNums\t{len(found.in_sync_replicas)}\n"
    )
    for one in found.in_sync_replicas:
        run.line(f"\nInSyncReplica:\t{_identity(one)}")
    for one in found.not_in_sync_replicas:
        run.line(f"\nNotInSyncReplica:\t{_identity(one)}")


def _identity(one: ReplicaIdentity) -> str:
    return (
        f"ReplicaIdentity{{brokerName='{one.broker_name}', brokerId={one.broker_id}, "
        f"brokerAddress='{one.broker_address}', alive={shown(one.alive)}}}"
    )


async def epochs(run: Invocation) -> None:
    """Show the masters that wrote the log of a broker, or of a cluster's brokers, again with an interval."""
    await run.again(_print_epochs)


async def _print_epochs(run: Invocation) -> None:
    if name := run.get("b"):
        broker = (await run.admin.cluster()).broker_addr_table.get(name)
        addresses = text_order(broker.broker_addrs.values()) if broker else []
    else:
        addresses = await run.all_brokers(run.text("c"))
    for address in addresses:
        cache = await run.admin.controllers.epochs(address)
        run.write(
            f"\n#clusterName\t{cache.cluster_name}\n#brokerName\t{cache.broker_name}\n"
            f"#brokerAddr\t{address}\n#brokerId\t{cache.broker_id}"
        )
        for number, one in enumerate(cache.epoch_list, 1):
            end = cache.max_offset if number == len(cache.epoch_list) else one.end_offset
            run.write(f"\n#Epoch: EpochEntry{{epoch={one.epoch}, startOffset={one.start_offset}, endOffset={end}}}")
        run.line()


async def elect(run: Invocation) -> None:
    """Make a broker the master of its name."""
    cluster, name, broker_id = run.text("c"), run.text("bn"), run.number("b")
    elected = await run.admin.controllers.elect(run.text("a"), cluster, name, broker_id)
    run.write(
        f"\n#ClusterName\t{cluster}\n#BrokerName\t{name}\n#BrokerMasterAddr\t{elected.address}\n"
        f"#MasterEpoch\t{elected.epoch}\n#SyncStateSetEpoch\t{elected.in_sync_epoch}\n"
    )


async def forget(run: Invocation) -> None:
    """Remove brokers from the controllers' state."""
    cluster, name, living = run.get("c"), run.text("bn"), run.has("l")
    if not living and not cluster:
        raise ConfigError("option -c is missing; only with -l it is optional")
    await run.admin.controllers.forget(run.text("a"), cluster, name, run.get("b"), living=living)
    run.line(f"clear broker {name} metadata from controller success! ")


async def get_controller_config(run: Invocation) -> None:
    """Show the configuration of each controller."""
    await _print_configs(run, _controllers(run), run.admin.controllers.config)


async def update_controller_config(run: Invocation) -> None:
    """Change a key of each controller."""
    key, value = run.text("k"), run.text("v")
    addresses = _controllers(run)
    for address in addresses:
        await run.admin.controllers.update_config(address, {key: value})
    run.line(f"update controller config success!{shown(addresses)}\n{key} : {value}")


def _controllers(run: Invocation) -> list[str]:
    return [address for address in run.text("a").split(";") if address]
