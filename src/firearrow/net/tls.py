"""TLS for clients, at the same port as plain text.

The first byte tells: a TLS handshake begins with the byte 0x16, which no frame within the size limit does. So the frame
reader finds it where it refuses a frame (``wire.frame``), and plain connections pay nothing. A server that requires TLS
(``enforcing``) begins each connection with a reader that takes no frame at all.

From then on a `Pipe` stands between the socket and the peer: to the socket it is the protocol, to the peer the
transport. It is built on ``ssl.SSLObject``, since ``loop.start_tls`` takes no bytes that were read already. All bytes
of a read are decrypted and handed on at once. So only the peer holds data, and the limits of all peers apply.

Source: RocketMQ's ``NettyRemotingServer.TlsModeHandler``, ``TlsHelper``.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol, cast

from firearrow.config.table import keys as keys_of
from firearrow.config.tls import TlsKeys
from firearrow.errors import ConfigError
from firearrow.logs import Log
from firearrow.net.access import Access
from firearrow.net.encryption import Tls, choose, load_chain
from firearrow.net.selfsigned import self_signed
from firearrow.wire.signature import Credentials

log: Final = Log(__name__)

TLS_HELLO: Final = b"\x16"
HANDSHAKE_SECONDS_MAX: Final = 10.0
HANDSHAKE_BYTES: Final = 48 * 1024  # memory of a handshake, which counts in the budget of the server
HANDSHAKES_MAX: Final = 512  # in progress; beyond it, the oldest makes room for a new one
TURN_HANDSHAKES: Final = 4  # continued in one turn; each takes 1 ms, with a large key 5
LOOK_SECONDS: Final = 1.0  # between two looks at the files, while clients connect
SAY_SECONDS: Final = 60.0  # between two log lines about clients that can't be served
READ_BYTES: Final = 64 * 1024

_NEEDS: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}


def access_of(keys: TlsKeys, credentials: Credentials | None = None) -> Access:
    """Return the access of a server as a client of others, signed if it has credentials; ConfigError if a file can't be
    used.

    A server that requires TLS from its clients uses it for its own calls, too (as RocketMQ).
    """
    if not (keys.tls_enable or keys.use_tls or keys.tls_server_mode == "enforcing"):
        return Access(credentials)
    tls = Tls(
        keys.tls_client_trust_cert_path or None,
        keys.tls_client_cert_path or None,
        keys.tls_client_key_path or None,
        keys.tls_client_key_password or None,
        verify=keys.tls_client_auth_server,
        protocols=keys.tls_protocols,
        ciphers=keys.tls_ciphers,
    )
    tls.context()
    return Access(credentials, tls)


class TlsContexts:
    """Certificates for clients: from the present files, or from their last valid contents."""

    def __init__(self, keys: TlsKeys) -> None:
        self._keys = keys
        self._paths = [
            Path(name)
            for name in (keys.tls_server_cert_path, keys.tls_server_key_path, keys.tls_server_trust_cert_path)
            if name
        ]
        self._own = "" if keys.tls_server_cert_path else self_signed()
        if self._own:
            key = next(name for name, key in keys_of(type(keys)).items() if key.field == "tls_test_mode_enable")
            log.warning("certificate is made for this run only: clients can't verify it", extra={"key": key})
        self._seen = self._states()
        self._looked = 0.0
        self._context = self._read()

    def current(self, now: float) -> ssl.SSLContext:
        """Return the present context; ``now`` is a time in seconds, which limits the looks at the files."""
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            seen = self._states()
            if seen != self._seen:
                self._seen = seen
                try:
                    self._context = self._read()
                except ConfigError as error:
                    log.error("certificate is not read again", extra={"error": error})
                else:
                    log.info("certificate is read again", extra={"path": str(self._paths[0])})
        return self._context

    def lasting(self, now: Callable[[], float]) -> ssl.SSLContext:
        """Return a context for a server that keeps it: each handshake uses the present files."""
        context = self._read()

        def choose_present(tls: ssl.SSLObject | ssl.SSLSocket, _: object, __: object) -> None:
            tls.context = self.current(now())

        context.sni_callback = choose_present
        return context

    def _states(self) -> list[tuple[int, int, int] | None]:
        return [_state(path) for path in self._paths]

    def _read(self) -> ssl.SSLContext:
        keys = self._keys
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        choose(context, keys.tls_protocols, keys.tls_ciphers)
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["h2"])  # clients of gRPC insist on it, remoting's name none
        files = keys.tls_server_cert_path
        try:
            if self._own:
                _load_own(context, self._own)
            else:
                key, password = keys.tls_server_key_path, keys.tls_server_key_password
                load_chain(context, files, key or None, password or None)
            if keys.tls_server_need_client_auth != "none":
                files = keys.tls_server_trust_cert_path
                context.load_verify_locations(files)
                context.verify_mode = _NEEDS[keys.tls_server_need_client_auth]
        except (OSError, ValueError) as error:  # ssl.SSLError is one
            raise ConfigError(f"TLS certificate {files}: {error}") from None
        return context


def _load_own(context: ssl.SSLContext, pem: str) -> None:
    """Load a certificate that is in no file, by a temporary file that only the server's user can read."""
    with tempfile.NamedTemporaryFile("w", prefix="firearrow-", suffix=".pem") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class Encrypted(Protocol):
    """Peer as this module sees it."""

    address: str

    def keep(self, size: int) -> None:
        """Count bytes kept for it, or (below 0) released."""
        ...

    def encrypt(self, transport: Pipe) -> None:
        """Switch to another transport, with a new frame."""
        ...

    def data_received(self, data: bytes) -> None:
        """Take received bytes."""
        ...

    def eof_received(self) -> bool:
        """Note the end of its data; return True if the connection stays open."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection."""
        ...

    def pause_writing(self) -> None:
        """Pause: too many bytes are unsent."""
        ...

    def resume_writing(self) -> None:
        """Go on: the bytes were sent."""
        ...

    def leave(self) -> None:
        """Close."""
        ...


class Door:
    """Door for connections that encrypt, closed to those that don't but must; without keys all are plain.

    With ``makes_late``, a certificate for this run is made when the first client needs it.
    """

    def __init__(
        self, keys: TlsKeys | None, loop: Callable[[], asyncio.AbstractEventLoop], *, makes_late: bool = False
    ) -> None:
        mode = "disabled" if keys is None else keys.tls_server_mode
        self.is_closed: Final = mode == "enforcing"
        """True if no frame is taken before a handshake."""
        self._loop = loop
        self._mode = mode
        certificate = keys and (keys.tls_server_cert_path or keys.tls_test_mode_enable)
        self._keys = keys if certificate and mode != "disabled" else None
        self._contexts: TlsContexts | None = None
        if self._keys is not None and not (makes_late and not self._keys.tls_server_cert_path):
            self._contexts = TlsContexts(self._keys)
        self._unsaid = 0
        self._say_again_at = 0.0
        self.under_way: dict[Pipe, None] = {}
        """Handshakes in progress, in the order in which they began."""
        self._ready: dict[Pipe, None] = {}

    def takes(self, peer: Encrypted, transport: asyncio.Transport | None, hello: bytes) -> bool:
        """Encrypt a connection that has begun with ``hello``, or log the reason against it and close it.

        False if ``hello`` has nothing to do with TLS.
        """
        if transport is None or isinstance(transport, Pipe) or not (hello or self.is_closed):
            return False
        if not hello:
            self.refuse(peer, "it does not encrypt, and tls.server.mode is enforcing")
        elif self._keys is None:
            why = "tls.server.mode is disabled"
            if self._mode == "permissive":
                why = "there is no certificate (tls.server.certPath)"
            self.refuse(peer, f"it begins TLS, and {why}")
        else:
            if len(self.under_way) >= HANDSHAKES_MAX:
                next(iter(self.under_way)).give_up(f"more than {HANDSHAKES_MAX} handshakes")
            if self._contexts is None:
                self._contexts = TlsContexts(self._keys)
            context = self._contexts.current(self._loop().time())
            Pipe(self, peer, transport, context, self._loop()).begin(hello)
        return True

    def plan(self, pipe: Pipe) -> None:
        """Continue a handshake in a turn of the loop that has time for it."""
        if not self._ready:
            self._loop().call_soon(self._go_on)
        self._ready[pipe] = None

    def _go_on(self) -> None:
        for pipe in list(islice(self._ready, TURN_HANDSHAKES)):
            del self._ready[pipe]
            pipe.go_on()
        if self._ready:
            self._loop().call_soon(self._go_on)

    def refuse(self, peer: Encrypted, why: str) -> None:
        """Close a connection; log the reason, with a limit on the lines."""
        self.say(peer.address, why)
        peer.leave()

    def say(self, address: str, why: str) -> None:
        """Log the reason why a client is not served, once a minute at most."""
        self._unsaid += 1
        now = self._loop().time()
        if now >= self._say_again_at:
            self._say_again_at = now + SAY_SECONDS
            log.warning("connection is closed: TLS", extra={"address": address, "reason": why, "count": self._unsaid})
            self._unsaid = 0


class Pipe(asyncio.Transport, asyncio.Protocol):
    """Decrypts bytes of a socket for a peer, and encrypts the peer's bytes."""

    def __init__(
        self,
        door: Door,
        peer: Encrypted,
        transport: asyncio.Transport,
        context: ssl.SSLContext,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._door = door
        self._peer = peer
        self._transport = transport
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_open = False
        self._has_ended = False
        why = f"no handshake within {HANDSHAKE_SECONDS_MAX:g} s"
        self._time_is_over = loop.call_later(HANDSHAKE_SECONDS_MAX, self.give_up, why)

    def begin(self, hello: bytes) -> None:
        """Replace the peer at the socket, and the socket at the peer."""
        self._peer.keep(HANDSHAKE_BYTES)
        self._door.under_way[self] = None
        self._transport.set_protocol(self)
        self._peer.encrypt(self)
        self.data_received(hello)

    # --- to the socket ---

    def data_received(self, data: bytes) -> None:
        """Decrypt received bytes, and hand them on in one piece (called by asyncio)."""
        if self._has_ended:
            return
        self._incoming.write(data)
        if self._is_open:
            self._hand_on()
        else:
            self._transport.pause_reading()
            self._door.plan(self)

    def go_on(self) -> None:
        """Continue the handshake (called by the door)."""
        if self._has_ended:
            return
        self._transport.resume_reading()
        if self._shake_hands():
            self._hand_on()

    def _hand_on(self) -> None:
        pieces: list[bytes] = []
        failure, is_last = self._read(pieces)
        if pieces:
            self._peer.data_received(b"".join(pieces))
        self._flush()
        if failure is not None:
            self._door.say(self._peer.address, failure)
            self._end()
            self._transport.abort()
        elif is_last:
            self._has_ended = True
            if not self._peer.eof_received():
                self.close()

    def _shake_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._flush()  # it sends the alert
            self._door.say(self._peer.address, f"the handshake failed: {_words(error)}")
            self._end()
            self._transport.close()
            return False
        self._is_open = True
        self._is_over()
        self._flush()
        return True

    def _is_over(self) -> None:
        """End the handshake, successful or not."""
        self._time_is_over.cancel()
        if self in self._door.under_way:
            del self._door.under_way[self]
            self._peer.keep(-HANDSHAKE_BYTES)

    def _read(self, pieces: list[bytes]) -> tuple[str | None, bool]:
        """Decrypt all received bytes; return the error, and whether the data has ended."""
        try:
            while piece := self._tls.read(READ_BYTES):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            return None, False
        except ssl.SSLZeroReturnError:
            return None, True
        except ssl.SSLError as error:
            return f"its data can't be decrypted: {_words(error)}", True
        return None, True

    def give_up(self, why: str) -> None:
        """Close a connection with an unfinished handshake."""
        self._door.say(self._peer.address, why)
        self._end()
        self._transport.abort()

    def _end(self) -> None:
        self._has_ended = True
        self._is_over()

    def _flush(self) -> None:
        if self._outgoing.pending and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())

    def eof_received(self) -> bool:
        """Note the end of the data (called by asyncio)."""
        return self._is_open and not self._has_ended and self._peer.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection (called by asyncio)."""
        self._end()
        self._peer.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pause: too many bytes are unsent (called by asyncio)."""
        self._peer.pause_writing()

    def resume_writing(self) -> None:
        """Go on: the bytes were sent (called by asyncio)."""
        self._peer.resume_writing()

    # --- to the peer, as a transport ---

    def write(self, data: Any) -> None:
        """Encrypt and send; nothing is sent before the end of the handshake, or behind the end of the data."""
        if self._is_open and not self._transport.is_closing():
            self._tls.write(data)
            self._flush()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Give the connection to another peer."""
        self._peer = cast(Encrypted, protocol)

    def writelines(self, list_of_data: Any) -> None:
        """Write several pieces."""
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Send the end of the data, and close when everything has left."""
        if self._is_open and not self._transport.is_closing():
            with suppress(ssl.SSLError):  # the other side has not closed yet: waiting for it has no use
                self._tls.unwrap()
            self._flush()
        self._end()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._end()
        self._transport.abort()

    def is_closing(self) -> bool:
        """Tell whether the connection is being closed."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Read nothing more for now."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the limits on unsent bytes."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Count of unsent bytes."""
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Facts of the connection; ``ssl_object`` is that of its encryption."""
        if name == "ssl_object":
            return self._tls
        return self._transport.get_extra_info(name, default)


def _words(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
