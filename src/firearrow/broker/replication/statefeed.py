"""Feed of a master's state beside the log: slaves get each change at once.

A slave of ours keeps a request open at its master (19001, no code of RocketMQ's). The request has the *version* of the
master's state that the slave has: the broker and its start (``life``), and the number of the last change. The master
answers when there is a further change::

    {"life":"6f0c1d","version":8,"whole":false,"changes":[{"state":"topics","change":{...}}]}

A change is the line of the table's journal (`firearrow.journal`); with ``null`` the slave must request that state. With
``whole`` it must request all state, since it has that of another life or a version from too long ago. The next request
of the slave confirms the last answer.

The answer to an administrator's change waits like that to a message, and for the same slaves: those that
`Replicas.confirms` counts. After ``slaveTimeout`` it is 12, as for a message. The change stays. The master does not
wait for slaves that can't confirm, RocketMQ's, which ask every ten seconds.

Slaves get the moves of groups by commits once a second, of `MOVED_MAX` queues at most. No answer waits for that: a
consumer that died before its commit would get the same messages again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Final, NamedTuple

import msgspec

from firearrow.auth.metadata import RightsChanged
from firearrow.broker.groups.assignment import RequestModes
from firearrow.broker.groups.table import GroupTable
from firearrow.broker.offsets.table import ConsumerOffsets
from firearrow.broker.replication.refusals import TABLE_CHANGES
from firearrow.broker.replication.replicas import Replicas
from firearrow.broker.storage.saving import Confirming
from firearrow.broker.topics.table import TopicTable
from firearrow.clock import Clock
from firearrow.errors import MessageError
from firearrow.events import Event, Events
from firearrow.journal import Change
from firearrow.logs import Log
from firearrow.net.server import Answer, ConnectionClosed, Finished, Handler, Peer
from firearrow.services import Alarm, Service
from firearrow.wire import fastjson
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import FollowState

log: Final = Log(__name__)

HOLD_SECONDS: Final = 15.0  # then a slave gets an answer without changes, and asks again
ASK_SECONDS_MAX: Final = 60.0  # limit for a slave to apply its last answer; then it counts no more
NOTHING_YET: Final = -1  # version of a slave that asks for the first time
STOP_SECONDS: Final = 1.0
"""Limit of a stop's wait for slaves to have the last changes."""
FOLLOWERS_MAX: Final = 64  # slaves of a name that may ask at a time
RECENT_MAX: Final = 1000  # changes in memory for slaves
RECENT_BYTES_MAX: Final = 1 << 20
"""Bytes of these changes; a slave that needs earlier ones requests all state, which has pages."""
BEFORE_STOP: Final = "before the broker stopped"
MOVED_SECONDS: Final = 1.0
MOVED_MAX: Final = 2000  # 140 kB; slaves get further ones with the whole state
WAITING_MAX: Final = 10_000  # answers that wait for slaves; further ones are 12 at once

TOPICS: Final = "topics"
DELETED: Final = "deleted topics"
GROUPS: Final = "groups"
OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
MODES: Final = "modes"
RIGHTS: Final = "rights"

CHANGES: Final = TABLE_CHANGES | frozenset(
    {
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
    }
)
"""Requests whose answers wait for slaves. A heartbeat or a message that creates a group or topic does not wait: the
next one creates it again."""


class StateChange(msgspec.Struct, frozen=True):
    """Change of one state."""

    state: str
    change: msgspec.Raw

    @property
    def size(self) -> int:
        """Bytes of the change."""
        return len(bytes(self.change))


class StateNews(msgspec.Struct, frozen=True, rename="camel"):
    """Answer to 19001."""

    life: str
    version: int
    whole: bool = False
    changes: list[StateChange] = []


class _Recent(NamedTuple):
    version: int
    change: StateChange


class _StateFollower(NamedTuple):
    """Slave with its version of the state, and its open request, if it has one."""

    broker_id: int
    confirmed: int
    request: AnyCommand | None
    until: float


class _HeldAnswer(NamedTuple):
    """Answer, and the version that slaves must have before it is sent."""

    version: int
    until: float
    peer: Peer
    request: AnyCommand
    answer: Response | bytes


class StateFeed(Service):
    """Send changes to slaves, and hold answers until the slaves have them, for ``wait_seconds`` at most.

    ``life`` tells this start of the broker from all others.
    """

    def __init__(
        self, replicas: Replicas, chance: Random, clock: Clock, loop: asyncio.AbstractEventLoop, wait_seconds: float
    ) -> None:
        super().__init__("changes for slaves")
        self.life: Final = f"{chance.getrandbits(64):x}"
        self.version: int = 0
        self._replicas = replicas
        self._monotonic = clock.monotonic
        self._loop = loop
        self._wait_seconds = wait_seconds
        self._followers: dict[Peer, _StateFollower] = {}
        self._states: dict[int, int] = {}  # by number, the version that a slave has confirmed
        self._wholes: dict[str, Callable[[], Change]] = {}
        self._recent: deque[_Recent] = deque()
        self._recent_bytes = 0
        self._is_planned = False
        self._expiry = Alarm(loop, self._expire)
        self._waiting: list[_HeldAnswer] = []
        self._all_have_it = asyncio.Event()
        self._has_stopped = False
        self._offsets: ConsumerOffsets | None = None
        self._moves = Alarm(loop, self._note_moves)
        replicas.counted.listen(lambda _: self._answer_waiting())

    @property
    def confirming(self) -> Mapping[int, Confirming]:
        """Return the functions that hold answers until slaves have the change, by code."""
        return dict.fromkeys(map(int, CHANGES), self.confirmed)

    def handlers(self) -> dict[int, Handler]:
        """Handler of slaves' requests."""
        return {int(RequestCode.FOLLOW_STATE): self._follow}

    def watch_all(
        self, topics: TopicTable, groups: GroupTable, offsets: ConsumerOffsets, modes: RequestModes, events: Events
    ) -> None:
        """Send slaves all changes of a broker's state that they can't see in the log."""
        self.watch(DELETED, topics.deleted.file.changed, topics.deleted.whole)
        self.watch(TOPICS, topics.file.changed)
        self.watch(GROUPS, groups.file.changed)
        self.watch(OFFSETS, offsets.changed)
        self._offsets = offsets
        modes.changed.listen(lambda _: self.note(MODES))
        events.listen(RightsChanged, lambda _: self.note(RIGHTS))
        events.listen(ConnectionClosed, self.closed)

    def watch(self, state: str, changed: Event[Change], whole: Callable[[], Change] | None = None) -> None:
        """Send slaves all changes of a table; a slave that asks for the first time gets ``whole``, if no other request
        has it."""
        changed.listen(lambda change: self.note(state, change))
        if whole is not None:
            self._wholes[state] = whole

    async def stop(self) -> None:
        """Wait a second at most until slaves have the last changes; then answer all held requests."""
        self.note(OFFSETS)
        if self._followers:
            self._all_have_it.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._all_have_it.wait()
        self._has_stopped = True
        self._expiry.cancel()
        self._moves.cancel()
        waiting, self._waiting = self._waiting, []
        for it in waiting:
            self._leave(it, _unconfirmed(BEFORE_STOP))
        for peer, follower in self._followers.items():
            if follower.request is not None:
                peer.reply(follower.request, self._news(self.version))
        self._followers.clear()

    # --- changes ---

    def note(self, state: str, change: Change | None = None) -> None:
        """Send slaves a change soon; without ``change`` they request the whole state."""
        self.version += 1
        if not self._followers:  # a new slave requests the whole state
            self._recent.clear()
            self._recent_bytes = 0
            return
        self._replicas.know_states(self._states, self.version)
        told = _change(state, change)
        self._recent.append(_Recent(self.version, told))
        self._recent_bytes += told.size
        while len(self._recent) > RECENT_MAX or self._recent_bytes > RECENT_BYTES_MAX:
            self._recent_bytes -= self._recent.popleft().change.size
        if not self._is_planned:
            self._is_planned = True
            self._loop.call_soon(self._tell)

    def _note_moves(self) -> None:
        """Send slaves the moves of groups by commits, every second while there are slaves."""
        if self._offsets is None or self._has_stopped:
            return
        self._offsets.note_moves(wanted=bool(self._followers))
        if self._followers:
            moved = self._offsets.take_moved(MOVED_MAX)
            if moved is not None:
                self.note(COMMITS, moved)
            self._moves.set(MOVED_SECONDS)

    def _tell(self) -> None:
        self._is_planned = False
        for peer, it in list(self._followers.items()):
            if it.request is not None and it.confirmed < self.version:
                self._keep(peer, it._replace(request=None))
                peer.reply(it.request, self._news(it.confirmed))

    def _news(self, known: int) -> Response:
        """Return the changes since a version."""
        kept_from = self._recent[0].version if self._recent else self.version + 1
        if known == NOTHING_YET or known + 1 < kept_from:
            wholes = [_change(state, whole()) for state, whole in self._wholes.items()]
            return _response(StateNews(self.life, self.version, whole=True, changes=wholes))
        changes = [it.change for it in self._recent if it.version > known]
        return _response(StateNews(self.life, self.version, changes=changes))

    # --- slaves ---

    def _follow(self, peer: Peer, request: AnyCommand) -> Answer:
        """19001: confirm the slave's version, and hold the request until there are changes."""
        header = fields_of(request, FollowState)
        is_full = len(self._followers) >= FOLLOWERS_MAX and peer not in self._followers
        if self._has_stopped or is_full:
            return Response(ResponseCode.SYSTEM_BUSY, "too many slaves ask, or the broker stops")
        is_known = header.life == self.life and 0 <= header.version <= self.version
        known = header.version if is_known else NOTHING_YET
        waits = known == self.version
        self._keep(peer, _StateFollower(header.broker_id, known, request if waits else None, 0.0))
        if not self._moves.is_set:
            self._note_moves()
        self._confirmed()
        return None if waits else self._news(known)

    def _keep(self, peer: Peer, follower: _StateFollower) -> None:
        seconds = ASK_SECONDS_MAX if follower.request is None else HOLD_SECONDS
        self._followers[peer] = follower._replace(until=self._monotonic() + seconds)
        self._expiry.set_earlier(seconds)

    def _confirmed(self) -> None:
        self._states = {}
        for it in self._followers.values():
            known = self._states.get(it.broker_id, NOTHING_YET)
            self._states[it.broker_id] = max(it.confirmed, known)
        self._replicas.know_states(self._states, self.version)
        self._answer_waiting()
        if all(it == self.version for it in self._states.values()):
            self._all_have_it.set()

    def closed(self, closed: ConnectionClosed) -> None:
        """Forget a closed connection."""
        if self._followers.pop(closed.peer, None) is not None:
            self._confirmed()

    # --- answers that wait for slaves ---

    def confirmed(self, peer: Peer, request: AnyCommand, answer: Response | bytes) -> Finished:
        """Return an answer, or return None and send it when slaves have all changes until now."""
        if self._replicas.confirms(self.version):
            return answer
        if self._has_stopped or len(self._waiting) >= WAITING_MAX:
            return _unconfirmed(BEFORE_STOP if self._has_stopped else "yet, and too many wait")
        until = self._monotonic() + self._wait_seconds
        self._waiting.append(_HeldAnswer(self.version, until, peer, request, answer))
        peer.owed += 1
        self._expiry.set_earlier(self._wait_seconds)
        return None

    def _answer_waiting(self) -> None:
        if not self._waiting:
            return
        stay: list[_HeldAnswer] = []
        ready: list[_HeldAnswer] = []
        for it in self._waiting:
            (ready if self._replicas.confirms(it.version) else stay).append(it)
        self._waiting = stay
        for it in ready:
            self._leave(it, it.answer)

    def _leave(self, waiting: _HeldAnswer, answer: Response | bytes) -> None:
        waiting.peer.owed -= 1
        assert waiting.peer.owed >= 0, "an answer is sent once"
        waiting.peer.reply(waiting.request, answer)

    def _expire(self) -> None:
        """Answer the requests whose time is over."""
        now = self._monotonic()
        silent = [it for it in self._followers.items() if it[1].until <= now]
        for peer, it in silent:
            if it.request is None:
                del self._followers[peer]
            else:
                self._keep(peer, it._replace(request=None))
                peer.reply(it.request, self._news(it.confirmed))
        if silent:
            self._confirmed()
        late = [it for it in self._waiting if it.until <= now]
        self._waiting = [it for it in self._waiting if it.until > now]
        for waiting in late:
            log.warning(
                "change is not confirmed by slaves in time",
                extra={"code": waiting.request.code, "address": waiting.peer.address},
            )
            self._leave(waiting, _unconfirmed(f"within {self._wait_seconds} s (slaveTimeout)"))
        times = [it.until for it in self._waiting]
        times += [it.until for it in self._followers.values()]
        if times:
            self._expiry.set_earlier(max(min(times) - now, 0.001))


def _change(state: str, change: Change | None) -> StateChange:
    text = fastjson.dumps_standard(None if change is None else change._asdict())
    return StateChange(state, msgspec.Raw(text))


def _response(news: StateNews) -> Response:
    return Response(body=msgspec.json.encode(news))


def news_of(answer: AnyCommand) -> StateNews:
    """Decode the answer to 19001. Raise MessageError if it is malformed."""
    try:
        return msgspec.json.decode(answer.body or b"{}", type=StateNews)
    except (ValueError, RecursionError) as error:
        raise MessageError(str(error), "the master's changes") from None


def _unconfirmed(when: str) -> Response:
    return Response(
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        f"the change is made on the master, but not all slaves in sync have confirmed it {when}: "
        "another master may not know of it",
    )
