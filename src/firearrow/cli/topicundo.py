"""What a deleted topic was, and making it again: its configuration, and never its messages."""

from __future__ import annotations

from collections.abc import Mapping

from firearrow.cli.fleet import addresses_of, masters_in
from firearrow.cli.restoring import Had, given_back
from firearrow.cli.undofiles import Undo, circumstances
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.servers import ORDER_NAMESPACE
from firearrow.errors import NotFound, TopicNotFound
from firearrow.wire.bodies import TopicConfig


class TopicUndo(Undo, frozen=True, kw_only=True, tag="topic"):
    """The file; ``order`` is what name servers say of a topic with an order."""

    topic: str
    configs: list[Had[TopicConfig]]
    order: str | None


async def config_or_none(admin: Admin, address: str, topic: str) -> TopicConfig | None:
    """Give what a broker knows of a topic; None for nothing."""
    try:
        return await admin.topics.config(address, topic)
    except TopicNotFound:
        return None


async def topic_now(admin: Admin, topic: str) -> TopicUndo:
    """Give what is to be known to make a topic again."""
    masters = masters_in(await admin.cluster())
    found = await concurrently(masters, lambda it: config_or_none(admin, it.address, topic))
    configs = [Had(master.broker, config) for master, config in zip(masters, found, strict=True) if config is not None]
    try:
        order = await admin.name_servers.value(ORDER_NAMESPACE, topic)
    except NotFound:
        order = None
    return TopicUndo(topic=topic, configs=configs, order=order, **circumstances(admin))


async def made_again(admin: Admin, undo: TopicUndo, *, apply: bool) -> Mapping[str, str]:
    """Make a topic again, or look what there is to do; give a state by broker."""
    brokers = [had.broker for had in undo.configs]
    addresses = await addresses_of(admin, brokers)
    states = await given_back(
        undo.configs,
        lambda broker: config_or_none(admin, addresses[broker], undo.topic),
        lambda broker, config: admin.topics.create(addresses[broker], config),
        apply=apply,
    )
    if apply and undo.order is not None:
        await admin.name_servers.put(ORDER_NAMESPACE, undo.topic, undo.order)
    return dict(zip(brokers, states, strict=True))
