"""`firearrow cluster`: list clusters, drain brokers, and restart them one by one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Final

from firearrow.cli import INTERRUPTED, INTERRUPTED_LINE
from firearrow.cli.cluster.brokers import rate_of, runtime_or_none
from firearrow.cli.cluster.draining import (
    LOOK_SECONDS,
    USUAL,
    DrainOptions,
    Left,
    boot,
    check_others,
    drain,
    empty,
    fill,
    filled_if_it_fails,
    is_drained,
    one_master,
)
from firearrow.cli.cluster.masters import PREVIEW, Apply, masters_in, named
from firearrow.cli.cluster.options import ANY, Broker, ClusterOptions
from firearrow.cli.cluster.undo import FromFile, Undo, circumstances, read_undo, write_undo
from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import FAILED
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table
from firearrow.cli.parameters import valued
from firearrow.cli.serving.brokerprocesses import read_control
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker, servers_in
from firearrow.errors import ConfigError
from firearrow.wire.bodies import MASTER_ID

UndrainUndoFile = Annotated[
    Path | None, valued("FILE", "undo file to write, if the broker was drained (default: none; `drain` goes back)")
]

COLUMNS: Final = ("cluster", "brokers", "masters", "slaves", "topics", "putRate", "getRate")

NOT_RESTARTED: Final = "not restarted, in use"
COMES_BACK: Final = "ended, and started again by `firearrow serve`; not seen in use yet"
RESTARTED: Final = "restarted"
DRAINED: Final = ("broker", "address", "state", "left", "seconds")
START_SECONDS_MAX: Final = 600.0
"""Longest time until a restarted broker must be registered."""

app: Final = CommandGroup()


@app.command("list")
async def list_clusters(*, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """List clusters, with the throughput of their masters."""
    async with cluster.admin() as admin:
        info = await admin.cluster()
        rows: list[list[Cell]] = []
        for name in sorted(info.cluster_addr_table):
            servers = servers_in(info, [name])
            masters = [server for server in servers if server.number == MASTER_ID]
            facts = await concurrently(masters, lambda master: runtime_or_none(admin, master))
            topics = await admin.topics.names_in_cluster(name)
            rows.append(
                [
                    name,
                    len({server.broker for server in servers}),
                    len(masters),
                    len(servers) - len(masters),
                    len(topics),
                    _sum(facts, "putTps"),
                    _sum(facts, "getTransferredTps"),
                ]
            )
    output.show(Table("Clusters", COLUMNS, rows))


def _sum(facts: Iterable[Mapping[str, str] | None], name: str) -> float:
    return sum(rate_of(found, name) or 0.0 for found in facts if found is not None)


@app.command("drain")
async def drain_broker(
    broker: Broker, /, *, how: DrainOptions = USUAL, cluster: ClusterOptions = ANY, output: Output = PLAIN
) -> int:
    """Stop sends to a broker, and wait until consumers have read its messages."""
    time = asyncio.get_running_loop().time
    with _interrupts_taken():
        async with cluster.admin() as admin:
            info = await admin.cluster()
            master = one_master(named(info, broker))
            check_others(info, master)
            began = time()
            note = f"`firearrow cluster undrain {master.broker}` has clients send to it again."
            with _told_if_it_fails({master: f"out of use, and perhaps not drained. {note}"}):
                left = await _drained(admin, master, how)
    state = "drained" if left.nothing else "not drained"
    row: list[Cell] = [master.broker, master.address, state, str(left), time() - began]
    output.show(Table("Drained", DRAINED, [row], note=note))
    return 0 if left.nothing else FAILED


@app.command("undrain")
async def undrain_broker(
    broker: Broker, /, *, undo_file: UndrainUndoFile = None, cluster: ClusterOptions = ANY, output: Output = PLAIN
) -> None:
    """Let clients send to a drained broker again."""
    async with cluster.admin() as admin:
        master = one_master(named(await admin.cluster(), broker))
        if undo_file is not None and await is_drained(admin, master.broker):
            write_undo(undo_file, master.broker, DrainUndo(broker=master.broker, **circumstances(admin)))
        await fill(admin, master.broker)
    output.show(Table("Drained", DRAINED[:3], [[master.broker, master.address, "in use"]]))


class DrainUndo(Undo, frozen=True, kw_only=True, tag="cluster"):
    """The file: the broker that was out of use."""

    broker: str


@app.command("undo")
async def undo(
    file: FromFile, /, *, apply: Apply = False, cluster: ClusterOptions = ANY, output: Output = PLAIN
) -> None:
    """Stop sends to a broker again that `undrain` has given back, without a wait for its consumers."""
    undone = read_undo(file, DrainUndo)
    async with cluster.admin() as admin:
        info = await admin.cluster()
        master = one_master(named(info, undone.broker))
        check_others(info, master)
        if apply:
            await empty(admin, master.broker)
    row: list[Cell] = [master.broker, master.address, "out of use" if apply else "would be out of use"]
    output.show(Table("Drained", DRAINED[:3], [row], note="" if apply else PREVIEW))


@app.command("restart")
async def restart_brokers(
    *brokers: Broker, how: DrainOptions = USUAL, cluster: ClusterOptions = ANY, output: Output = PLAIN
) -> int:
    """Restart brokers that `serve --brokers` runs on this machine: one by one, drained first.

    The next broker follows when the last one is registered again. Without a name, all masters are restarted.
    """
    with _interrupts_taken():
        async with cluster.admin() as admin:
            info = await admin.cluster()
            chosen = [it for name in brokers for it in named(info, name)] or masters_in(info)
            for server in chosen:
                await _checked_pid(admin, server)  # all or none
                if server.number == MASTER_ID:
                    check_others(info, server)
            with _told_if_it_fails(dict.fromkeys(chosen, NOT_RESTARTED)) as states:
                rows = [await _restarted(admin, server, how, states) for server in chosen]
    output.show(Table("Restarted", DRAINED, rows))
    return 0


async def _drained(admin: Admin, master: RegisteredBroker, how: DrainOptions) -> Left:
    _say(f"{master.broker}: taken out of use")
    return await drain(admin, master, how, _say)


async def _restarted(
    admin: Admin, server: RegisteredBroker, how: DrainOptions, states: dict[RegisteredBroker, str]
) -> list[Cell]:
    """Restart one broker. Raises ConfigError if no supervisor would start it again."""
    time = asyncio.get_running_loop().time
    began, left = time(), ""
    is_master = server.number == MASTER_ID
    async with filled_if_it_fails(admin, server.broker) if is_master else nullcontext():
        if is_master:
            left = str(await _drained(admin, server, how))
        before, pid = await boot(admin, server), await _checked_pid(admin, server)
        _say(f"{server.broker}: process {pid} is restarted")
        os.kill(pid, signal.SIGTERM)
        states[server] = COMES_BACK
    try:
        async with asyncio.timeout(START_SECONDS_MAX):
            while True:
                if await _is_again(admin, server, before, pid):
                    break
                await asyncio.sleep(LOOK_SECONDS / 4)
    except TimeoutError:
        raise ConfigError(
            f"{server.broker} is not registered again after {START_SECONDS_MAX:.0f} s: see its log"
        ) from None
    states[server] = RESTARTED
    seconds = time() - began
    _say(f"{server.broker}: in use again after {seconds:.1f} s")
    return [server.broker, server.address, RESTARTED, left, seconds]


async def _is_again(admin: Admin, server: RegisteredBroker, before: str | None, pid: int) -> bool:
    """Tell whether a broker is registered again, as a new process."""
    if await boot(admin, server) in (None, before):
        return False
    return await _pid(admin, server) not in (0, pid)


async def _checked_pid(admin: Admin, server: RegisteredBroker) -> int:
    found = await _pid(admin, server)
    if not found:
        raise ConfigError(
            f"{server.broker} ({server.address}) is not run by `firearrow serve --brokers` on this "
            "machine: nothing would start it again"
        )
    return found


async def _pid(admin: Admin, server: RegisteredBroker) -> int:
    """Process id of a broker that a supervisor on this machine restarts; 0 without one."""
    config = await admin.brokers.config(server.address)
    control = read_control(Path(config.get("storePathRootDir", "")).parent)
    there = {} if control is None else {it.address: it.pid for it in control.brokers.values()}
    return there.get(server.address, 0)


def _say(what: str) -> None:
    print(f"firearrow: {what}", file=sys.stderr, flush=True)


@contextmanager
def _told_if_it_fails(states: dict[RegisteredBroker, str]) -> Iterator[dict[RegisteredBroker, str]]:
    """Print the state of each broker if a block fails."""
    try:
        yield states
    except BaseException:
        for server, state in states.items():
            _say(f"{server.broker} ({server.address}): {state}")
        raise


@contextmanager
def _interrupts_taken() -> Iterator[None]:
    """Let Ctrl-C cancel a block, so that its cleanup gives a drained broker back, or at least prints its state.

    A second Ctrl-C does not interrupt the cleanup.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "a command runs in a task"

    def interrupt() -> None:
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        task.cancel()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    except asyncio.CancelledError:
        sys.stderr.write(INTERRUPTED_LINE)
        raise SystemExit(INTERRUPTED) from None
    finally:
        loop.remove_signal_handler(signal.SIGINT)
