"""Sends: single messages, batches, replies, and messages that consumers send back."""

from __future__ import annotations

from collections.abc import Sequence

from firearrow.broker.context import BrokerContext
from firearrow.broker.delaying.delivery import DelayRedirection
from firearrow.broker.events import SettingsChanged
from firearrow.broker.feature import Base, BulkHandlers, Feature, Handlers
from firearrow.broker.groups.locks import QueueLocks
from firearrow.broker.registering.routes import TopicRoutes
from firearrow.broker.sending.forwarding import ForwardingWriter
from firearrow.broker.sending.processor import SendProcessor
from firearrow.broker.sending.puts import Puts
from firearrow.broker.sending.replies import ReplyProcessor
from firearrow.broker.sending.sendback import SendBackProcessor
from firearrow.broker.timing.timer import TimerRedirection
from firearrow.broker.transactions.halves import waits_as_half
from firearrow.services import Service
from firearrow.store import QueuesDeleted, TimerStore
from firearrow.wire.codes import RequestCode


class SendFeature(Feature):
    """Sends of clients, and ``puts`` for all parts of the broker."""

    def __init__(self, base: Base, timers: TimerStore, routes: TopicRoutes) -> None:
        self._base = base
        redirections = (
            waits_as_half(base.settings),
            TimerRedirection(base.settings, timers, base.chance),
            DelayRedirection(base.store.delays),
        )
        parts = base.store, base.topics, base.clock, base.chance, redirections, base.events
        self.escapes: ForwardingWriter | None = None
        self.puts: Puts
        if base.replicas.is_slave and base.acts:
            self.puts = self.escapes = ForwardingWriter(*parts, base.settings, routes, base.access)
        else:
            self.puts = Puts(*parts)

    def connect(self, context: BrokerContext, locks: QueueLocks) -> None:
        """Make the processors."""
        self._sends = SendProcessor(context, locks, self._base.loop.call_soon)
        self._sends_back = SendBackProcessor(context)
        self._replies = ReplyProcessor(context, self._sends)

    def handlers(self) -> Handlers:
        """Handlers of sends and replies."""
        return {
            RequestCode.SEND_MESSAGE: self._sends.send,
            RequestCode.SEND_MESSAGE_V2: self._sends.send,
            RequestCode.SEND_BATCH_MESSAGE: self._sends.send_batch,
            RequestCode.SEND_REPLY_MESSAGE: self._replies.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self._replies.reply,
        }

    def saved_handlers(self) -> Handlers:
        """Handler of messages that are sent back, which may create a retry topic."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self._sends_back.send_back}

    def bulk_handlers(self) -> BulkHandlers:
        """Handler of several batches at once."""
        return {RequestCode.SEND_BATCH_MESSAGE: self._sends.send_batches}

    def saved_bulk_handlers(self) -> BulkHandlers:
        """Handler of several messages at once that are sent back."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self._sends_back.send_back_several}

    def listen(self) -> None:
        """Forget known targets of sends when topics or settings change."""
        self._base.events.listen(QueuesDeleted, lambda _: self._sends.forget_targets())
        self._base.events.listen(SettingsChanged, lambda _: self._sends.forget_targets())

    def inner_services(self) -> Sequence[Service]:
        """In a slave that acts, the writer that forwards to other masters."""
        return () if self.escapes is None else (self.escapes,)
