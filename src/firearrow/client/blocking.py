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

from firearrow.client.consumer.stopsignals import stopped_by_signals
from firearrow.client.pop import simpleconsumer as _simple
from firearrow.client.producer import producer as _producer
from firearrow.client.pull import pullconsumer as _pull
from firearrow.client.push import pushconsumer as _push
from firearrow.client.queues import Queue
from firearrow.client.session import session as _session
from firearrow.client.session.portal import Blocking, at_once, entered, waiting


class Session(Blocking[_session.Session]):
    """See `firearrow.client.Session`."""

    kind = _session.Session


class Producer(Blocking[_producer.Producer]):
    """See `firearrow.client.Producer`; ``check`` is a plain function here."""

    kind = _producer.Producer

    send = waiting(_producer.Producer.send)
    send_oneway = waiting(_producer.Producer.send_oneway)
    send_batch = waiting(_producer.Producer.send_batch)
    queues = waiting(_producer.Producer.queues)
    transaction = entered(_producer.Producer.transaction)
    request = waiting(_producer.Producer.request)
    reply = waiting(_producer.Producer.reply)
    recall = waiting(_producer.Producer.recall)


class PushConsumer(Blocking[_push.PushConsumer]):
    """See `firearrow.client.PushConsumer`; handlers are plain functions here."""

    kind = _push.PushConsumer

    on = at_once(_push.PushConsumer.on)
    subscribe = at_once(_push.PushConsumer.subscribe)
    pause = at_once(_push.PushConsumer.pause)
    resume = at_once(_push.PushConsumer.resume)
    queues = at_once(_push.PushConsumer.queues)

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

    def stop(self) -> None:
        """Make ``run`` close the consumer and return; any thread may call it, also a handler."""
        self.inner.stop()


class PullConsumer(Blocking[_pull.PullConsumer]):
    """See `firearrow.client.PullConsumer`."""

    kind = _pull.PullConsumer

    subscribe = waiting(_pull.PullConsumer.subscribe)
    unsubscribe = waiting(_pull.PullConsumer.unsubscribe)
    assign = at_once(_pull.PullConsumer.assign)
    queues = waiting(_pull.PullConsumer.queues)
    pause = at_once(_pull.PullConsumer.pause)
    resume = at_once(_pull.PullConsumer.resume)
    poll = waiting(_pull.PullConsumer.poll)
    commit = waiting(_pull.PullConsumer.commit)
    committed = waiting(_pull.PullConsumer.committed)
    position = at_once(_pull.PullConsumer.position)
    seek = waiting(_pull.PullConsumer.seek)
    seek_to_begin = waiting(_pull.PullConsumer.seek_to_begin)
    seek_to_end = waiting(_pull.PullConsumer.seek_to_end)
    seek_to_time = waiting(_pull.PullConsumer.seek_to_time)
    offset_at = waiting(_pull.PullConsumer.offset_at)

    @property
    def assigned(self) -> list[Queue]:
        """Queues that are polled now."""
        return self.inner.assigned


class SimpleConsumer(Blocking[_simple.SimpleConsumer]):
    """See `firearrow.client.SimpleConsumer`."""

    kind = _simple.SimpleConsumer

    subscribe = waiting(_simple.SimpleConsumer.subscribe)
    unsubscribe = waiting(_simple.SimpleConsumer.unsubscribe)
    places = waiting(_simple.SimpleConsumer.places)
    receive = waiting(_simple.SimpleConsumer.receive)
    ack = waiting(_simple.SimpleConsumer.ack)
    ack_all = waiting(_simple.SimpleConsumer.ack_all)
    change_invisible = waiting(_simple.SimpleConsumer.change_invisible)
