"""The parts of a broker that most of its features use, in one value."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from firearrow.broker.pop.inflight import InFlight
from firearrow.broker.puts import Puts
from firearrow.broker.replicas import Replicas
from firearrow.broker.routes import TopicRoutes
from firearrow.broker.senders import Senders
from firearrow.broker.state.clients import ClientRegistry
from firearrow.broker.state.groups import GroupTable
from firearrow.broker.state.offsets import ConsumerOffsets
from firearrow.broker.state.settings import Settings
from firearrow.broker.state.topics import TopicTable
from firearrow.broker.stats import BrokerStats
from firearrow.broker.timercounts import TimerCounts
from firearrow.clock import Clock
from firearrow.store import MessageStore, TimerStore


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
    timers: TimerStore
    timer_counts: TimerCounts
    routes: TopicRoutes
    in_flight: InFlight
    replicas: Replicas
    senders: Senders
