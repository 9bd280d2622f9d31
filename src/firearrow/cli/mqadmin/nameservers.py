"""The commands about name servers: keys, configuration, and who may be sent to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import concurrent_order, text_order
from firearrow.errors import FirearrowError


async def update_kv(run: Invocation) -> None:
    """Set a key."""
    await run.admin.name_servers.put(run.text("s"), run.text("k"), run.text("v"))
    run.line("create or update kv config to namespace success.")


async def delete_kv(run: Invocation) -> None:
    """Delete a key."""
    await run.admin.name_servers.delete(run.text("s"), run.text("k"))
    run.line("delete kv config from namespace success.")


async def get_config(run: Invocation) -> None:
    """Show the configuration of each name server."""
    servers = run.admin.name_servers
    configs = {address: await servers.config(address) for address in servers.addresses}
    for address in text_order(configs):
        run.line(f"============{address}============")
        for key in concurrent_order(configs[address]):
            run.line(f"{key:<50}=  {configs[address][key]}")


async def update_config(run: Invocation) -> None:
    """Change a key of each name server."""
    key, value = run.text("k"), run.text("v")
    servers = run.admin.name_servers
    for address in servers.addresses:
        await servers.update_config(address, {key: value})
    given = f"[{', '.join(servers.addresses)}]" if run.has("n") else ""
    run.line(f"update name server config success!{given}\n{key} : {value}")


async def wipe_write_perm(run: Invocation) -> None:
    """Have nobody send to a broker."""
    await _change_perm(run, "wipe", run.admin.name_servers.wipe_write_perm)


async def add_write_perm(run: Invocation) -> None:
    """Have a broker sent to again."""
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
