"""Create the topics that an application needs, unless they exist."""

from __future__ import annotations

import asyncio
from typing import Final

from firearrow.client.admin.cluster import Admin
from firearrow.client.session.session import Session
from firearrow.errors import ClientError, TopicNotFound
from firearrow.wire.bodies import MASTER_ID, TopicConfig

KNOWN_SECONDS_MAX: Final = 10.0  # until the name servers know a topic
LOOK_SECONDS: Final = 0.01


def admin_of(session: Session) -> Admin:
    """Administration of a session's cluster, over its connections."""
    return Admin(session.client, session.name_servers.addresses)


async def declare_topic(session: Session, topic: str, queues: int, message_type: str | None = None) -> None:
    """Create a topic on every master, with ``queues`` queues, unless some broker has it already.

    Raises OSError, BrokerError, or ClientError if there is no broker or no name server learns of the topic.
    """
    name = session.topic(topic)
    try:
        await session.route(name)
    except TopicNotFound:
        await _create(session, name, queues, message_type)


async def _create(session: Session, name: str, queues: int, message_type: str | None) -> None:
    admin = admin_of(session)
    brokers = (await admin.cluster()).broker_addr_table
    masters = {
        broker: data.broker_addrs[MASTER_ID] for broker, data in brokers.items() if MASTER_ID in data.broker_addrs
    }
    if not masters:
        raise ClientError(f"topic {name!r} can't be created: no broker is registered")
    attributes = {"+message.type": message_type} if message_type is not None else {}
    config = TopicConfig(name, queues, queues, attributes=attributes)
    for address in masters.values():
        await admin.topics.create(address, config)
    try:
        async with asyncio.timeout(KNOWN_SECONDS_MAX):
            while True:
                if await _has_route(session, name, set(masters)):
                    return
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise ClientError(f"topic {name!r}: the name servers do not learn of it") from None


async def _has_route(session: Session, name: str, brokers: set[str]) -> bool:
    try:
        route = await session.refresh(name)
    except TopicNotFound:
        return False
    return {queues.broker_name for queues in route.queue_datas} >= brokers
