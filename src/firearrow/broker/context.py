"""Parts of a broker that most of its features use, in one value."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from firearrow.broker.access.control import Senders
from firearrow.broker.groups.clients import ClientRegistry
from firearrow.broker.groups.table import GroupTable
from firearrow.broker.metrics.stats import BrokerStats
from firearrow.broker.offsets.table import ConsumerOffsets
from firearrow.broker.replication.replicas import Replicas
from firearrow.broker.sending.puts import Puts
from firearrow.broker.state.settings import Settings
from firearrow.broker.topics.table import TopicTable
from firearrow.clock import Clock
from firearrow.store import MessageStore


class BrokerContext(NamedTuple):
    """Parts of a broker that most of its features use."""

    settings: Settings
    store: MessageStore
    puts: Puts
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    clients: ClientRegistry
    stats: BrokerStats
    clock: Clock
    chance: Random
    replicas: Replicas
    senders: Senders
