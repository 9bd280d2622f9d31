"""`firearrow replica`: replicas of each broker and their lag, controllers, and the election of a master."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from firearrow.cli.cluster.masters import PREVIEW, Apply, OfCluster
from firearrow.cli.cluster.options import ANY, ClusterOptions
from firearrow.cli.cluster.undo import FromFile, Undo, UndoFile, circumstances, read_undo, refusable, write_undo
from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import FAILED, NothingFound, sentence
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table, as_moment
from firearrow.cli.parameters import Parameter, WrongOptions, valued
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker, servers_in
from firearrow.client.diagnosis.clusterfacts import BrokerFacts
from firearrow.errors import FirearrowError
from firearrow.wire.admin_bodies import HaStatus
from firearrow.wire.bodies import MASTER_ID
from firearrow.wire.controller_bodies import ReplicaIdentity, ReplicasInfo

LIST: Final = (
    "broker", "brokerNumber", "role", "address", "state", "endOffset", "behindBytes", "behindSeconds", "isInSync",
    "bytesPerSecond", "heardAt", "note",
)  # fmt: skip
SETS: Final = ("broker", "master", "masterEpoch", "setEpoch", "inSync", "notInSync", "state")
CONTROLLERS: Final = ("controller", "state", "controllerGroup", "role", "leader", "peers", "reason")
ELECT: Final = ("broker", "before", "after", "epoch", "state")
NOT_IN_SYNC: Final = "not in sync"
NOT_ALIVE: Final = "not alive"
NONE: Final = "No broker names controllers: a master that fails is replaced by nobody."

OfController = Annotated[
    str | None, valued("HOST:PORT", "a controller (default: those that brokers name)", name="--controller")
]

app: Final = CommandGroup()


class _Answer(NamedTuple):
    """Answer of a broker about its replication, and its counters; ``reason`` says why they are missing."""

    server: RegisteredBroker
    status: HaStatus | None = None
    counted: Mapping[str, str] = {}
    reason: str = ""

    @property
    def is_master(self) -> bool:
        """True for a master by its number."""
        return self.server.number == MASTER_ID

    @property
    def end(self) -> int | None:
        """End of its log, a physical offset."""
        if self.status is None:
            return None
        if self.is_master:
            return self.status.master_commit_log_max_offset
        return self.status.ha_client_runtime_info.max_offset

    @property
    def bytes_per_second(self) -> float:
        """Bytes that a master stores in a second."""
        facts = BrokerFacts(*self.server, self.counted)
        return (facts.number("putTps") or 0.0) * (facts.number("putMessageAverageSize") or 0.0)


@app.command("list")
async def list_replicas(*, of_cluster: OfCluster = None, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """List masters and slaves, with the lag of each slave in bytes and in time."""
    async with cluster.admin() as admin:
        output.show((await replication(admin, of_cluster)).replicas)


class Replication(NamedTuple):
    """Tables about the replication of a cluster."""

    replicas: Table
    sets: Table
    controllers: Table


async def replication(admin: Admin, of_cluster: str | None = None) -> Replication:
    """Ask brokers and controllers, each server once about a subject."""
    servers = servers_in(await admin.cluster(), None if of_cluster is None else [of_cluster])
    answers = await concurrently(servers, lambda server: _ask(admin, server))
    controllers = await _controllers(admin, None)
    sets = await _sets(admin, controllers, [server.broker for server in servers])
    return Replication(
        _replicas_table(answers, sets), _sets_table(sets, controllers), await _controllers_table(admin, controllers)
    )


def _replicas_table(answers: Sequence[_Answer], sets: Mapping[str, ReplicasInfo]) -> Table:
    by_name: defaultdict[str, list[_Answer]] = defaultdict(list)
    for it in answers:
        by_name[it.server.broker].append(it)
    rows = [row for name, several in by_name.items() for row in _replicas(several, sets.get(name))]
    return Table("Replicas", LIST, rows)


async def _ask(admin: Admin, server: RegisteredBroker) -> _Answer:
    try:
        status = await admin.brokers.ha_status(server.address)
        counted = await admin.brokers.runtime(server.address) if server.number == MASTER_ID else {}
    except (OSError, FirearrowError) as error:
        return _Answer(server, reason=sentence(error))
    return _Answer(server, status, counted)


def _replicas(answers: Sequence[_Answer], known: ReplicasInfo | None) -> list[list[Cell]]:
    """Give the rows of one name, each slave against its master."""
    master = next((it for it in answers if it.is_master), None)
    in_sync = _in_sync(master, known)
    return [_row(it, master, in_sync.get(_host(it.server.address, known))) for it in answers]


def _host(address: str, known: ReplicasInfo | None) -> str:
    """Name of a replica: its address for controllers, its host for a master, which sees another port."""
    return address if known is not None else address.rpartition(":")[0]


def _in_sync(master: _Answer | None, known: ReplicasInfo | None) -> Mapping[str, bool | None]:
    """Tell which replicas are in sync, by the controllers or else by the master; None for a host with several."""
    if known is not None:
        return {it.broker_address: True for it in known.in_sync_replicas} | {
            it.broker_address: False for it in known.not_in_sync_replicas
        }
    found: defaultdict[str, set[bool]] = defaultdict(set)
    for it in master.status.ha_connection_info if master is not None and master.status is not None else ():
        found[(it.addr or "").lstrip("/").rpartition(":")[0]].add(it.in_sync)
    return {host: next(iter(states)) if len(states) == 1 else None for host, states in found.items()}


def _row(it: _Answer, master: _Answer | None, in_sync: bool | None) -> list[Cell]:
    head: list[Cell] = [it.server.broker, it.server.number, "master" if it.is_master else "slave", it.server.address]
    if it.status is None:
        return [*head, "failed", *[None] * 6, it.reason]
    if it.is_master:
        slaves = len(it.status.ha_connection_info)
        note = (
            f"connected slaves: {slaves}, in sync: {it.status.in_sync_slave_nums}"
            if slaves
            else "no slave is connected"
        )
        return [*head, "ok", it.end, 0, 0.0, in_sync, it.bytes_per_second, None, note]
    client = it.status.ha_client_runtime_info
    heard = as_moment(client.last_read_timestamp)
    speed = client.transferred_byte_in_second
    if master is None or master.end is None:
        why = "its master is not registered" if master is None else "its master does not answer"
        return [*head, "unknown", it.end, None, None, in_sync, speed, heard, why]
    behind = max(0, master.end - client.max_offset)
    seconds = 0.0 if not behind else behind / master.bytes_per_second if master.bytes_per_second else None
    state = "different" if in_sync is False else "ok"
    return [*head, state, it.end, behind, seconds, in_sync, speed, heard, f"copies from {client.master_addr or 'none'}"]


# --- Controllers ---


async def _controllers(admin: Admin, given: str | None) -> list[str]:
    """Addresses of the controllers: the given one, or those that brokers name."""
    if given is not None:
        return [given]

    async def ask(server: RegisteredBroker) -> list[str]:
        try:
            config = await admin.brokers.config(server.address)
        except (OSError, FirearrowError):  # another broker names them, too
            return []
        if config.get("enableControllerMode", "").lower() != "true":
            return []
        return [part.strip() for part in config.get("controllerAddr", "").split(";") if part.strip()]

    found = await concurrently(servers_in(await admin.cluster()), ask)
    return list(dict.fromkeys(address for part in found for address in part))


async def _sets(admin: Admin, controllers: Sequence[str], brokers: Sequence[str]) -> Mapping[str, ReplicasInfo]:
    """Replicas of brokers by the first controller that answers; empty without one."""
    for address in controllers:
        try:
            return (await admin.controllers.replicas(address, sorted(set(brokers)))).replicas_info_table
        except (OSError, FirearrowError):  # the list of controllers says so
            continue
    return {}


@app.command("sets")
async def list_sets(*, controller: OfController = None, cluster: ClusterOptions = ANY, output: Output = PLAIN) -> None:
    """List the replicas in sync of each broker, as the controllers know them."""
    async with cluster.admin() as admin:
        controllers = await _controllers(admin, controller)
        brokers = [server.broker for server in servers_in(await admin.cluster())]
        output.show(_sets_table(await _sets(admin, controllers, brokers), controllers))


def _sets_table(sets: Mapping[str, ReplicasInfo], controllers: Sequence[str]) -> Table:
    rows: list[list[Cell]] = [
        [
            name,
            it.master_address,
            it.master_epoch,
            it.sync_state_set_epoch,
            _names(it.in_sync_replicas),
            _names(it.not_in_sync_replicas),
            "critical" if it.master_address is None else "warning" if it.not_in_sync_replicas else "ok",
        ]
        for name, it in sorted(sets.items())
    ]
    return Table("Replicas in sync", SETS, rows, "" if controllers else NONE)


def _names(replicas: Sequence[ReplicaIdentity]) -> str:
    return ", ".join(f"{it.broker_address}{'' if it.alive else ' (not alive)'}" for it in replicas)


@app.command("controllers")
async def list_controllers(
    *, controller: OfController = None, cluster: ClusterOptions = ANY, output: Output = PLAIN
) -> None:
    """List the controllers with their leader."""
    async with cluster.admin() as admin:
        output.show(await _controllers_table(admin, await _controllers(admin, controller)))


async def _controllers_table(admin: Admin, addresses: Sequence[str]) -> Table:
    async def ask(address: str) -> list[Cell]:
        try:
            group = await admin.controllers.group(address)
        except (OSError, FirearrowError) as error:
            return [address, "failed", *[None] * 4, sentence(error)]
        role = "leader" if group.leader_address == address else "follower"
        state = "ok" if group.leader_address else "critical"
        reason = "" if group.leader_address else "the group has no leader: no master can be elected"
        return [address, state, group.name, role, group.leader_address, ", ".join(group.peers), reason]

    rows = await concurrently(addresses, ask)
    return Table("Controllers", CONTROLLERS, rows, "" if addresses else NONE)


@app.command("elect")
async def elect(
    replica: Annotated[str, Parameter("address of the replica that becomes the master")],
    /,
    *,
    controller: OfController = None,
    apply: Apply = False,
    undo_file: UndoFile = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Make a replica the master of its name; the controllers refuse one that is not in sync."""
    async with cluster.admin() as admin:
        output.show(await _elected(admin, replica, await _controllers(admin, controller), undo_file, apply=apply))


@app.command("undo")
async def undo(
    file: FromFile,
    /,
    *,
    apply: Apply = False,
    undo_file: UndoFile = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Make the replica the master again that was it before an election, if it is in sync."""
    undone = read_undo(file, ReplicaUndo)
    async with cluster.admin() as admin:
        table = await _elected(admin, undone.master, undone.controllers, undo_file, apply=apply, must_be_in_sync=True)
    output.show(table)
    return FAILED if {NOT_IN_SYNC, NOT_ALIVE} & set(table.values("state")) else 0


class ReplicaUndo(Undo, frozen=True, kw_only=True, tag="replica"):
    """The file: the address of the former master, and the controllers that elect."""

    master: str
    controllers: list[str]


async def _elected(
    admin: Admin,
    replica: str,
    controllers: Sequence[str],
    undo_file: Path | None,
    *,
    apply: bool,
    must_be_in_sync: bool = False,
) -> Table:
    """Elect a replica, or preview that."""
    if not controllers:
        raise WrongOptions(f"{NONE} Name one by --controller")
    servers = servers_in(await admin.cluster())
    names = [server.broker for server in servers]
    name, info, chosen = _replica(await _sets(admin, controllers, names), replica)
    row: list[Cell] = [name, info.master_address]
    if info.master_address == replica:
        return Table("Master", ELECT, [[*row, replica, info.master_epoch, "the same"]])
    if must_be_in_sync and (refused := _refused(info, chosen)):
        return Table("Master", ELECT, [[*row, replica, None, refused]])
    if not apply:
        return Table("Master", ELECT, [[*row, replica, None, "would be elected"]], PREVIEW)
    path, note = None, ""
    if info.master_address is not None:
        undo = ReplicaUndo(master=info.master_address, controllers=list(controllers), **circumstances(admin))
        path = write_undo(undo_file, name, undo)
        note = f"`firearrow replica undo {path}` goes back, once {info.master_address} is in sync."

    async def is_as_before() -> bool:
        return (await _sets(admin, controllers, names))[name].master_epoch == info.master_epoch

    async with refusable(path, is_as_before):
        of_cluster = next(server.cluster for server in servers if server.broker == name)
        elected = await admin.controllers.elect(controllers[0], of_cluster, name, chosen.broker_id)
    return Table("Master", ELECT, [[*row, elected.address, elected.epoch, "elected"]], note)


def _refused(info: ReplicasInfo, chosen: ReplicaIdentity) -> str:
    """Say why a replica can't be the master; empty if it can."""
    if chosen not in info.in_sync_replicas:
        return NOT_IN_SYNC
    return "" if chosen.alive else NOT_ALIVE


def _replica(sets: Mapping[str, ReplicasInfo], address: str) -> tuple[str, ReplicasInfo, ReplicaIdentity]:
    """Find a replica by its address; NothingFound if the controllers do not know it."""
    known: list[str] = []
    for name, info in sets.items():
        for it in (*info.in_sync_replicas, *info.not_in_sync_replicas):
            known.append(it.broker_address)
            if it.broker_address == address:
                return name, info, it
    raise NothingFound(f"the controllers know no replica {address!r}, but {', '.join(sorted(known)) or 'none'}")
