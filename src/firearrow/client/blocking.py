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

from firearrow.client.pop import simpleconsumer as _simple
from firearrow.client.producer import producer as _producer
from firearrow.client.pull import pullconsumer as _pull
from firearrow.client.push import pushconsumer as _push
from firearrow.client.queues import Queue
from firearrow.client.session import session as _session
from firearrow.client.session.portal import A, Blocking, at_once, entered, waiting


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


class Consumer(Blocking[A]):
    """Methods that all consumers share."""

    def stop(self) -> None:
        """Stop; see ``close``."""
        self.close()


class PushConsumer(Consumer[_push.PushConsumer]):
    """See `firearrow.client.PushConsumer`; handlers are plain functions here."""

    kind = _push.PushConsumer

    on = at_once(_push.PushConsumer.on)
    subscribe = at_once(_push.PushConsumer.subscribe)
    pause = at_once(_push.PushConsumer.pause)
    resume = at_once(_push.PushConsumer.resume)
    queues = at_once(_push.PushConsumer.queues)

    def run(self) -> None:
        """Start unless started already, and consume until an interrupt, or until another thread calls ``stop``."""
        if not self.is_open:
            self.start()
        try:
            self.portal.run(self.inner.run())
        finally:
            self.close()


class PullConsumer(Consumer[_pull.PullConsumer]):
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


class SimpleConsumer(Consumer[_simple.SimpleConsumer]):
    """See `firearrow.client.SimpleConsumer`."""

    kind = _simple.SimpleConsumer

    subscribe = waiting(_simple.SimpleConsumer.subscribe)
    unsubscribe = waiting(_simple.SimpleConsumer.unsubscribe)
    places = waiting(_simple.SimpleConsumer.places)
    receive = waiting(_simple.SimpleConsumer.receive)
    ack = waiting(_simple.SimpleConsumer.ack)
    ack_all = waiting(_simple.SimpleConsumer.ack_all)
    change_invisible = waiting(_simple.SimpleConsumer.change_invisible)
