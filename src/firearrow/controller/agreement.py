"""Has the controllers of a group agree: `firearrow.raft` on a clock, a disk and connections.

What is proposed here comes to ``apply`` of every controller, in the same order, once most of them
have it on their disks. The order of disk and network is that of `firearrow.raft`: while a thread
syncs, messages and ticks reach the node, but what comes of them waits.

Controllers speak to each other on the port that brokers use, by a request of their own
(`PEER_MESSAGES`): one-way, with the names of the group and of its members as fields and messages as
the body. Who has other members in mind would count other majorities, and is not listened to. What
can't be sent now is lost, and sent again by who still wants it. What comes is read as a whole, the
entries and the state in it too, before any of it is kept: what is on the disks of a majority and
can't be read would end the group.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Protocol

from firearrow.errors import BrokerError, CorruptStore, MessageError
from firearrow.net.access import OPEN, Access
from firearrow.net.client import Client
from firearrow.net.running import Running
from firearrow.raft import (
    Append,
    Entry,
    Install,
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

log = logging.getLogger(__name__)

PEER_MESSAGES: Final = 59_001  # RocketMQ has no such request; DLedger's are 51001 to 51005
GROUP_FIELD: Final = "group"
MEMBERS_FIELD: Final = "members"
TICK_SECONDS: Final = 0.1
# A leader is heard every 0.2 s, and missed after 1 to 2 s: on one machine with brokers, threads and
# other processes may take a few hundred ms.
TIMING: Final = Timing(heartbeat=2, election=10)
LOG_BYTES_MAX: Final = 4 << 20  # then the state takes its place; some ten thousand changes
UNSENT_MAX: Final = 64  # messages to a controller that can't be reached
SEND_SECONDS_MAX: Final = 1.0
STRANGER: Final = "this is of another group of controllers, or of one with other members"
WAY_BACK: Final = "Stop all controllers, copy the directory of the one that led to the place of this one, and start all"

Waiter = Callable[[bool], None]
"""Called once: whether what was waited for is agreed on. If not, it may still come to be."""


class Machine(Protocol):
    """What is agreed on."""

    def check(self, changes: Iterable[bytes], state: bytes) -> None:
        """Raise MessageError for an entry that `apply`, or a state that `restore` can't take."""
        ...

    def apply(self, data: bytes) -> None:
        """Take the next entry that was agreed on."""
        ...

    def restore(self, data: bytes) -> None:
        """Be as a snapshot says."""
        ...

    def snapshot(self) -> bytes:
        """Give all of it."""
        ...


class Agreement:
    """One controller's part; ``members`` are addresses by name, this one's own among them.

    ``on_change`` is called when this controller has begun or ceased to lead.
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
        self._led_in = 0  # the term in which it leads, and has said so
        self._trouble: str | None = None
        self._writing: asyncio.Future[None] | None = None
        self._is_over = False
        self._client = Client(access=access)
        others = (member for member in members if member != name)
        self._lines = {other: _Line(self._client, members[other], self._fields) for other in others}
        self._has_warned = False

    async def start(self) -> list[Service]:
        """Read what was agreed on before; give what keeps it going.

        Raises CorruptStore or OSError where that can't be read.
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
            why = f"{self._file.name} has what no controller can read: {error}"
            raise CorruptStore(f"{why}. {WAY_BACK}") from None
        return saved

    async def close(self) -> None:
        """Close all connections to others; on return the file is used no more."""
        self._is_over = True
        if self._writing is not None:
            await asyncio.wait([self._writing])
        await self._client.close()

    @property
    def leads(self) -> bool:
        """Tell whether this controller knows all that was agreed on, and is the one to ask."""
        return self._led_in != 0

    @property
    def leader(self) -> str:
        """The name of who leads; nothing if that is not known."""
        return self._node.leader

    @property
    def role(self) -> Role:
        """What it is among the controllers."""
        return self._node.role

    @property
    def trouble(self) -> str | None:
        """What keeps it from working, for good."""
        return self._trouble

    @property
    def _takes_part(self) -> bool:
        return self._trouble is None and not self._is_over

    def propose(self, data: bytes, waiter: Waiter) -> None:
        """Have something agreed on; only where this controller `leads`."""
        index = self._node.propose(data)
        assert index is not None, "only who leads proposes"
        self._waiters.append((index, waiter))
        self._go_on()

    def when_agreed(self, waiter: Waiter) -> None:
        """Call once all that was proposed so far is agreed on, at once if it is."""
        last = self._waiters[-1][0] if self._waiters else 0
        if last <= self._applied_index:
            waiter(True)
        else:
            self._waiters.append((last, waiter))

    def tick(self) -> None:
        """Some time has passed."""
        if self._takes_part:
            self._node.tick()
            self._go_on()

    def receive(self, fields: Mapping[str, str], body: bytes) -> None:
        """Another controller has sent something; BrokerError if it is none of the group."""
        if any(fields.get(name) != value for name, value in self._fields.items()):
            if not self._has_warned:
                self._has_warned = True
                log.error(
                    "another controller has another group in mind: nothing it says counts",
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
        """Raise MessageError for what could not be applied once it is agreed on."""
        if isinstance(message, Append):
            self._machine.check([entry.data for entry in message.entries], b"")
        elif isinstance(message, Install):
            self._machine.check((), message.snapshot.data)

    # --- what comes of it ---

    def _elect_itself(self) -> None:
        """Nobody else is asked, so nobody is waited for."""
        while not self._node.is_leader:
            self._node.tick()
        self._go_on()

    def _go_on(self) -> None:
        """Do what is to be done, until there is nothing or the disk takes its time."""
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
        """What was to be saved is: send, and apply."""
        for message in ready.messages:
            self._lines[message.to].send(message)
        try:
            if ready.snapshot is not None:
                self._machine.restore(ready.snapshot.data)
                self._applied_index, self._applied_term = ready.snapshot.index, ready.snapshot.term
            for entry in ready.committed:
                self._apply(entry)
        except BaseException as error:  # an entry of a later release, say: without it all is wrong
            self._halt(error)
            raise
        if self._file.size_bytes > LOG_BYTES_MAX and self._takes_part:
            saved = self._node.compact(self._machine.snapshot())
            self._in_thread(self._file.rewrite, saved, self._rest)
        else:
            self._rest()

    def _rest(self) -> None:
        self._is_busy = False

    def _apply(self, entry: Entry) -> None:
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
        """Say and do nothing more: nobody knows what the disk, or the state, has."""
        self._trouble = f"{type(error).__name__}: {error}"
        log.critical("controller takes no part any more: it can't keep what is agreed on", extra={"error": error})
        self._note_whether_it_leads()

    def _note_whether_it_leads(self) -> None:
        """A leader serves once an entry of its own term is applied: then so is all before."""
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
    """Has an agreement feel the time, and tells its trouble."""

    def __init__(self, agreement: Agreement, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__("agreement of controllers", TICK_SECONDS, agreement.tick, loop)
        self._agreement = agreement

    @property
    def trouble(self) -> str | None:
        """What keeps the controller from working."""
        return self._agreement.trouble or super().trouble


class _Line(Running):
    """The way to one other controller; what is unsent when more comes is let go of."""

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
        """Why it can't be reached."""
        return super().trouble or self._why

    def send(self, message: Message) -> None:
        """Have a message sent with the next ones."""
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
