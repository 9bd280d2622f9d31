"""The commands about brokers as a whole."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import concurrent_order, fixed, moment, shown, text_order
from firearrow.client.admin.cluster import addresses_of_cluster
from firearrow.client.routing.queues import MASTER
from firearrow.errors import FirearrowError
from firearrow.wire.admin_bodies import HaStatus

NO_MASTER: Final = "NO_MASTER"
TIMER_ENGINES: Final = {"R": "ROCKSDB_TIMELINE", "F": "FILE_TIME_WHEEL"}


async def broker_status(run: Invocation) -> None:
    """Show what a broker counts, or all of a cluster."""
    if address := run.get("b"):
        for name, text in sorted((await run.admin.brokers.runtime(address)).items()):
            run.line(f"{name:<32}: {text}")
        return
    for one in text_order(await run.all_brokers(run.text("c"))):
        try:
            counted = await run.admin.brokers.runtime(one)
        except (OSError, FirearrowError) as error:
            run.note(error)
            continue
        for name, text in sorted(counted.items()):
            run.line(f"{one:<24} {name:<32}: {text}")


async def update_config(run: Invocation) -> None:
    """Change a key of a broker, of a cluster's masters or of all its brokers."""
    changes = {run.text("k"): run.text("v")}
    if address := run.get("b"):
        await run.admin.brokers.update_config(address, changes)
        run.line(f"update broker config success, {address}")
    elif cluster := run.get("c"):
        found = await (run.all_brokers(cluster) if run.has("a") else run.masters(cluster))
        for one in text_order(found):
            try:
                await run.admin.brokers.update_config(one, changes)
                run.line(f"update broker config success, {one}")
            except (OSError, FirearrowError) as error:
                run.note(error)
    else:
        run.usage()


async def get_config(run: Invocation) -> None:
    """Show the configuration of a broker, or of all masters and slaves of a cluster."""
    if address := run.get("b"):
        await _print_config(run, f"============{address}============", address)
        return
    for master, slaves in (await masters_with_slaves(run, run.text("c"))).items():
        await _print_config(run, f"============Master: {master}============", master)
        for slave in slaves:
            head = f"============My Master: {master}=====Slave: {slave}============"
            await _print_config(run, head, slave)


async def masters_with_slaves(run: Invocation, cluster: str) -> dict[str, list[str]]:
    """The slaves of each master of a cluster; those of none are together."""
    info = await run.admin.cluster()
    found: dict[str, list[str]] = {}
    if cluster not in info.cluster_addr_table:
        await run.masters(cluster)  # says so
    for name in text_order(info.cluster_addr_table.get(cluster, [])):
        broker = info.broker_addr_table.get(name)
        if broker is not None:
            slaves = [one for number, one in broker.broker_addrs.items() if number != MASTER]
            master = broker.broker_addrs.get(MASTER, NO_MASTER)
            found.setdefault(master, []).extend(slaves)
    return {master: found[master] for master in text_order(found)}


async def _print_config(run: Invocation, head: str, address: str) -> None:
    run.line(head)
    if address == NO_MASTER:
        return
    config = await run.admin.brokers.config(address)
    for key in concurrent_order(config):
        run.line(f"{key:<50}=  {config[key]}")
    run.line()


async def clean_queues(run: Invocation) -> None:
    """Delete queue files whose messages are gone."""
    await _clean(run, run.admin.brokers.clean_queues)


async def clean_log(run: Invocation) -> None:
    """Delete log files that are past their time."""
    await _clean(run, run.admin.brokers.clean_log)


async def clean_topics(run: Invocation) -> None:
    """Delete queues of topics that are no more."""
    await _clean(run, run.admin.brokers.clean_topics)


async def _clean(run: Invocation, clean: Callable[[str], Awaitable[None]]) -> None:
    """Clean one broker, those of a cluster or all; ``false`` if there is none."""
    if address := run.get("b"):
        addresses = [address]
    else:
        info = await run.admin.cluster()
        clusters = [run.text("c")] if run.get("c") else text_order(info.cluster_addr_table)
        addresses = [
            one
            for cluster in clusters
            if cluster in info.cluster_addr_table
            for one in addresses_of_cluster(info, cluster)
        ]
    for one in addresses:
        await clean(one)
    run.write("success" if addresses else "false")


async def reset_flush_offset(run: Invocation) -> None:
    """Tell a slave how far its master has flushed."""
    offset = run.number("o")
    await run.admin.brokers.set_flush_offset(run.text("b"), offset)
    run.line(f"reset master flush offset to {offset} success")


async def set_timer_engine(run: Invocation) -> None:
    """Choose what keeps timed messages."""
    engine = run.text("e")
    if engine not in TIMER_ENGINES:
        run.line("switchTimerEngine engineType must be R or F")
        return
    said = f"switchTimerEngine to {TIMER_ENGINES[engine]} success,"
    if address := run.get("b"):
        await run.admin.brokers.set_timer_engine(address, engine)
        run.line(f"{said} {address}")
        return
    for master in text_order(await run.masters(run.text("c"))):
        try:
            await run.admin.brokers.set_timer_engine(master, engine)
            run.line(f"{said} {master}")
        except (OSError, FirearrowError) as error:
            run.note(error)


async def ha_status(run: Invocation) -> None:
    """Show how far replication is, again and again with an interval."""
    while True:
        if address := run.get("b"):
            _print_ha(run, address, await run.admin.brokers.ha_status(address))
        elif cluster := run.get("c"):
            for master in text_order(await run.masters(cluster)):
                _print_ha(run, master, await run.admin.brokers.ha_status(master))
        else:
            run.usage()
        if not run.has("i"):
            return
        await run.pause(run.number("i", 3))


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
        f"{'#SlaveAddr':<32}  {'#SlaveAckOffset':<16} {'#Diff':>16} "
        f"{'#TransferSpeed(KB/s)':>16} {'#Status':>16} {'#TransferFromWhere':>16}\n"
    )
    for one in status.ha_connection_info:
        speed = fixed(one.transferred_byte_in_second / 1024, 2)
        state = "OK" if one.in_sync else "Fall Behind"
        run.line(
            f"{shown(one.addr):<32}  {one.slave_ack_offset:<16} {one.diff:>16} {speed:>16} "
            f"{state:>16} {one.transfer_from_where:>16}"
        )
