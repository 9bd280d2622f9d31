"""Transport for kombu, and so for Celery: queues are topics, consumed by POP.

::

    import firearrow.integrations.kombu  # makes kombu know rocketmq://

    app = Celery("shop", broker="rocketmq://127.0.0.1:9876")

Without the import, ``broker_transport = "firearrow.integrations.kombu:Transport"``. The user, the password and the path
of the URL are access key, secret key and namespace. The options are all optional; they are ``transport_options`` or
Celery's ``broker_transport_options``:

======================= ========== ==============================================================
option                  default    meaning
======================= ========== ==============================================================
``name_servers``        the URL's  all of them, ``host:port;host:port``
``visibility_timeout``  60         seconds until another worker gets the messages of a dead one
``queue_name_prefix``              prefix of the names of topics and groups
``queues``              1          RocketMQ queues of a new topic, on each broker
======================= ========== ==============================================================

An unacknowledged message stays with its worker while the worker lives. So tasks may take longer than the
``visibility_timeout``, or wait longer for their ETA. A queue that is declared with ``max_priority`` delivers higher
priorities first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import timedelta
from queue import Empty
from typing import Any, ClassVar, Final

from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.transport.base import Implements, to_rabbitmq_queue_arguments
from kombu.utils.json import dumps, loads

import firearrow
from firearrow.client.pop.renewal import LeasedMessage
from firearrow.client.session.portal import Blocking, waiting
from firearrow.clock import SystemClock
from firearrow.errors import BrokerError, ClientError, MessageError, ProtocolError
from firearrow.integrations.queues import Binding, Queues
from firearrow.wire.signature import Credentials

PORT: Final = 9876
VISIBLE_SECONDS: Final = 60.0
AT_ONCE: Final = 32  # messages, for a channel without a prefetch count
TURN_SECONDS: Final = 60.0  # for a wait without a timeout
CLOCK: Final = SystemClock()

TRANSPORT_ALIASES["rocketmq"] = f"{__name__}:Transport"


class BlockingQueues(Blocking[Queues]):
    """Blocking form of `Queues`."""

    kind: ClassVar[Callable[..., Any]] = Queues

    declare: Final = waiting(Queues.declare)
    exists: Final = waiting(Queues.exists)
    size: Final = waiting(Queues.size)
    purge: Final = waiting(Queues.purge)
    delete: Final = waiting(Queues.delete)
    put: Final = waiting(Queues.put)
    join: Final = waiting(Queues.join)
    get: Final = waiting(Queues.get)
    receive: Final = waiting(Queues.receive)
    ack: Final = waiting(Queues.ack)
    give_back: Final = waiting(Queues.give_back)
    bind: Final = waiting(Queues.bind)
    unbind: Final = waiting(Queues.unbind)
    bindings: Final = waiting(Queues.bindings)


class QoS(virtual.QoS):
    """Deliveries of a channel; each end is reported to the broker."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message."""
        super().ack(delivery_tag)  # first, so that a waiting thread finds room when it wakes
        self.channel.settle(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Acknowledge a message, or requeue it at once."""
        if requeue:
            self.channel._restore_at_beginning(self.get(delivery_tag))
        else:
            self.ack(delivery_tag)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Give back the unacknowledged messages; they are redelivered soon."""
        self._on_collect.cancel()
        self._flush()
        self._delivered.clear()
        self.channel.give_back()


class Channel(virtual.Channel):
    """Channel of a connection; all channels have the same queues."""

    QoS = QoS
    supports_fanout = True

    def __init__(self, connection: Transport, **options: Any) -> None:
        self._held: dict[str, LeasedMessage] = {}
        self._unacknowledged: set[str] = set()
        self._auto_deleted: set[str] = set()
        super().__init__(connection, **options)

    @property
    def queues(self) -> BlockingQueues:
        """Queues of the connection."""
        queues: BlockingQueues = self.connection.queues
        return queues

    # --- queues ---

    def _new_queue(self, queue: str, auto_delete: bool = False, **options: Any) -> None:
        arguments = options.get("arguments") or {}
        self.queues.declare(queue, arguments.get("x-max-priority"))
        if auto_delete:
            self._auto_deleted.add(queue)

    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> Any:
        """Arguments of a queue's declaration, by RabbitMQ's names."""
        return to_rabbitmq_queue_arguments(arguments, **options)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return self.queues.exists(queue)

    def _size(self, queue: str) -> int:
        return self.queues.size(queue)

    def _purge(self, queue: str) -> int:
        return self.queues.purge(queue)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> None:
        """Delete a queue, its messages and its bindings."""
        if if_empty and self._size(queue):
            return
        self.queues.delete(queue, if_unused=if_unused)
        self.state.queue_bindings_delete(queue)

    # --- bindings, stored at the name servers, since other processes bind, too ---

    def get_table(self, exchange: str) -> list[tuple[str, str | None, str]]:
        """Bindings of an exchange."""
        return [(it.routing_key, it.pattern, it.queue) for it in self.queues.bindings() if it.exchange == exchange]

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        self.queues.bind(Binding(exchange, routing_key, pattern, queue))

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **_: Any
    ) -> None:
        """Remove a binding of a queue to an exchange."""
        name = exchange or "amq.direct"
        self.state.binding_delete(queue, name, routing_key)
        _, pattern, _ = self.typeof(name).prepare_bind(queue, name, routing_key, arguments)
        self.queues.unbind(Binding(name, routing_key, pattern, queue))

    # --- messages ---

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        headers = message.get("headers") or {}
        priority = self._get_message_priority(message)
        body = dumps(message).encode()
        self.queues.put(queue, body, priority, headers.get("id"), headers.get("task"))

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **options: Any) -> None:
        for queue in sorted({queue for _, _, queue in self.get_table(exchange)}):
            self._put(queue, message, **options)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        while (held := self.queues.get(queue)) is not None:
            if (payload := self.payload_of(queue, held)) is not None:
                return payload
        raise Empty

    def payload_of(self, queue: str, held: LeasedMessage) -> dict[str, Any] | None:
        """Payload for kombu's `Message`; None if it has expired. Its delivery tag is unique: copies in other queues and
        redeliveries get other tags."""
        payload: dict[str, Any] = loads(held.message.body)
        properties = payload["properties"]
        if _is_expired(properties.get("expiration"), held):
            self.queues.ack(held)
            return None
        tag = properties["delivery_tag"] = self._next_delivery_tag()
        properties["delivery_info"] |= {
            "queue": queue,
            "redelivered": bool(payload.get("redelivered") or held.message.reconsume_times),
        }
        self._held[tag] = held
        if queue in self._unacknowledged:
            self.settle(tag)
        return payload

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[..., Any], consumer_tag: str, **_: Any
    ) -> None:
        """Consume a queue; with ``no_ack`` its messages are acknowledged on delivery."""
        self.queues.join(queue)
        (self._unacknowledged.add if no_ack else self._unacknowledged.discard)(queue)
        super().basic_consume(queue, no_ack, callback, consumer_tag)

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        """Message that exists now, or None."""
        message = super().basic_get(queue, no_ack, **options)
        if message is not None and no_ack:
            self.settle(message.delivery_tag)
        return message

    def settle(self, delivery_tag: str) -> None:
        """Acknowledge a message, unless that is done already."""
        held = self._held.pop(delivery_tag, None)
        if held is not None:
            self.queues.ack(held)

    def give_back(self) -> None:
        """Redeliver the unacknowledged messages."""
        held, self._held = self._held, {}
        if held and self.connection is not None and self.connection.is_ours:
            self.queues.give_back(list(held.values()))

    def _restore(self, message: Any) -> None:
        """Put a copy into the queue of a message and acknowledge the message: the copy arrives at once, without a round
        trip of redelivery."""
        payload = {**message.serializable(), "redelivered": True}
        self._put(message.delivery_info["queue"], payload)
        self.qos.ack(message.delivery_tag)

    def close(self) -> None:
        """Give back the unacknowledged messages. Delete auto-delete queues, unless others use them."""
        consumed = self._auto_deleted & set(self._active_queues)
        if consumed and self.connection is not None and self.connection.is_ours:
            self.give_back()
            for queue in consumed:
                self.queue_delete(queue, if_unused=True)
        super().close()


class Transport(virtual.Transport):
    """Connection to a RocketMQ cluster."""

    Channel = Channel
    default_port = PORT
    driver_type = "rocketmq"
    driver_name = "firearrow"
    connection_errors: ClassVar[tuple[type[BaseException], ...]] = (
        *virtual.Transport.connection_errors,
        OSError,
        ClientError,
        ProtocolError,
    )
    channel_errors: ClassVar[tuple[type[BaseException], ...]] = (
        *virtual.Transport.channel_errors,
        BrokerError,
        MessageError,
    )
    implements: ClassVar[Implements] = virtual.Transport.implements.extend(
        exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self._arrived: deque[tuple[str, LeasedMessage]] = deque()
        self.queues: Final = BlockingQueues(_name_servers(client), **_options_of(client))

    @property
    def is_ours(self) -> bool:
        """Tell whether this process has opened it: after a fork, the child's copy is not usable."""
        return self.queues.is_open and self.queues.portal.is_here

    def driver_version(self) -> str:
        """Version of Firearrow."""
        return firearrow.__version__

    def establish_connection(self) -> Transport:
        """Connect. Raises OSError if no name server answers."""
        if not self.queues.is_open:
            self.queues.start()
        super().establish_connection()
        return self

    def close_connection(self, connection: Any) -> None:
        """Give back the unacknowledged messages, and close."""
        if self.is_ours:
            self.queues.give_back([held for _, held in self._arrived])
            super().close_connection(connection)
            self.queues.close()
        self._arrived.clear()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver received messages, at least one. Raises TimeoutError if none arrives in time."""
        ends = None if timeout is None else CLOCK.monotonic() + timeout
        while not self._deliver_arrived():
            left = TURN_SECONDS if ends is None else ends - CLOCK.monotonic()
            self._arrived += self.queues.receive(self._wanted(), max(left, 0))
            if ends is not None and not self._arrived and CLOCK.monotonic() >= ends:
                raise TimeoutError

    def _wanted(self) -> dict[str, int]:
        """Count of messages to receive, by queue."""
        wanted: dict[str, int] = {}
        for channel in self.channels:
            room = AT_ONCE
            if channel.qos.prefetch_count:
                room = channel.qos.can_consume_max_estimate()
            waiting_here = sum(queue in channel._active_queues for queue, _ in self._arrived)
            if channel.qos.can_consume() and room > waiting_here:
                wanted |= dict.fromkeys(channel._active_queues, room - waiting_here)
        return wanted

    def _deliver_arrived(self) -> int:
        """Deliver the messages that channels have room for; returns their count."""
        consuming = {queue: channel for channel in self.channels for queue in channel._active_queues}
        delivered, waiting_still = 0, []
        try:
            while self._arrived:
                queue, held = self._arrived.popleft()
                channel = consuming.get(queue)
                if channel is None:
                    self.queues.give_back([held])
                elif not channel.qos.can_consume():
                    waiting_still.append((queue, held))
                elif (payload := channel.payload_of(queue, held)) is not None:
                    self._deliver(payload, queue)
                    delivered += 1
        finally:  # a callback may raise
            self._arrived.extendleft(reversed(waiting_still))
        return delivered


def _name_servers(client: Any) -> str:
    named = client.transport_options.get("name_servers")
    if named is not None:
        return str(named) if isinstance(named, str) else ";".join(named)
    return f"{client.hostname or '127.0.0.1'}:{client.port or PORT}"


def _options_of(client: Any) -> dict[str, Any]:
    given = client.transport_options
    options: dict[str, Any] = {
        "invisible": timedelta(seconds=given.get("visibility_timeout", VISIBLE_SECONDS)),
        "prefix": given.get("queue_name_prefix", ""),
        "queues": given.get("queues", 1),
        "tls": bool(client.ssl),
        "namespace": (client.virtual_host or "").strip("/"),
    }
    if client.userid:
        options["credentials"] = Credentials(client.userid, client.password or "")
    return options


def _is_expired(expiration: str | None, held: LeasedMessage) -> bool:
    if expiration is None:
        return False
    return CLOCK.now_ms() >= held.message.view.born_timestamp_ms + int(expiration)
