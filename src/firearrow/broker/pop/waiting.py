"""Pops and notifications that wait for messages (RocketMQ ``PopLongPollingService``).

A request that finds nothing is held here, by topic, group and queue (`ANY_QUEUE` counts as a queue), until there may be
a message for it: a message arrives, a queue in order becomes free, or another pop has left some. Then one of the
waiting requests runs again from the start, and may wait again. Each runs again when its time is over.

Messages may be dispatched in the middle of a pop, and a second pop must not begin there. So the event loop runs woken
requests after its present work, for some milliseconds in one turn. Until then only the news are noted for each key:
many messages wake one request, and that request wakes the next if it leaves some.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from typing import Final, Protocol

from firearrow.broker.events import GroupDeleted
from firearrow.broker.pop.deadlines import Deadlines
from firearrow.broker.pulling.longpoll import HELD_PULLS_OF_PEER_MAX, WAIT_MS_MAX, lighten
from firearrow.broker.state.settings import Settings
from firearrow.clock import Clock
from firearrow.errors import BrokerError
from firearrow.events import Event
from firearrow.message.names import pop_retry_topic
from firearrow.net.server import ConnectionClosed, Finished, Peer, WaitEnded
from firearrow.services import Scheduler, Service
from firearrow.store import MessageStore, QueuesDeleted, Wanted
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand
from firearrow.wire.pop import ANY_QUEUE

EARLY_MS: Final = 50  # a wait ends this time before its deadline, as the answer takes time, too
TURN_SECONDS: Final = 0.004  # for requests that run again, in one turn of the event loop
CHARS_MAX: Final = 16 << 20
"""Of expressions and attempt ids of all waiting requests: a client chooses their length."""
TESTS_MAX: Final = 16
"""Waiting requests of one queue whose different tags are compared; then the next one is woken whatever its tags."""
_ARRIVALS_MAX: Final = 64  # queues whose arrivals are remembered for one key; above, no tags are read

Key = tuple[str, str, int]
"""Topic, group and queue that requests wait for."""
Arrival = tuple[int, int, int]
"""Queue id, first new offset and max offset of a queue with new messages."""
Answer = Callable[[Peer, AnyCommand], Finished]


class WaitTimes(Protocol):
    """Header fields about the longest wait of a request."""

    poll_time: int
    born_time: int


class WaitHeader(WaitTimes, Protocol):
    """Header fields of waiting requests (``wire.headers.PopMessage``, ``Notification``)."""

    consumer_group: str
    topic: str
    queue_id: int
    exp: str | None
    attempt_id: str | None


class HoldOutcome(Enum):
    """Outcome of a request to wait."""

    HELD = 0
    FULL = 1
    OVER = 2


class _HeldRequest:
    """Waiting request; ``answer`` runs it again."""

    __slots__ = ("answer", "chars", "deadline", "key", "peer", "request", "tag_codes", "tick")

    def __init__(
        self,
        key: Key,
        peer: Peer,
        request: AnyCommand,
        answer: Answer,
        tag_codes: frozenset[int] | None,
        deadline: float,
        chars: int,
    ) -> None:
        self.key = key
        self.peer = peer
        self.request = request
        self.answer = answer
        self.tag_codes = tag_codes
        self.deadline = deadline
        self.chars = chars
        self.tick = 0


class HeldPops(Service):
    """All waiting requests of one kind. The store's watch is on while there are any.

    Of the requests with one key, the one with the first deadline is woken first; with ``newest_first``, the one with
    the last.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        store: MessageStore,
        clock: Clock,
        scheduler: Scheduler,
        *,
        newest_first: bool = False,
    ) -> None:
        super().__init__(name)
        self._settings = settings
        self._store = store
        self._clock = clock
        self._scheduler = scheduler
        self._newest_first = newest_first
        # Waiting requests by topic, group and queue, in the order of their deadlines.
        self._by_topic: dict[str, dict[str, dict[int, list[_HeldRequest]]]] = {}
        # Topics and groups by retry topic: the topics of two groups may have the same name for it.
        self._retries: dict[str, dict[tuple[str, str], None]] = {}
        self._of_peer: dict[Peer, dict[int, _HeldRequest]] = {}  # by the ids of their request objects
        self._count = 0
        self._key_count = 0
        self._chars = 0
        self._due = Deadlines(scheduler, self._end)
        self._news: dict[Key, list[Arrival] | None] = {}  # None: any arrival
        self._round: deque[tuple[Key, list[Arrival] | None]] = deque()
        self._ended: deque[_HeldRequest] = deque()
        self._is_planned = False
        self._has_stopped = False
        self.refused: Event[Key] = Event()
        """Event: a request that waited under this key was refused; it may have been woken."""

    async def stop(self) -> None:
        """Run all requests again; from now on none waits."""
        self._has_stopped = True
        self._end([held for of_peer in self._of_peer.values() for held in of_peer.values()])
        self._news.clear()
        self._round.clear()
        while self._ended:
            self._run_again(self._ended.popleft())
        self._due.clear()

    def __len__(self) -> int:
        return self._count

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Count the requests that wait for exactly this queue (200055)."""
        queues = self._by_topic.get(topic, {}).get(group, {})
        return len(queues.get(max(queue_id, ANY_QUEUE), ()))

    # --- waiting ---

    def hold(
        self, peer: Peer, request: AnyCommand, header: WaitHeader, answer: Answer, wanted: Wanted = None
    ) -> HoldOutcome:
        """Hold a request until there may be a message for it; then ``answer`` runs it again.

        Everything but the header is dropped from the request. Messages with none of the tag codes ``wanted`` do not
        wake it. A filter by properties is not applied, as the pop itself looks at each message once.
        """
        key = header.topic, header.consumer_group, max(header.queue_id, ANY_QUEUE)
        chars = len(header.exp or "") + len(header.attempt_id or "")
        return self.hold_for(key, chars, peer, request, header, answer, wanted)

    def hold_for(
        self,
        key: Key,
        chars: int,
        peer: Peer,
        request: AnyCommand,
        header: WaitTimes,
        answer: Answer,
        wanted: Wanted = None,
    ) -> HoldOutcome:
        """Hold a request under a key; ``chars`` is the count of characters of its client's choice."""
        now_ms = self._clock.now_ms()
        # Java: PopLongPollingService#polling lets a client whose clock is ahead wait for longer.
        wait_ms = min(header.born_time, now_ms) + header.poll_time - EARLY_MS - now_ms
        if header.poll_time <= 0 or wait_ms <= 0 or self._has_stopped:
            return HoldOutcome.OVER
        if self._is_full(key, peer, chars):
            return HoldOutcome.FULL
        lighten(request, header)
        seconds = min(wait_ms, WAIT_MS_MAX) / 1000
        codes = wanted if isinstance(wanted, frozenset) else None
        deadline = self._scheduler.time() + seconds
        held = _HeldRequest(key, peer, request, answer, codes, deadline, chars)
        held.tick = self._due.add(held, seconds)
        self._add(held)
        return HoldOutcome.HELD

    def _is_full(self, key: Key, peer: Peer, chars: int) -> bool:
        config = self._settings.broker
        waiting = self.count(*key)
        return (
            self._count >= config.max_pop_polling_size
            or waiting > config.pop_polling_size
            or (not waiting and self._key_count >= config.pop_polling_map_size)
            or len(self._of_peer.get(peer, ())) >= HELD_PULLS_OF_PEER_MAX
            or self._chars + chars > CHARS_MAX
        )

    def _add(self, held: _HeldRequest) -> None:
        topic, group, queue_id = held.key
        groups = self._by_topic.setdefault(topic, {})
        queues = groups.get(group)
        if queues is None:
            queues = groups[group] = {}
            for v2 in (False, True):
                name = pop_retry_topic(topic, group, v2=v2)
                self._retries.setdefault(name, {})[topic, group] = None
        waiting = queues.get(queue_id)
        if waiting is None:
            waiting = queues[queue_id] = []
            self._key_count += 1
        at = len(waiting)
        while at and waiting[at - 1].deadline > held.deadline:  # mostly it is the last
            at -= 1
        waiting.insert(at, held)
        self._of_peer.setdefault(held.peer, {})[id(held.request)] = held
        self._chars += held.chars
        self._count += 1
        if self._count == 1:
            self._store.watch()

    def _drop(self, held: _HeldRequest) -> None:
        """Forget a waiting request."""
        topic, group, queue_id = held.key
        groups = self._by_topic[topic]
        queues = groups[group]
        waiting = queues[queue_id]
        waiting.remove(held)
        self._due.discard(held, held.tick)
        of_peer = self._of_peer[held.peer]
        del of_peer[id(held.request)]
        if not of_peer:
            del self._of_peer[held.peer]
        self._chars -= held.chars
        self._count -= 1
        if not self._count:
            self._store.unwatch()
        if waiting:
            return
        del queues[queue_id]
        self._key_count -= 1
        if queues:
            return
        del groups[group]
        for v2 in (False, True):
            name = pop_retry_topic(topic, group, v2=v2)
            del self._retries[name][topic, group]
            if not self._retries[name]:
                del self._retries[name]
        if not groups:
            del self._by_topic[topic]

    # --- wake-ups ---

    def arrived(self, arrivals: Iterable[tuple[str, int, int, int]]) -> None:
        """Wake one request of each group for new entries of queues.

        Each arrival has the topic and id of a queue, its first new offset and the offset behind the last.
        """
        if not self._by_topic:
            return
        for topic, queue_id, first_offset, max_offset in arrivals:
            groups = self._by_topic.get(topic)
            if groups is not None:
                arrival = queue_id, first_offset, max_offset
                for group, queues in groups.items():
                    if ANY_QUEUE in queues:
                        self._note((topic, group, ANY_QUEUE), arrival)
                    if queue_id in queues:
                        self._note((topic, group, queue_id), arrival)
            for origin, group in self._retries.get(topic, ()):
                self._note_retry(origin, group, queue_id)

    def _note_retry(self, topic: str, group: str, queue_id: int) -> None:
        """Wake a request for a message that its group failed to consume before, whatever its tags.

        Java: PopLongPollingService#notifyMessageArrivingFromRetry wakes no request if all wait for queues of another
        number, though each of them would get the message.
        """
        queues = self._by_topic[topic][group]
        some = [number for number in (ANY_QUEUE, queue_id) if number in queues]
        for number in some or [next(iter(queues))]:
            self._note((topic, group, number), None)

    def wake_next(self, topic: str, group: str, queue_id: int) -> None:
        """Wake one request for exactly this queue: another request has left a message in it."""
        if self.count(topic, group, queue_id):
            self._note((topic, group, max(queue_id, ANY_QUEUE)), None)

    def unblocked(self, topic: str, group: str, queue_id: int) -> None:
        """Wake one request for a queue in order that has become free, a pop of any queue before one of this queue."""
        for number in (ANY_QUEUE, queue_id):
            if self.count(topic, group, number):
                self._note((topic, group, number), None)
                return

    def topic_gone(self, deleted: QueuesDeleted) -> None:
        """Run requests for a deleted topic again."""
        for group in list(self._by_topic.get(deleted.topic, ())):
            self.release(deleted.topic, group)

    def group_gone(self, gone: GroupDeleted) -> None:
        """Refuse requests of a deleted group: another run would create the group."""
        group = gone.group
        for topic in [topic for topic, groups in self._by_topic.items() if group in groups]:
            self.release(topic, group, _refuse)

    def release(self, topic: str, group: str, answer: Answer | None = None) -> None:
        """Run all requests of a topic and group again, with ``answer`` if it is given."""
        for waiting in list(self._by_topic.get(topic, {}).get(group, {}).values()):
            for held in waiting:
                held.answer = answer or held.answer
            self._end(list(waiting))

    def closed(self, closed: ConnectionClosed) -> None:
        """Forget the requests of a closed connection."""
        for held in list(self._of_peer.get(closed.peer, {}).values()):
            self._drop(held)

    def wait_ended(self, ended: WaitEnded) -> None:
        """Answer a request whose client waits no longer, without a look for messages: they would become invisible."""
        held = self._of_peer.get(ended.peer, {}).get(id(ended.request))
        if held is not None:
            self._drop(held)
            held.peer.reply(held.request, Response(ResponseCode.POLLING_TIMEOUT, "its client waits no longer"))

    def _end(self, some: list[_HeldRequest]) -> None:
        """Run requests again whose time is over."""
        for held in some:
            self._drop(held)
        self._ended += some
        self._plan()

    def _note(self, key: Key, arrival: Arrival | None) -> None:
        """Wake one request of a key later, if it wants the arrival (None: in any case)."""
        if arrival is not None:
            interval = self._settings.broker.pop_long_polling_force_notify_interval
            _, first_offset, max_offset = arrival
            if interval > 0 and -first_offset % interval < max_offset - first_offset:
                arrival = None  # otherwise a request for rare tags would have more and more messages before it
        known = self._news.setdefault(key, [])
        if known is not None:
            if arrival is None or len(known) >= _ARRIVALS_MAX:
                self._news[key] = None
            else:
                known.append(arrival)
        self._plan()

    # --- runs ---

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            self._scheduler.call_soon(self._run)

    def _run(self) -> None:
        """Run woken requests and those whose time is over, until the turn is over."""
        self._is_planned = False
        monotonic = self._clock.monotonic
        until = monotonic() + TURN_SECONDS
        while self._news or self._round or self._ended:
            if self._wake() and monotonic() >= until:
                break
            if self._ended:
                self._run_again(self._ended.popleft())
                if monotonic() >= until:
                    break
        if self._news or self._round or self._ended:
            self._plan()

    def _wake(self) -> bool:
        """Run one woken request; return whether that may have taken time."""
        if not self._round:
            if not self._news:
                return False
            self._round.extend(self._news.items())
            self._news.clear()
        key, arrivals = self._round.popleft()
        held = self._choose(key, arrivals)
        if held is not None:
            self._drop(held)
            self._run_again(held)
        return True

    def _choose(self, key: Key, arrivals: list[Arrival] | None) -> _HeldRequest | None:
        """Choose the request to wake, if possible one whose client reads answers: messages for another are invisible to
        all."""
        topic, group, queue_id = key
        waiting = self._by_topic.get(topic, {}).get(group, {}).get(queue_id, [])
        codes: set[int] | None = None
        refused: frozenset[int] | None = None
        tests = 0
        busy: _HeldRequest | None = None
        for held in reversed(waiting) if self._newest_first else waiting:
            if not held.peer.reads:
                busy = busy or held
                continue
            if arrivals is None or held.tag_codes is None or tests == TESTS_MAX:
                return held
            if held.tag_codes is refused:
                continue
            if codes is None:
                codes = self._codes(topic, arrivals)
            if not held.tag_codes.isdisjoint(codes):
                return held
            refused = held.tag_codes
            tests += 1
        return busy

    def _codes(self, topic: str, arrivals: list[Arrival]) -> set[int]:
        codes: set[int] = set()
        for queue_id, first_offset, max_offset in arrivals:
            codes |= self._store.tag_codes(topic, queue_id, first_offset, max_offset)
        return codes

    def _run_again(self, held: _HeldRequest) -> None:
        if not held.peer.resume(held.request, held.answer):
            self._pass_on(held)

    def _pass_on(self, held: _HeldRequest) -> None:
        """Wake another request in place of one that is refused."""
        self.wake_next(*held.key)
        self.refused(held.key)

    # --- lost permissions ---

    def reviewed(self) -> Iterator[Callable[[], None]]:
        """Yield calls that refuse the requests whose senders have lost the permission."""
        for peer in list(self._of_peer):
            yield partial(self._review, peer)

    def _review(self, peer: Peer) -> None:
        for held in list(self._of_peer.get(peer, {}).values()):
            refusal = peer.refusal_now(held.request)
            if refusal is not None:
                self._drop(held)
                peer.reply(held.request, refusal)
                self._pass_on(held)


def _refuse(peer: Peer, request: AnyCommand) -> Finished:
    raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "the group was deleted")
