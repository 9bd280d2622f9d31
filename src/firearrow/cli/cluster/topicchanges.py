"""Commands of `firearrow topic` that change topics, and the undo of a change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

from msgspec.structs import replace

from firearrow.cli.cluster.masters import PREVIEW, Apply, OfCluster, Preview, addresses_of, masters_in
from firearrow.cli.cluster.options import ANY, ClusterOptions, Topic
from firearrow.cli.cluster.topics import SHOW, TYPE, config_or_none, configured, shown
from firearrow.cli.cluster.undo import (
    DELETED,
    HAS_MESSAGES,
    FromFile,
    Had,
    OfCreated,
    Undo,
    UndoFile,
    altered,
    before_change,
    changed,
    circumstances,
    code_of,
    given_back,
    given_of,
    is_as_before,
    preview_state,
    read_undo,
    refusable,
    write_undo,
)
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table
from firearrow.cli.parameters import Parameter, either, pair, valued
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker
from firearrow.errors import NotFound
from firearrow.message.names import ORDER_NAMESPACE
from firearrow.wire.bodies import PERM_READ, PERM_WRITE, TopicConfig

NEW_QUEUES: Final = 8  # of a new topic, on each broker
PERMS: Final = {"rw": PERM_READ | PERM_WRITE, "r": PERM_READ, "w": PERM_WRITE}


async def create(
    topic: Topic,
    /,
    *,
    queues: Annotated[int | None, valued("N", "queues on each broker (new: 8)")] = None,
    perm: Annotated[Literal["rw", "r", "w"] | None, Parameter("permission to read, write or both (new: rw)")] = None,
    message_type: Annotated[
        Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE"] | None,
        Parameter("message type of the topic", names=("--type",)),
    ] = None,
    ordered: Annotated[bool | None, either("keep the order of queues: senders do not change queues")] = None,
    attribute: Annotated[
        tuple[tuple[str, str], ...], valued("KEY=VALUE", "sets an attribute of the topic; may be repeated", pair)
    ] = (),
    preview: Preview = False,
    undo_file: OfCreated = None,
    of_cluster: OfCluster = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Create a topic on each broker, or change the given settings."""
    attributes = dict(attribute) | ({TYPE: message_type} if message_type else {})
    given = given_of(read_queue_nums=queues, write_queue_nums=queues, perm=perm and PERMS[perm], order=ordered)
    note, path = "", None
    async with cluster.admin() as admin:
        masters = masters_in(await admin.cluster(), of_cluster)
        was = await topic_now(admin, topic, masters)
        had = {it.broker: it.config for it in was.configs}
        new = TopicConfig(topic, NEW_QUEUES, NEW_QUEUES)
        if preview:
            rows = [
                [
                    *shown(topic, it.broker, altered(had[it.broker] or new, given, attributes)),
                    preview_state(had[it.broker], given, attributes),
                ]
                for it in masters
            ]
            output.show(Table("Topic", (*SHOW, "state"), rows))
            return
        before = before_change(was.configs, new, given, attributes)
        if any(undo_file or it.config for it in before):
            path = write_undo(undo_file, topic, replace(was, configs=before))
            note = f"`firearrow topic undo {path}` sets what was before."
        async with refusable(path, lambda: _is_as_before(admin, was)):
            for master in masters:
                await admin.topics.create(master.address, changed(had[master.broker] or new, given, attributes))
        output.show((await configured(admin, topic)).changed(note=note))


async def _is_as_before(admin: Admin, was: TopicUndo) -> bool:
    now = await topic_now(admin, was.topic, masters_in(await admin.cluster()))
    return is_as_before(was.configs, now.configs)


async def delete(
    topic: Topic,
    /,
    *,
    apply: Apply = False,
    undo_file: UndoFile = None,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Delete a topic with its messages."""
    note = f"{PREVIEW} Messages can't be brought back. `firearrow topic undo` makes the topic again."
    async with cluster.admin() as admin:
        stats = await admin.topic_stats(topic)
        info = await admin.cluster()
        counts: dict[str, int] = defaultdict(int)
        for queue, ends in stats.offset_table.items():
            counts[queue.broker_name] += ends.max_offset - ends.min_offset
        if apply:
            was = await topic_now(admin, topic, masters_in(info))
            path = write_undo(undo_file, topic, replace(was, configs=[it for it in was.configs if it.config]))
            note = f"`firearrow topic undo {path}` makes it again, without its messages."
            async with refusable(path, lambda: _is_as_before(admin, was)):
                for name in sorted({master.cluster for master in masters_in(info)}):
                    await admin.delete_topic(topic, name)
    state = "deleted" if apply else "would be deleted"
    rows: list[list[Cell]] = [[topic, broker, count, state] for broker, count in sorted(counts.items())]
    output.show(Table("Topic", ("topic", "broker", "messages", "state"), rows, note=note))


async def undo(
    file: FromFile, /, *, apply: Apply = False, cluster: ClusterOptions = ANY, output: Output = PLAIN
) -> int:
    """Restore a topic as it was before a creation, change or deletion, without messages."""
    undone = read_undo(file, TopicUndo)
    async with cluster.admin() as admin:
        states = await made_again(admin, undone, apply=apply)
    rows = [[*shown(undone.topic, had.broker, had.known), states[had.broker]] for had in undone.configs]
    output.show(Table("Topic", (*SHOW, "state"), rows, note="" if apply else PREVIEW))
    return code_of(states.values())


# --- Undo: the configuration of a topic, without its messages ---


class TopicUndo(Undo, frozen=True, kw_only=True, tag="topic"):
    """The file; ``order`` is the entry of an ordered topic in the name servers."""

    topic: str
    configs: list[Had[TopicConfig]]
    order: str | None


async def topic_now(admin: Admin, topic: str, masters: Sequence[RegisteredBroker]) -> TopicUndo:
    """Give the present configuration of a topic, enough to restore it."""
    found = await concurrently(masters, lambda it: config_or_none(admin, it.address, topic))
    configs = [Had(master.broker, config) for master, config in zip(masters, found, strict=True)]
    try:
        order = await admin.name_servers.value(ORDER_NAMESPACE, topic)
    except NotFound:
        order = None
    return TopicUndo(topic=topic, configs=configs, order=order, **circumstances(admin))


class _TopicTarget:
    """The topic, where its undo restores it."""

    def __init__(self, admin: Admin, topic: str, addresses: Mapping[str, str]) -> None:
        self._admin: Final = admin
        self._topic: Final = topic
        self._addresses: Final = addresses

    async def ask(self, broker: str) -> TopicConfig | None:
        return await config_or_none(self._admin, self._addresses[broker], self._topic)

    async def make(self, broker: str, config: TopicConfig) -> None:
        await self._admin.topics.create(self._addresses[broker], config)

    async def usage(self, broker: str) -> str:
        ends = (await self._admin.topics.stats(self._addresses[broker], self._topic)).offset_table.values()
        return HAS_MESSAGES if any(end.max_offset for end in ends) else ""

    async def delete(self, broker: str) -> None:
        await self._admin.delete_topic_on(self._topic, broker)


async def made_again(admin: Admin, undo: TopicUndo, *, apply: bool) -> Mapping[str, str]:
    """Restore a topic, or preview the changes; give a state by broker."""
    brokers = [had.broker for had in undo.configs]
    target = _TopicTarget(admin, undo.topic, await addresses_of(admin, brokers))
    states = await given_back(undo.configs, target, apply=apply)
    if apply and undo.order is not None:
        await admin.name_servers.put(ORDER_NAMESPACE, undo.topic, undo.order)
    elif DELETED in states and not code_of(states):
        await admin.name_servers.delete(ORDER_NAMESPACE, undo.topic)
    return dict(zip(brokers, states, strict=True))
