"""Agreement among the controllers of a group by an existing etcd, in place of Raft.

Below ``<controllerEtcdPrefix>/<group>/`` are these keys:

============== ================================================================================
key            value
============== ================================================================================
leader         the leader, ``n0-10.0.0.1:9878``; it has the lease of that controller, and ends
               with it
brokers/<name> the brokers of a name: a `BrokerSet` in JSON
============== ================================================================================

A controller that finds no leader creates that key, unless another has created it before; then it reads all other keys.
Each change is one transaction. It compares the creation revision of the leader's key and the count of changes since,
and changes that key as well. So a controller that has lost its lease can change nothing. A change without an answer may
be repeated: it happens once, and the key tells whether it has happened.

The leader counts its lease from before its request, and etcd from later. So the leader has stopped answering before
another one can lead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from firearrow.controller.agreement import Waiter
from firearrow.controller.etcdclient import Etcd, Kept, KeyValue, Lease, Nothing, RangeResponse, TxnResponse
from firearrow.controller.replicas import BrokerSet, ReplicaStateMachine, Sets, after_all, decode_events
from firearrow.errors import BrokerError
from firearrow.logs import Log
from firearrow.net.tasks import TaskService
from firearrow.raft import Role
from firearrow.services import Service
from firearrow.wire.codes import ResponseCode

log: Final = Log(__name__)

LOOK_SECONDS: Final = 0.5  # between looks for the leader
RETRY_SECONDS: Final = 0.1  # wait of a leader when no endpoint has answered
PARTS_OF_LEASE: Final = 4  # the lease is renewed after one part, which is also an endpoint's time to answer
PROPOSALS_MAX: Final = 100  # in one transaction: etcd has a limit of 128 operations
UNREACHED: Final = "etcd is out of reach, or refuses"
NO_LEADER: Final = KeyValue()
_brokers: Final = msgspec.json.Decoder(BrokerSet)


class EtcdAgreement:
    """One controller's part, as `Agreement` is by Raft; ``seconds`` is the duration of its lease."""

    def __init__(
        self,
        etcd: Etcd,
        prefix: str,
        name: str,
        members: Mapping[str, str],
        state: ReplicaStateMachine,
        seconds: int,
        monotonic: Callable[[], float],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._etcd = etcd
        self._leader_key, self._brokers_key = f"{prefix}/leader".encode(), f"{prefix}/brokers/"
        self._name = name
        self._members = members
        self._state = state
        self._seconds = seconds
        self._monotonic = monotonic
        self._on_change = on_change
        self._found = NO_LEADER
        self._lease = 0  # while it leads, or tries to
        self._until = self._renew_at = 0.0
        self._leads = False
        self._waiting: deque[tuple[bytes | None, Waiter]] = deque()
        self._wanted = asyncio.Event()
        self._change: _Change | None = None  # it may have been made
        self._trouble: str | None = None

    async def start(self) -> list[Service]:
        """Return the service that keeps the agreement running; etcd may start later."""
        return [_Standing(self)]

    async def close(self) -> None:
        """Give up the lease, so that another controller can lead at once."""
        if self._lease:
            with suppress(OSError):  # without etcd, the lease ends automatically
                await self._etcd.call("lease/revoke", {"ID": self._lease}, Nothing)

    @property
    def leads(self) -> bool:
        """Tell whether this controller knows every agreed change, and is the right one for requests."""
        return self._leads and self._monotonic() < self._until

    @property
    def leader(self) -> str:
        """The name of the leader; empty if it is unknown."""
        name, _, address = self._found.value.decode(errors="replace").partition("-")
        return name if self._members.get(name) == address else ""

    @property
    def role(self) -> Role:
        """This controller's role in the group."""
        if self.leads:
            return Role.LEADER
        return Role.FOLLOWER if self.leader else Role.CANDIDATE

    @property
    def trouble(self) -> str | None:
        """A fault of etcd, or of its content."""
        return self._trouble

    def propose(self, data: bytes, waiter: Waiter) -> None:
        """Propose events; only where this controller `leads`."""
        assert self._leads, "only a leader proposes"
        self._waiting.append((data, waiter))
        self._wanted.set()

    def when_agreed(self, waiter: Waiter) -> None:
        """Call once all earlier proposals are agreed on, at once if they are."""
        if self._waiting:
            self._waiting.append((None, waiter))
        else:
            waiter(True)

    def receive(self, fields: Mapping[str, str], body: bytes) -> None:
        """Refuse messages of a controller that agrees by Raft: raises BrokerError."""
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "this controller agrees by etcd")

    # --- leadership ---

    async def run(self) -> None:
        """Follow the leader, and lead when there is none."""
        while True:
            try:
                await self._look()
                self._note(self._stranger())
                if self._found is NO_LEADER:
                    await self._stand()
            except OSError as error:
                self._found = NO_LEADER
                self._note(f"{UNREACHED}: {error}")
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        """Learn the leader, and the agreed state if it may have changed since."""
        before = self._found.mod_revision
        answer = await self._etcd.call("kv/range", {"key": self._leader_key}, RangeResponse)
        found = answer.kvs[0] if answer.kvs else NO_LEADER
        if found.mod_revision != before or found is NO_LEADER:
            self._state.sets = await self._read()
        self._found = found

    async def _read(self) -> Sets:
        begin = self._brokers_key.encode()
        keys = {"key": begin, "range_end": begin[:-1] + b"0"}  # 0 follows on /
        answer = await self._etcd.call("kv/range", keys, RangeResponse)
        return dict(self._decoded(kv) for kv in answer.kvs)

    def _decoded(self, kv: KeyValue) -> tuple[str, BrokerSet]:
        key = kv.key.decode(errors="replace")
        try:
            return key.removeprefix(self._brokers_key), _brokers.decode(kv.value)
        except (ValueError, RecursionError) as error:
            raise ConnectionError(f"{key} has no brokers of a name: {error}") from None

    def _stranger(self) -> str | None:
        if self._found is NO_LEADER or self.leader:
            return None
        who = self._found.value.decode(errors="replace")
        return f"{who} leads by {self._leader_key.decode()}: controllerDLegerPeers does not have it"

    async def _stand(self) -> None:
        """Try to lead, and lead until that fails."""
        since = self._monotonic()
        lease = await self._etcd.call("lease/grant", {"TTL": self._seconds}, Lease)
        self._lease, self._until = lease.id, since + lease.ttl
        self._renew_at = since + lease.ttl / PARTS_OF_LEASE
        change = {"compare": [self._compared("CREATE", 0)], "success": [self._own_key()]}
        try:
            await self._etcd.call("kv/txn", change, TxnResponse)
            await self._look()  # behind the last change of the previous leader
            if self._found.lease == lease.id:
                await self._lead()
        finally:
            if self._found.lease == lease.id:
                self._found = NO_LEADER
        self._lease = 0

    def _compared(self, target: str, number: int) -> dict[str, object]:
        field = {"CREATE": "create_revision", "VERSION": "version"}[target]
        compared = {"key": self._leader_key, "target": target, "result": "EQUAL"}
        return {**compared, field: str(number)}

    def _own_key(self) -> dict[str, object]:
        value = f"{self._name}-{self._members[self._name]}".encode()
        return {"requestPut": {"key": self._leader_key, "value": value, "lease": str(self._lease)}}

    # --- the leader's work ---

    async def _lead(self) -> None:
        self._leads, self._change = True, None
        log.info("controller leads", extra={"revision": self._found.create_revision})
        self._on_change()
        try:
            while self.leads:
                try:
                    async with asyncio.timeout(self._until - self._monotonic()):
                        await self._go_on()
                    self._note(None)
                except OSError as error:
                    self._note(f"{UNREACHED}: {str(error) or 'the lease is over'}")
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._leads = False
            for _, waiter in self._waiting:
                asyncio.get_running_loop().call_soon(waiter, False)
            self._waiting.clear()
            log.info("controller leads no more", extra={"revision": self._found.create_revision})
            self._on_change()

    async def _go_on(self) -> None:
        """Renew the lease when it is time, and make changes in between.

        A controller that can't make a change does not renew the lease, so that no client waits any longer.
        """
        self._wanted.clear()
        if not self._waiting:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._renew_at - self._monotonic()):
                    await self._wanted.wait()
        if self._change is None and self._monotonic() >= self._renew_at:
            await self._renew()
        elif self._waiting:
            await self._write()

    async def _renew(self) -> None:
        since = self._monotonic()
        lease = {"ID": str(self._lease)}
        kept = (await self._etcd.call("lease/keepalive", lease, Kept)).result
        if kept is None:
            raise ConnectionError("the lease is not renewed")
        self._until = since + kept.ttl
        self._renew_at = since + kept.ttl / PARTS_OF_LEASE

    async def _write(self) -> None:
        """Write the waiting proposals; a change that failed before is repeated unchanged."""
        change = self._change = self._change or self._next_change()
        found = self._found
        request = {
            "compare": [self._compared("CREATE", found.create_revision), self._compared("VERSION", found.version)],
            "success": [self._own_key(), *change.operations],
            "failure": [{"requestRange": {"key": self._leader_key}}],
        }
        answer = await self._etcd.call("kv/txn", request, TxnResponse)
        if not answer.succeeded and not self._was_made(answer):
            self._until = 0.0
            return
        self._change = None
        self._found = msgspec.structs.replace(found, version=found.version + 1)
        self._state.sets = change.sets
        for _ in range(change.answered):
            _, waiter = self._waiting.popleft()
            asyncio.get_running_loop().call_soon(waiter, True)

    def _was_made(self, answer: TxnResponse) -> bool:
        """Tell whether the key's change since is this same change, whose answer was lost."""
        kvs = answer.responses[0].response_range.kvs
        found = self._found
        made = (found.create_revision, found.version + 1)
        return bool(kvs) and (kvs[0].create_revision, kvs[0].version) == made

    def _next_change(self) -> _Change:
        proposals = [data for data, _ in islice(self._waiting, PROPOSALS_MAX)]
        events = [event for data in proposals if data for event in decode_events(data)]
        sets = after_all(self._state.sets, events)
        names = dict.fromkeys(event.broker for event in events)
        return _Change(len(proposals), sets, list(self._operations(names, sets)))

    def _operations(self, names: Mapping[str, None], sets: Sets) -> Iterator[dict[str, Any]]:
        for name in names:
            key = f"{self._brokers_key}{name}".encode()
            if name in sets:
                yield {"requestPut": {"key": key, "value": msgspec.json.encode(sets[name])}}
            else:
                yield {"requestDeleteRange": {"key": key}}

    def _note(self, why: str | None) -> None:
        if why is not None and self._trouble is None:
            log.warning("controllers can't agree by etcd", extra={"reason": why})
        elif why is None and self._trouble is not None:
            log.info("controllers agree by etcd again")
        self._trouble = why


class _Change(NamedTuple):
    """A transaction: the count of proposals that it answers, the state after it, and its operations."""

    answered: int
    sets: Sets
    operations: list[dict[str, Any]]


class _Standing(TaskService):
    """Service that follows or leads by an agreement, and reports its trouble."""

    def __init__(self, agreement: EtcdAgreement) -> None:
        super().__init__("agreement of controllers by etcd")
        self._agreement = agreement

    @property
    def trouble(self) -> str | None:
        """The fault that keeps the controller from working."""
        return super().trouble or self._agreement.trouble

    async def _run(self) -> None:
        await self._agreement.run()
