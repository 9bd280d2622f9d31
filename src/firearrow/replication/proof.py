"""Proof of identity on both sides of a replication, before the first report.

RocketMQ's protocol has none: every peer that connects gets the log, and the master trusts its reports. Therefore
brokers with access control prove their identity first, on the same port, in both forms of the protocol. After that, the
one or the other form follows unchanged:

====== ==== ====================================================================
from   size
====== ==== ====================================================================
slave  8    ``ff 46 41 48 41 00 00 01``
master 8+16 ``ff 46 41 48 41 00 00 02``, and a challenge: random bytes
slave  1+n  the name of a user: its length, UTF-8
       16   random bytes of the slave
       32   HMAC-SHA256, whose key is the user's secret: ``slave``, the challenge,
            the slave's random bytes, the name
master 32   the same of ``master``
====== ==== ====================================================================

The user must be an enabled super user at the master, with the same secret; a connection ends when its user no longer
is. To RocketMQ's master the slave's first bytes are a report of a negative offset, which it ignores; in controller mode
it closes the connection. Each proof is of one connection and does not cover the bytes that follow: TLS protects them
from changes on their way.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from firearrow.errors import RemoteProtocolError
from firearrow.events import Event
from firearrow.logs import Log
from firearrow.net.address import remote_of
from firearrow.wire.signature import Credentials

log: Final = Log(__name__)

HELLO: Final = b"\xffFAHA\x00\x00\x01"
# RocketMQ's heartbeats repeat the bytes that they take for an offset, so the answer must differ.
ANSWER: Final = b"\xffFAHA\x00\x00\x02"
RANDOM_BYTES: Final = 16
PROOF_BYTES: Final = 32
PROOF_SECONDS_MAX: Final = 2.0
STRANGERS_MAX: Final = 64
"""Limit of connections without a proof; one more closes the oldest."""
_CHALLENGE_BYTES: Final = len(ANSWER) + RANDOM_BYTES
NOT_ASKED: Final = (
    "the master asks for no proof, as RocketMQ's and one without access control: with "
    "haAllowUnauthenticated=true it is followed nevertheless"
)

SecretOf = Callable[[str], str | None]


def _proof(side: bytes, secret: str, challenge: bytes, own: bytes, name: bytes) -> bytes:
    return hmac.digest(secret.encode(), side + challenge + own + name, "sha256")


class ProofDemand:
    """The master's side; ``secret_of`` returns the secret of a user that may follow, None for any other.

    ``user`` has proved its identity by ``secret``; ``rest`` has the bytes that came behind the proof.
    """

    def __init__(self, secret_of: SecretOf, challenge: bytes) -> None:
        assert len(challenge) == RANDOM_BYTES
        self._secret_of = secret_of
        self._challenge = challenge
        self._has_greeted = False
        self.user: str = ""
        self.secret: str = ""
        self.is_met: bool = False
        self.rest: bytes = b""

    def receive(self, data: bytes) -> bytes:
        """Take received bytes; return the answer. Raises RemoteProtocolError if they are no proof."""
        assert not (data and self.is_met), "the bytes behind the proof are another protocol's"
        self.rest += data
        reply = b""
        if not self._has_greeted:
            if not HELLO.startswith(self.rest[: len(HELLO)]):
                raise RemoteProtocolError("it does not begin a proof of its identity")
            if len(self.rest) < len(HELLO):
                return b""
            self._has_greeted, self.rest = True, self.rest[len(HELLO) :]
            reply = ANSWER + self._challenge
        if self.rest and len(self.rest) > self.rest[0] + RANDOM_BYTES + PROOF_BYTES:
            reply += self._answer(1 + self.rest[0])
        return reply

    def _answer(self, own_at: int) -> bytes:
        name, own = self.rest[1:own_at], self.rest[own_at : own_at + RANDOM_BYTES]
        proof_at = own_at + RANDOM_BYTES
        proof, self.rest = self.rest[proof_at:][:PROOF_BYTES], self.rest[proof_at + PROOF_BYTES :]
        assert (len(own), len(proof)) == (RANDOM_BYTES, PROOF_BYTES), "the proof has arrived as a whole"
        user = name.decode(errors="replace")
        secret = self._secret_of(user)
        wanted = _proof(b"slave", secret or "", self._challenge, own, name)
        if not hmac.compare_digest(wanted, proof) or not secret:
            raise RemoteProtocolError(f"it does not prove that it is {user!r}, a super user")
        self.is_met, self.user, self.secret = True, user, secret
        return _proof(b"master", secret, self._challenge, own, name)


class Proof:
    """The slave's side; ``own`` are random bytes.

    ``challenge`` is the master's, empty before it has sent one; ``rest`` has the bytes that came behind the proof.
    """

    def __init__(self, credentials: Credentials, own: bytes) -> None:
        assert len(own) == RANDOM_BYTES
        self._secret = credentials.secret_key
        self._name = credentials.access_key.encode()[:255]
        self._own = own
        self.challenge: bytes = b""
        self.is_done: bool = False
        self.rest: bytes = b""

    def receive(self, data: bytes) -> bytes:
        """Take received bytes; return the answer. Raises RemoteProtocolError for a stranger."""
        assert not (data and self.is_done), "the bytes behind the proof are another protocol's"
        self.rest += data
        reply = b""
        if not self.challenge:
            if not ANSWER.startswith(self.rest[: len(ANSWER)]):
                raise RemoteProtocolError(NOT_ASKED)
            if len(self.rest) < _CHALLENGE_BYTES:
                return b""
            self.challenge = self.rest[len(ANSWER) : _CHALLENGE_BYTES]
            self.rest = self.rest[_CHALLENGE_BYTES:]
            reply = bytes((len(self._name),)) + self._name + self._own + self._of(b"slave")
        elif len(self.rest) >= PROOF_BYTES:
            if not hmac.compare_digest(self._of(b"master"), self.rest[:PROOF_BYTES]):
                raise RemoteProtocolError("the master does not prove that it knows the secret")
            self.is_done, self.rest = True, self.rest[PROOF_BYTES:]
        return reply

    def _of(self, side: bytes) -> bytes:
        return _proof(side, self._secret, self.challenge, self._own, self._name)

    @property
    def why_closed(self) -> str:
        """The likely reason why the master has closed the connection."""
        return _REFUSED if self.challenge else NOT_ASKED


def _nobody(_: str) -> None:
    """Return no secret, because there are no users."""


class Loop(Protocol):
    """Event loop that opens connections."""

    async def create_connection(self, *args: Any, **named: Any) -> Any:
        """Open a connection."""
        ...


@dataclass(frozen=True)
class HaAccess:
    """Access to the port for slaves of other brokers; the default is RocketMQ's: without proof and without TLS.

    With ``is_asked`` both sides must prove their identity. ``is_left_open``: the port demands nothing though clients
    must authenticate or encrypt. ``changed`` fires for a user whose secret or rights may have changed.
    """

    is_asked: bool = False
    credentials: Credentials | None = None
    secret_of: SecretOf = _nobody
    tls: ssl.SSLContext | None = None  # to connect
    server_tls: ssl.SSLContext | None = None
    is_left_open: bool = False
    changed: Event[str] = field(default_factory=Event)

    def _new_proof(self) -> Proof:
        if self.credentials is None:
            raise RemoteProtocolError(
                "authenticationEnabled=true makes brokers prove their identity, but there are no "
                "innerClientAuthenticationCredentials here"
            )
        return Proof(self.credentials, os.urandom(RANDOM_BYTES))

    async def connect(self, loop: Loop, following: asyncio.Protocol, host: str, port: int) -> None:
        """Connect and prove; ``following`` gets the connection afterwards.

        Raises OSError, or RemoteProtocolError if one side does not prove its identity.
        """
        more = {} if self.tls is None else {"ssl": self.tls, "server_hostname": host}
        if not self.is_asked:
            await loop.create_connection(lambda: following, host, port, **more)
            return
        proving = _Proving(following, self._new_proof())
        await loop.create_connection(lambda: proving, host, port, **more)
        try:
            async with asyncio.timeout(PROOF_SECONDS_MAX):
                await proving.done
        except TimeoutError:
            raise TimeoutError(NOT_ASKED) from None
        finally:
            proving.end()

    def enter(self, line: socket.socket, host: str) -> socket.socket:
        """Encrypt a connection and prove, as `connect`; it blocks."""
        if self.tls is not None:
            line = self.tls.wrap_socket(line, server_hostname=host)
        if not self.is_asked:
            return line
        proof = self._new_proof()
        line.settimeout(PROOF_SECONDS_MAX)
        line.sendall(HELLO)
        while not proof.is_done:
            try:
                data = line.recv(_CHALLENGE_BYTES)
            except TimeoutError:
                raise RemoteProtocolError(NOT_ASKED) from None
            if not data:
                raise RemoteProtocolError(proof.why_closed)
            line.sendall(proof.receive(data))
        return line


OPEN: Final = HaAccess()
_REFUSED: Final = (
    "the master does not take the proof: innerClientAuthenticationCredentials must belong to a super user there"
)


class _Proving(asyncio.Protocol):
    """A connection until both sides have proved their identity; then ``following`` gets it."""

    def __init__(self, following: asyncio.Protocol, proof: Proof) -> None:
        self._following = following
        self._proof = proof
        self._transport: asyncio.Transport | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the proof."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(HELLO)

    def data_received(self, data: bytes) -> None:
        """Answer the master."""
        transport = self._transport
        if transport is None:
            return
        try:
            transport.write(self._proof.receive(data))
        except RemoteProtocolError as error:
            self._fail(error)
            return
        if self._proof.is_done and not self.done.done():
            self.done.set_result(None)
            self._transport = None
            _hand_over(transport, self._following, self._proof.rest)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail, because the master has left or does not accept the proof."""
        self._fail(error or ConnectionError(self._proof.why_closed))

    def _fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
        self.end()

    def end(self) -> None:
        """Close the connection, unless ``following`` has it by now."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None


def _hand_over(transport: asyncio.Transport, protocol: asyncio.Protocol, rest: bytes) -> None:
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if rest:
        protocol.data_received(rest)


class Gate:
    """Gate that admits peers with a proof of their identity; ``inside`` makes the protocol of an admitted peer."""

    def __init__(self, access: HaAccess, inside: Callable[[], asyncio.Protocol]) -> None:
        self._access = access
        self._inside = inside
        self._strangers: dict[_Stranger, None] = {}
        self._said: set[str] = set()
        self._inside_by: dict[asyncio.Transport, ProofDemand] = {}
        access.changed.listen(self._recheck)

    def _recheck(self, user: str) -> None:
        """Close the connections of a user whose secret or right to follow has changed."""
        for transport, demand in self._inside_by.items():
            if demand.user == user and self._access.secret_of(user) != demand.secret:
                transport.abort()
        self._forget_closed()

    def _forget_closed(self) -> None:
        there = self._inside_by.items()
        self._inside_by = {it: demand for it, demand in there if not it.is_closing()}

    def connection(self) -> asyncio.Protocol:
        """Make the protocol of a new connection."""
        return _Stranger(self) if self._access.is_asked else self._inside()

    def demand(self) -> ProofDemand:
        """Make the demand that a stranger has to meet."""
        return ProofDemand(self._access.secret_of, os.urandom(RANDOM_BYTES))

    def came(self, stranger: _Stranger) -> None:
        """Add a new stranger, in place of the oldest if there are too many."""
        if len(self._strangers) >= STRANGERS_MAX:
            next(iter(self._strangers)).close("others came")
        assert len(self._strangers) < STRANGERS_MAX, "a closed connection has left"
        self._strangers[stranger] = None

    def went(self, stranger: _Stranger) -> None:
        """Remove a stranger that has proved its identity or has left."""
        self._strangers.pop(stranger, None)

    def let_in(self, transport: asyncio.Transport, demand: ProofDemand) -> None:
        """Admit a peer that has met its demand."""
        assert demand.is_met
        self._forget_closed()
        self._inside_by[transport] = demand
        _hand_over(transport, self._inside(), demand.rest)

    def say(self, address: str, why: str) -> None:
        """Log a refused peer and the reason, once for each host."""
        host = address.rpartition(":")[0]
        if host not in self._said and len(self._said) < STRANGERS_MAX:
            self._said.add(host)
            log.error(
                "slave is refused: it must prove its identity, unless haAllowUnauthenticated=true",
                extra={"address": address, "reason": why},
            )


class _Stranger(asyncio.Protocol):
    """A connection that has not proved its identity yet."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._demand = gate.demand()
        self._transport: asyncio.Transport | None = None
        self._address = ""
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a proof."""
        self._transport = cast(asyncio.Transport, transport)
        self._address, _ = remote_of(transport.get_extra_info("peername"))
        loop = asyncio.get_running_loop()
        self._late = loop.call_later(PROOF_SECONDS_MAX, self.close, "it takes too long")
        self._gate.came(self)

    def data_received(self, data: bytes) -> None:
        """Check the received bytes."""
        transport = self._transport
        if transport is None:
            return
        try:
            transport.write(self._demand.receive(data))
        except RemoteProtocolError as error:
            self.close(str(error))
            return
        if self._demand.is_met:
            self._leave()
            self._gate.let_in(transport, self._demand)

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the connection."""
        self._leave()

    def _leave(self) -> None:
        self._transport = None
        if self._late is not None:
            self._late.cancel()
        self._gate.went(self)

    def close(self, why: str) -> None:
        """Close the connection, and log the reason."""
        transport = self._transport
        self._leave()
        if transport is not None:
            self._gate.say(self._address, why)
            transport.abort()
