"""Which processor serves which request code: the broker's whole surface in one table."""

from __future__ import annotations

from typing import NamedTuple

from firearrow.broker.processors.admin_broker import BrokerAdminProcessor
from firearrow.broker.processors.admin_groups import GroupAdminProcessor
from firearrow.broker.processors.admin_topics import TopicAdminProcessor
from firearrow.broker.processors.asking import AskingProcessor
from firearrow.broker.processors.clients import ClientProcessor
from firearrow.broker.processors.offsets import OffsetProcessor
from firearrow.broker.processors.pull import PullProcessor
from firearrow.broker.processors.query import QueryProcessor
from firearrow.broker.processors.refused import RefusedProcessor
from firearrow.broker.processors.send import SendProcessor
from firearrow.broker.state.clients import ClientRegistry
from firearrow.broker.state.groups import GroupTable
from firearrow.broker.state.locks import QueueLocks
from firearrow.broker.state.offsets import ConsumerOffsets
from firearrow.broker.state.settings import Settings
from firearrow.broker.state.topics import TopicTable
from firearrow.broker.stats import BrokerStats
from firearrow.clock import Clock
from firearrow.net.server import Handler, RunHandler
from firearrow.store import MessageStore
from firearrow.wire.codes import RequestCode


class Parts(NamedTuple):
    """What processors are made of."""

    settings: Settings
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    clients: ClientRegistry
    locks: QueueLocks
    stats: BrokerStats
    clock: Clock


def message_handlers_of(sends: SendProcessor, pulls: PullProcessor) -> dict[int, Handler]:
    """The handlers of the requests that are most of all: messages to and from clients."""
    handlers: dict[int, Handler] = {
        RequestCode.SEND_MESSAGE: sends.send,
        RequestCode.SEND_MESSAGE_V2: sends.send,
        RequestCode.SEND_BATCH_MESSAGE: sends.send_batch,
        RequestCode.PULL_MESSAGE: pulls.pull,
        RequestCode.LITE_PULL_MESSAGE: pulls.pull,
    }
    return {int(code): handler for code, handler in handlers.items()}  # ints are found faster


def handlers_of(parts: Parts, pulls: PullProcessor) -> dict[int, Handler]:
    """The handlers of all other requests; any other code is answered with 3 by the server, too."""
    settings, store, topics, groups, offsets, clients, locks, stats, clock = parts
    handlers: dict[int, Handler] = {}
    for family in (
        QueryProcessor(store, topics),
        OffsetProcessor(settings, topics, groups, offsets, store, pulls.held.release),
        ClientProcessor(settings, topics, groups, clients, locks),
        AskingProcessor(settings, store, topics, groups, clients),
        TopicAdminProcessor(settings, topics, offsets, clients, store, stats),
        GroupAdminProcessor(settings, topics, groups, offsets, clients, store, stats),
        BrokerAdminProcessor(settings, topics, store, stats, clock),
        RefusedProcessor(clock),
    ):
        handlers.update(family.handlers())
    return {int(code): handler for code, handler in handlers.items()}


def run_handlers_of(sends: SendProcessor) -> dict[int, RunHandler]:
    """The handlers of several requests of one code at once."""
    return {int(RequestCode.SEND_BATCH_MESSAGE): sends.send_batches}
