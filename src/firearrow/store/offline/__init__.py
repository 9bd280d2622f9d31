"""Tools that read and repair a store without a broker: the engines of ``firearrow store``."""

from firearrow.store.offline.carving import Salvaged, carved_messages, salvage
from firearrow.store.offline.difference import Difference, QueueSummary, StoreComparison, diff
from firearrow.store.offline.findings import INVARIANTS, Finding, Repair, Severity
from firearrow.store.offline.healing import Replica
from firearrow.store.offline.pieces import OnProgress
from firearrow.store.offline.rebuilding import ALL, Order, Planned, Rebuilt, planned, rebuild
from firearrow.store.offline.records import Selection, as_row, find, write_stream
from firearrow.store.offline.repair import Action, Outcome, Plan, Step, apply, plan
from firearrow.store.offline.usage import RetainedFile, RetentionReport, StoreStat, TopicStat, stat, why_not_deleted
from firearrow.store.offline.verdict import Verdict, verify
from firearrow.store.offline.view import Layout, StoreView

__all__ = [
    "ALL",
    "INVARIANTS",
    "Action",
    "Difference",
    "Finding",
    "Layout",
    "OnProgress",
    "Order",
    "Outcome",
    "Plan",
    "Planned",
    "QueueSummary",
    "Rebuilt",
    "Repair",
    "Replica",
    "RetainedFile",
    "RetentionReport",
    "Salvaged",
    "Selection",
    "Severity",
    "Step",
    "StoreComparison",
    "StoreStat",
    "StoreView",
    "TopicStat",
    "Verdict",
    "apply",
    "as_row",
    "carved_messages",
    "diff",
    "find",
    "plan",
    "planned",
    "rebuild",
    "salvage",
    "stat",
    "verify",
    "why_not_deleted",
    "write_stream",
]
