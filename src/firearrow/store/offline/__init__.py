"""Tools that read and mend a store without a broker: the engines of ``firearrow store``."""

from firearrow.store.offline.findings import INVARIANTS, Finding, Repair, Severity
from firearrow.store.offline.verify import Verdict, verify
from firearrow.store.offline.view import Layout, StoreView

__all__ = [
    "INVARIANTS",
    "Finding",
    "Layout",
    "Repair",
    "Severity",
    "StoreView",
    "Verdict",
    "verify",
]
