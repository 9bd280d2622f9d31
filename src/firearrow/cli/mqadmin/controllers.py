"""The commands about controllers, and about the masters that brokers have had."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import concurrent_order, shown, text_order
from firearrow.client.admin.cluster import brokers_of
from firearrow.errors import ConfigError
from firearrow.wire.controller_bodies import Replica, Replicas


async def group(run: Invocation) -> None:
    """Show who leads the controllers."""
    found = await run.admin.controllers.group(run.text("a"))
    run.line(f"\n#ControllerGroup\t{found.name}")
    run.line(f"#ControllerLeaderId\t{shown(found.leader)}")
    run.write(f"#ControllerLeaderAddress\t{shown(found.leader_address)}")
    for peer in found.peers:
        run.write(f"\n#Peer:\t{peer}")
    run.line()


async def in_sync(run: Invocation) -> None:
    """Show who has all messages of a broker name or of a cluster's, again with an interval."""
    await _again(run, _print_in_sync)


async def _again(run: Invocation, show: Callable[[Invocation], Awaitable[None]]) -> None:
    while True:
        await show(run)
        if not run.has("i"):
            return
        await run.pause(run.number("i", 3))


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


def _print_replicas(run: Invocation, name: str, found: Replicas) -> None:
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


def _identity(one: Replica) -> str:
    return (
        f"ReplicaIdentity{{brokerName='{one.broker_name}', brokerId={one.broker_id}, "
        f"brokerAddress='{one.broker_address}', alive={shown(one.alive)}}}"
    )


async def epochs(run: Invocation) -> None:
    """Show which masters have written a broker's log, or those of a cluster."""
    await _again(run, _print_epochs)


async def _print_epochs(run: Invocation) -> None:
    if name := run.get("b"):
        broker = (await run.admin.cluster()).broker_addr_table.get(name)
        addresses = list(broker.broker_addrs.values()) if broker else []
    else:
        addresses = await run.all_brokers(run.text("c"))
    for address in text_order(addresses):
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
    """Have controllers forget brokers that are gone."""
    cluster, name, living = run.get("c"), run.text("bn"), run.has("l")
    if not living and not cluster:
        raise ConfigError("-c is needed but with -l")
    await run.admin.controllers.forget(run.text("a"), cluster, name, run.get("b"), living=living)
    run.line(f"clear broker {name} metadata from controller success! ")


async def get_config(run: Invocation) -> None:
    """Show the configuration of each controller."""
    controllers = run.admin.controllers
    configs = {address: await controllers.config(address) for address in _addresses(run)}
    for address in text_order(configs):
        run.line(f"============{address}============")
        for key in concurrent_order(configs[address]):
            run.line(f"{key:<50}=  {configs[address][key]}")


async def update_config(run: Invocation) -> None:
    """Change a key of each controller."""
    key, value = run.text("k"), run.text("v")
    addresses = _addresses(run)
    for address in addresses:
        await run.admin.controllers.update_config(address, {key: value})
    run.line(f"update controller config success!{shown(addresses)}\n{key} : {value}")


def _addresses(run: Invocation) -> list[str]:
    return [address for address in run.text("a").split(";") if address]
