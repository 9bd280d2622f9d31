"""Transactions: half messages, their ends, and the checks back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.events import WaitsElsewhere
from firearrow.broker.feature import Base, BulkHandlers, Feature, Handlers
from firearrow.broker.storage.saving import Saving
from firearrow.broker.transactions.opencounts import OpenCounts
from firearrow.broker.transactions.processor import TransactionProcessor
from firearrow.broker.transactions.service import TransactionService
from firearrow.services import Service
from firearrow.store import QueuesDeleted
from firearrow.wire.codes import RequestCode


class TransactionFeature(Feature):
    """Open transactions, and the service that checks them."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self.open_counts: Final = OpenCounts(base.clock, base.root)

    def load(self) -> None:
        """Read the counts of open transactions."""
        self.open_counts.load()

    def connect(self, context: BrokerContext, saving: Saving) -> None:
        """Make service and processor."""
        self._saving = saving
        self.service: TransactionService = TransactionService(context, self.open_counts, self._base.loop)
        self._ends = TransactionProcessor(context, self.service)

    def handlers(self) -> Handlers:
        """Handlers of ends, and of a check that begins again."""
        return {RequestCode.END_TRANSACTION: self._ends.end, RequestCode.RESUME_CHECK_HALF_MESSAGE: self._ends.resume}

    def bulk_handlers(self) -> BulkHandlers:
        """Handler of several ends at once."""
        return {RequestCode.END_TRANSACTION: self._ends.end_several}

    def listen(self) -> None:
        """Note new half messages, and deleted topics."""
        self._base.events.listen(WaitsElsewhere, self.service.waits)
        self._base.events.listen(QueuesDeleted, self.open_counts.topic_gone)

    def deliveries(self) -> Sequence[Service]:
        """Service that checks halves."""
        return (self.service,)

    def services(self) -> Sequence[Service]:
        """Periodic writes of the counts."""
        seconds = self._base.settings.broker.transaction_metric_flush_interval / 1000
        return (self._base.every("open transactions", seconds, partial(self._saving.write, self.open_counts.file)),)

    def save(self) -> None:
        """Write the counts."""
        self.open_counts.file.save()

    def close(self) -> None:
        """Close the counts."""
        self.open_counts.file.close()
