"""`firearrow producer`: list the producers that are online."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Final

from firearrow.cli.cluster.masters import Pattern, masters_in, matches
from firearrow.cli.cluster.options import ANY, ClusterOptions
from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import sentence
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table, as_moment
from firearrow.cli.parameters import valued
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker
from firearrow.errors import FirearrowError
from firearrow.wire.admin_bodies import ProducerInfo
from firearrow.wire.codes import version_name

LIST: Final = ("producerGroup", "client", "address", "language", "version", "heardAt", "brokers")
BY_GROUP: Final = "Brokers know producers by group, not by topic: these are connected to the topic's brokers."

app: Final = CommandGroup()


@app.command("list")
async def list_producers(
    pattern: Pattern = None,
    /,
    *,
    topic: Annotated[str | None, valued("NAME", "connected to the brokers of this topic", names_of="topics")] = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """List producers by their groups, with the brokers that each is connected to."""
    async with cluster.admin() as admin:
        masters = masters_in(await admin.cluster())
        if topic is not None:
            brokers = {it.broker_name for it in (await admin.topics.route(topic)).broker_datas}
            masters = [it for it in masters if it.broker in brokers]
        output.show(await producers_table(admin, masters, pattern, BY_GROUP if topic is not None else ""))


async def producers_table(
    admin: Admin, masters: list[RegisteredBroker], pattern: str | None = None, note: str = ""
) -> Table:
    """Give the producers that are connected to brokers; a broker that does not answer is named in the note."""
    notes = [note] if note else []

    async def ask(master: RegisteredBroker) -> dict[str, list[ProducerInfo]]:
        try:
            return (await admin.groups.all_producers(master.address)).data
        except (OSError, FirearrowError) as error:
            notes.append(f"{master.broker} gives none: {sentence(error)}")
            return {}

    found: defaultdict[tuple[str, str], list[tuple[str, ProducerInfo]]] = defaultdict(list)
    for master, groups in zip(masters, await concurrently(masters, ask), strict=True):
        for group, several in groups.items():
            for it in several:
                if matches(group, pattern):
                    found[group, it.client_id].append((master.broker, it))
    rows: list[list[Cell]] = []
    for key, seen in sorted(found.items()):
        it = max((it for _, it in seen), key=lambda it: it.last_update_timestamp)
        brokers = ", ".join(sorted({broker for broker, _ in seen}))
        heard = as_moment(it.last_update_timestamp)
        rows.append([*key, it.remote_ip.lstrip("/"), it.language, version_name(it.version), heard, brokers])
    return Table("Producers", LIST, rows, " ".join(notes))
