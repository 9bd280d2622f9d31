"""Tools that read and mend a store without a broker: the engines of ``firearrow store``."""

from firearrow.store.offline.columnar import write_stream
from firearrow.store.offline.find import Selection, as_row, find
from firearrow.store.offline.findings import INVARIANTS, Finding, Repair, Severity
from firearrow.store.offline.stat import StoreStat, stat
from firearrow.store.offline.verify import Verdict, verify
from firearrow.store.offline.view import Layout, StoreView

__all__ = [
    "INVARIANTS",
    "Finding",
    "Layout",
    "Repair",
    "Selection",
    "Severity",
    "StoreStat",
    "StoreView",
    "Verdict",
    "as_row",
    "find",
    "stat",
    "verify",
    "write_stream",
]
