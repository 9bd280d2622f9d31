"""Agreement among the controllers of a group: `firearrow.raft` on a clock, a disk and connections.

A proposal reaches ``apply`` of every controller, in the same order, once most of them have it on their disks. The order
of disk and network is that of `firearrow.raft`. While a thread syncs, the node takes messages and ticks, but their
results wait.

Controllers exchange messages on the port for brokers, by a separate request (`PEER_MESSAGES`). It is one-way, with the
names of the group and of its members as fields and messages as the body. A peer with other members would count other
majorities, so its messages are refused. A message that can't be sent now is lost, and its sender repeats it while it
matters. A controller decodes a request completely, with its entries and its state, before it keeps any of it.
Unreadable entries on the disks of a majority would end the group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Protocol

from firearrow.errors import BrokerError, CorruptStore, MessageError
from firearrow.logs import Log
from firearrow.net.access import OPEN, Access
from firearrow.net.client import Client
from firearrow.net.tasks import TaskService
from firearrow.raft import (
    Append,
    Install,
    LogEntry,
    LogFile,
    Message,
    Node,
    Ready,
    Role,
    Saved,
    Timing,
    decode_messages,
    encode_messages,
)
from firearrow.services import Every, Service
from firearrow.wire.codes import ResponseCode

log: Final = Log(__name__)

PEER_MESSAGES: Final = 59_001  # RocketMQ has no such request; DLedger's are 51001 to 51005
GROUP_FIELD: Final = "group"
MEMBERS_FIELD: Final = "members"
TICK_SECONDS: Final = 0.1
# A leader sends a heartbeat each 0.2 s, and is missed after 1 to 2 s. On one machine with brokers, threads and other
# processes may take a few hundred ms.
TIMING: Final = Timing(heartbeat=2, election=10)
LOG_BYTES_MAX: Final = 4 << 20  # then a snapshot replaces it; some ten thousand changes
UNSENT_MAX: Final = 64  # messages to a controller that is out of reach
SEND_SECONDS_MAX: Final = 1.0
STRANGER: Final = "this controller is of another group, or its group has other members"
WAY_BACK: Final = "Stop all controllers, put a copy of the last leader's directory in place of this one, and start all"

Waiter = Callable[[bool], None]
"""Callback, called once with True if the proposals are agreed on; after False they may still be agreed on later."""


class Machine(Protocol):
    """State machine that the controllers agree on."""

    def check(self, changes: Iterable[bytes], state: bytes) -> None:
        """Raise MessageError for an entry that `apply` can't take, or a state that `restore` can't take."""
        ...

    def apply(self, data: bytes) -> None:
        """Apply the next agreed entry."""
        ...

    def restore(self, data: bytes) -> None:
        """Replace the state by a snapshot."""
        ...

    def snapshot(self) -> bytes:
        """Return the whole state as a snapshot."""
        ...


class Agreement:
    """One controller's part; ``members`` are all addresses by name, including its address.

    ``on_change`` is called when this controller begins or ceases to lead.
    """

    def __init__(
        self,
        group: str,
        name: str,
        members: Mapping[str, str],
        file: LogFile,
        machine: Machine,
        draw: Callable[[int], int],
        on_change: Callable[[], None] = lambda: None,
        access: Access = OPEN,
    ) -> None:
        self._fields = {GROUP_FIELD: group, MEMBERS_FIELD: ",".join(sorted(members))}
        self._name = name
        self._members = members
        self._file = file
        self._machine = machine
        self._draw = draw
        self._on_change = on_change
        self._waiters: deque[tuple[int, Waiter]] = deque()
        self._is_busy = False
        self._applied_index = self._applied_term = 0
        self._led_in = 0  # the term whose leadership it has announced
        self._trouble: str | None = None
        self._writing: asyncio.Future[None] | None = None
        self._is_over = False
        self._client = Client(access=access)
        others = (member for member in members if member != name)
        self._lines = {other: _PeerLine(self._client, members[other], self._fields) for other in others}
        self._has_warned = False

    async def start(self) -> list[Service]:
        """Read the entries and the snapshot of earlier runs; return the services that keep the agreement running.

        Raises CorruptStore or OSError if they can't be read.
        """
        self._loop = asyncio.get_running_loop()
        saved = self._load()
        if saved.snapshot is not None:
            self._machine.restore(saved.snapshot.data)
            self._applied_index, self._applied_term = saved.snapshot.index, saved.snapshot.term
        self._node = Node(self._name, list(self._members), saved, self._draw, TIMING)
        if not self._lines:
            self._elect_itself()
        return [_Ticking(self, self._loop), *self._lines.values()]

    def _load(self) -> Saved:
        try:
            saved = self._file.load()
            state = b"" if saved.snapshot is None else saved.snapshot.data
            self._machine.check([entry.data for entry in saved.entries], state)
        except CorruptStore as error:
            raise CorruptStore(f"{error}. {WAY_BACK}") from None
        except MessageError as error:
            why = f"{self._file.name} has data that no controller can read: {error}"
            raise CorruptStore(f"{why}. {WAY_BACK}") from None
        return saved

    async def close(self) -> None:
        """Close all connections to other controllers; on return the file is no longer used."""
        self._is_over = True
        if self._writing is not None:
            await asyncio.wait([self._writing])
        await self._client.close()

    @property
    def leads(self) -> bool:
        """Tell whether this controller knows every agreed entry, and is the right one for requests."""
        return self._led_in != 0

    @property
    def leader(self) -> str:
        """The name of the leader; empty if it is unknown."""
        return self._node.leader

    @property
    def role(self) -> Role:
        """This controller's role in the group."""
        return self._node.role

    @property
    def trouble(self) -> str | None:
        """The fault that stops this controller for good."""
        return self._trouble

    @property
    def _takes_part(self) -> bool:
        return self._trouble is None and not self._is_over

    def propose(self, data: bytes, waiter: Waiter) -> None:
        """Propose an entry; only where this controller `leads`."""
        index = self._node.propose(data)
        assert index is not None, "only a leader proposes"
        self._waiters.append((index, waiter))
        self._go_on()

    def when_agreed(self, waiter: Waiter) -> None:
        """Call once all earlier proposals are agreed on, at once if they are."""
        last = self._waiters[-1][0] if self._waiters else 0
        if last <= self._applied_index:
            waiter(True)
        else:
            self._waiters.append((last, waiter))

    def tick(self) -> None:
        """Count a tick of time."""
        if self._takes_part:
            self._node.tick()
            self._go_on()

    def receive(self, fields: Mapping[str, str], body: bytes) -> None:
        """Take another controller's messages; raises BrokerError if it is not of the group."""
        if any(fields.get(name) != value for name, value in self._fields.items()):
            if not self._has_warned:
                self._has_warned = True
                log.error(
                    "another controller is configured for another group: its messages are ignored",
                    extra={"ours": self._fields, "theirs": dict(fields)},
                )
            raise BrokerError(ResponseCode.SYSTEM_ERROR, STRANGER)
        try:
            messages = [
                message
                for message in decode_messages(body)
                if message.to == self._name and message.sender in self._lines
            ]
            for message in messages:
                self._check(message)
            for message in messages:
                if self._takes_part:
                    self._node.check(message)
                    self._node.receive(message)
        except MessageError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"that is no message: {error}") from None
        finally:
            self._go_on()

    def _check(self, message: Message) -> None:
        """Raise MessageError for entries or a state that could not be applied after the agreement."""
        if isinstance(message, Append):
            self._machine.check([entry.data for entry in message.entries], b"")
        elif isinstance(message, Install):
            self._machine.check((), message.snapshot.data)

    # --- results of the node ---

    def _elect_itself(self) -> None:
        """Become leader at once: a single controller waits for no other vote."""
        while not self._node.is_leader:
            self._node.tick()
        self._go_on()

    def _go_on(self) -> None:
        """Carry out the node's results, until there are none or a disk write is pending."""
        while not self._is_busy and self._takes_part:
            ready = self._node.take()
            if ready == _NOTHING:
                break
            self._is_busy = True
            if ready.saved is None:
                self._carry_out(ready)
            else:
                self._in_thread(self._save, ready.saved, partial(self._carry_out, ready))
        self._note_whether_it_leads()

    def _save(self, saved: Saved) -> None:
        self._file.append(saved)
        self._file.sync()

    def _carry_out(self, ready: Ready) -> None:
        """Send and apply results whose entries are on the disk."""
        for message in ready.messages:
            self._lines[message.to].send(message)
        try:
            if ready.snapshot is not None:
                self._machine.restore(ready.snapshot.data)
                self._applied_index, self._applied_term = ready.snapshot.index, ready.snapshot.term
            for entry in ready.committed:
                self._apply(entry)
        except BaseException as error:  # for example an entry of a later release: without it all later state is wrong
            self._halt(error)
            raise
        if self._file.size_bytes > LOG_BYTES_MAX and self._takes_part:
            saved = self._node.compact(self._machine.snapshot())
            self._in_thread(self._file.rewrite, saved, self._rest)
        else:
            self._rest()

    def _rest(self) -> None:
        self._is_busy = False

    def _apply(self, entry: LogEntry) -> None:
        self._machine.apply(entry.data)
        self._applied_index, self._applied_term = entry.index, entry.term
        if entry.term == self._led_in:
            while self._waiters and self._waiters[0][0] <= entry.index:
                _, waiter = self._waiters.popleft()
                self._loop.call_soon(waiter, True)

    def _in_thread(self, write: Callable[[Saved], None], saved: Saved, then: Callable[[], None]) -> None:
        self._writing = self._loop.run_in_executor(None, write, saved)
        self._writing.add_done_callback(partial(self._written, then))

    def _written(self, then: Callable[[], None], future: asyncio.Future[None]) -> None:
        self._writing = None
        error = future.exception()
        if error is not None:
            self._halt(error)
            return
        then()
        self._go_on()

    def _halt(self, error: BaseException) -> None:
        """Stop taking part: the content of the disk, or of the state, is uncertain."""
        self._trouble = f"{type(error).__name__}: {error}"
        log.critical("controller takes no part any more: it can't keep the agreed entries", extra={"error": error})
        self._note_whether_it_leads()

    def _note_whether_it_leads(self) -> None:
        """Note whether this controller leads now.

        A leader serves once it has applied an entry of its present term: then it has applied all earlier ones too.
        """
        node = self._node
        leads = node.is_leader and self._applied_term == node.term and self._takes_part
        led_in = node.term if leads else 0
        if led_in == self._led_in:
            return
        self._led_in = led_in
        waiters, self._waiters = self._waiters, deque()
        for _, waiter in waiters:
            self._loop.call_soon(waiter, False)
        if leads:
            log.info("controller leads", extra={"term": node.term})
        else:
            log.info("controller leads no more", extra={"term": node.term})
        self._on_change()


_NOTHING: Final = Ready(None, [], None, [])


class _Ticking(Every):
    """Service that passes time to an agreement, and reports its trouble."""

    def __init__(self, agreement: Agreement, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__("agreement of controllers", TICK_SECONDS, agreement.tick, loop)
        self._agreement = agreement

    @property
    def trouble(self) -> str | None:
        """The fault that keeps the controller from working."""
        return self._agreement.trouble or super().trouble


class _PeerLine(TaskService):
    """Connection to one other controller; the oldest unsent messages are dropped when there are too many."""

    def __init__(self, client: Client, address: str, fields: Mapping[str, str]) -> None:
        super().__init__(f"messages to {address}")
        self._client = client
        self._address = address
        self._fields = fields
        self._unsent: deque[Message] = deque(maxlen=UNSENT_MAX)
        self._wanted = asyncio.Event()
        self._why: str | None = None

    @property
    def trouble(self) -> str | None:
        """The reason why the other controller is out of reach."""
        return super().trouble or self._why

    def send(self, message: Message) -> None:
        """Send a message with the next ones."""
        self._unsent.append(message)
        self._wanted.set()

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            body = encode_messages(list(self._unsent))
            self._unsent.clear()
            try:
                async with asyncio.timeout(SEND_SECONDS_MAX):
                    await self._client.send(self._address, PEER_MESSAGES, self._fields, body)
            except (OSError, TimeoutError) as error:
                self._note(str(error) or type(error).__name__)
            else:
                self._note(None)

    def _note(self, why: str | None) -> None:
        if why is None and self._why is not None:
            log.info("controller is reached again", extra={"address": self._address})
        elif why is not None and self._why is None:
            log.warning("controller can't be reached", extra={"address": self._address, "reason": why})
        self._why = why
