"""The parts of a broker, as all that serves requests knows them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from firearrow.broker.coldreads import ColdReads
from firearrow.broker.longpoll import HeldPulls
from firearrow.broker.pop.inflight import InFlight
from firearrow.broker.pop.unblocking import Unblocking
from firearrow.broker.pop.waiting import HeldPops
from firearrow.broker.puts import Puts
from firearrow.broker.replicas import Replicas
from firearrow.broker.routes import TopicRoutes
from firearrow.broker.senders import Senders
from firearrow.broker.state.clients import ClientRegistry
from firearrow.broker.state.delayoffsets import DelayOffsets
from firearrow.broker.state.filters import ConsumerFilters
from firearrow.broker.state.groups import GroupTable
from firearrow.broker.state.locks import QueueLocks
from firearrow.broker.state.offsets import ConsumerOffsets
from firearrow.broker.state.orderinfo import ConsumerOrderInfo
from firearrow.broker.state.requestmode import RequestModes
from firearrow.broker.state.settings import Settings
from firearrow.broker.state.topics import TopicTable
from firearrow.broker.stats import BrokerStats
from firearrow.broker.timercounts import TimerCounts
from firearrow.clock import Clock
from firearrow.store import MessageStore, TimerStore

Soon = Callable[[Callable[[], None]], object]


class BrokerContext(NamedTuple):
    """What processors are made of. ``soon`` has a call made by the event loop, after what it is
    doing now."""

    settings: Settings
    store: MessageStore
    puts: Puts
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    orders: ConsumerOrderInfo
    clients: ClientRegistry
    locks: QueueLocks
    filters: ConsumerFilters
    held: HeldPulls
    stats: BrokerStats
    clock: Clock
    soon: Soon
    chance: Random
    timers: TimerStore
    timer_counts: TimerCounts
    cold: ColdReads
    modes: RequestModes
    routes: TopicRoutes
    held_pops: HeldPops
    held_notifications: HeldPops
    unblocking: Unblocking
    in_flight: InFlight
    replicas: Replicas
    delay_offsets: DelayOffsets
    senders: Senders
