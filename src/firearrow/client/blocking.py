"""Client for code without an event loop: the same names and arguments, without ``await``.

::

    with Producer("127.0.0.1:9876", group="shop") as producer:
        receipt = producer.send("orders", b"...", key="o-17", tag="paid")

    consumer = PushConsumer("127.0.0.1:9876", group="billing")
    @consumer.on("orders", tags="paid || refunded")
    def bill(message: Message) -> None: ...  # in another thread; if it raises, a redelivery
    consumer.run()

Any thread may use these classes. A call costs about 0.1 ms more than with asyncio. Functions of the application
(``check``, handlers) are plain ones and run in other threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, Unpack

from firearrow.client.consumer.handlers import Handler
from firearrow.client.consumer.stopsignals import stopped_by_signals
from firearrow.client.consumer.subscribing import SubscribeOptions, Subscribing
from firearrow.client.pop import simpleconsumer as _simple
from firearrow.client.producer import producer as _producer
from firearrow.client.pull import pullconsumer as _pull
from firearrow.client.push import pushconsumer as _push
from firearrow.client.queues import Queue
from firearrow.client.session import session as _session
from firearrow.client.session.portal import Blocking, at_once, entered, waiting


class Session(Blocking[_session.Session]):
    """Client of a cluster that producers and consumers share: its connections, routes and heartbeats.

    The asyncio `firearrow.client.Session` takes the same arguments: the addresses of the name servers
    (``host:port;host:port``), ``credentials``, ``tls``, ``namespace`` and so on.
    """

    kind: ClassVar[Callable[..., Any]] = _session.Session


class Producer(Blocking[_producer.Producer]):
    """Producer of a group, whose methods wait for the brokers; any thread may call them.

    The asyncio `firearrow.client.Producer` takes the same arguments: the addresses of the name servers or a
    `Session`, ``group``, ``retries``, ``timeout_seconds``, ``compression`` and so on. ``check`` is a plain function,
    which decides open transactions in another thread.
    """

    kind: ClassVar[Callable[..., Any]] = _producer.Producer

    send: Final = waiting(_producer.Producer.send)
    send_oneway: Final = waiting(_producer.Producer.send_oneway)
    send_batch: Final = waiting(_producer.Producer.send_batch)
    queues: Final = waiting(_producer.Producer.queues)
    transaction: Final = entered(_producer.Producer.transaction)
    request: Final = waiting(_producer.Producer.request)
    reply: Final = waiting(_producer.Producer.reply)
    recall: Final = waiting(_producer.Producer.recall)


class PushConsumer(Subscribing, Blocking[_push.PushConsumer]):
    """Member of a consumer group, which calls plain functions in other threads for messages as they arrive.

    The asyncio `firearrow.client.PushConsumer` takes the same arguments: the addresses of the name servers or a
    `Session`, ``group``, ``start`` (a new group gets all stored messages by default), ``ordered``, ``broadcasting``,
    ``max_reconsume_times``, ``drain`` and so on.
    """

    kind: ClassVar[Callable[..., Any]] = _push.PushConsumer

    pause: Final = at_once(_push.PushConsumer.pause)
    resume: Final = at_once(_push.PushConsumer.resume)

    def _subscribe(
        self, topic: str, handler: Handler, *, kind: Any, batch: int, manual: bool, **options: Unpack[SubscribeOptions]
    ) -> None:
        self.inner._subscribe(topic, handler, kind=kind, batch=batch, manual=manual, **options)

    def run(self, *, signals: bool = True) -> None:
        """Start unless started already, consume until ``stop`` is called or SIGTERM or SIGINT arrives; then close.

        In the main thread it takes both signals from the program until it returns: the first one stops all consumers
        that run, a second one ends the process at once. In another thread, and with ``signals=False``, it takes none.
        """
        with stopped_by_signals(self.stop, wanted=signals):
            if not self.is_open:
                self.start()
            try:
                self.portal.run(self.inner.run(signals=False))
            finally:
                self.close()

    @property
    def queues(self) -> dict[str, list[tuple[str, int]]]:
        """Queues of this consumer now: broker and queue id, by topic."""
        return self.inner.queues

    def stop(self) -> None:
        """Make ``run`` close the consumer and return; any thread may call it, also a handler."""
        self.inner.stop()


class PullConsumer(Blocking[_pull.PullConsumer]):
    """Consumer that polls: the application chooses the time, the queues and the offset.

    The asyncio `firearrow.client.PullConsumer` takes the same arguments: the addresses of the name servers or a
    `Session`, ``group``, ``start`` (a new group gets all stored messages by default), ``auto_commit`` and so on.
    """

    kind: ClassVar[Callable[..., Any]] = _pull.PullConsumer

    subscribe: Final = waiting(_pull.PullConsumer.subscribe)
    unsubscribe: Final = waiting(_pull.PullConsumer.unsubscribe)
    assign: Final = at_once(_pull.PullConsumer.assign)
    queues: Final = waiting(_pull.PullConsumer.queues)
    pause: Final = at_once(_pull.PullConsumer.pause)
    resume: Final = at_once(_pull.PullConsumer.resume)
    poll: Final = waiting(_pull.PullConsumer.poll)
    commit: Final = waiting(_pull.PullConsumer.commit)
    committed: Final = waiting(_pull.PullConsumer.committed)
    position: Final = at_once(_pull.PullConsumer.position)
    seek: Final = waiting(_pull.PullConsumer.seek)
    seek_to_begin: Final = waiting(_pull.PullConsumer.seek_to_begin)
    seek_to_end: Final = waiting(_pull.PullConsumer.seek_to_end)
    seek_to_time: Final = waiting(_pull.PullConsumer.seek_to_time)
    offset_at: Final = waiting(_pull.PullConsumer.offset_at)

    @property
    def assigned(self) -> list[Queue]:
        """Queues that are polled now."""
        return self.inner.assigned


class SimpleConsumer(Blocking[_simple.SimpleConsumer]):
    """Member of a group that receives messages on request and acknowledges each.

    The asyncio `firearrow.client.SimpleConsumer` takes the same arguments: the addresses of the name servers or a
    `Session`, ``group``, ``topics`` (names, or names with expressions such as ``A || B``) and ``start``.
    """

    kind: ClassVar[Callable[..., Any]] = _simple.SimpleConsumer

    subscribe: Final = waiting(_simple.SimpleConsumer.subscribe)
    unsubscribe: Final = waiting(_simple.SimpleConsumer.unsubscribe)
    places: Final = waiting(_simple.SimpleConsumer.places)
    receive: Final = waiting(_simple.SimpleConsumer.receive)
    ack: Final = waiting(_simple.SimpleConsumer.ack)
    ack_all: Final = waiting(_simple.SimpleConsumer.ack_all)
    change_invisible: Final = waiting(_simple.SimpleConsumer.change_invisible)
