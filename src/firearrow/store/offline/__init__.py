"""Tools that read and mend a store without a broker: the engines of ``firearrow store``."""

from firearrow.store.offline.columnar import write_stream
from firearrow.store.offline.find import Selection, as_row, find
from firearrow.store.offline.findings import INVARIANTS, Finding, Repair, Severity
from firearrow.store.offline.rebuild import Rebuilt, rebuild
from firearrow.store.offline.repair import Action, Outcome, Plan, Step, apply, plan
from firearrow.store.offline.stat import StoreStat, stat
from firearrow.store.offline.verify import Verdict, verify
from firearrow.store.offline.view import Layout, StoreView

__all__ = [
    "INVARIANTS",
    "Action",
    "Finding",
    "Layout",
    "Outcome",
    "Plan",
    "Rebuilt",
    "Repair",
    "Selection",
    "Severity",
    "Step",
    "StoreStat",
    "StoreView",
    "Verdict",
    "apply",
    "as_row",
    "find",
    "plan",
    "rebuild",
    "stat",
    "verify",
    "write_stream",
]
