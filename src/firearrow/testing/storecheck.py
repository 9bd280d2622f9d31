"""Verify the stores of a test, with the checks of ``firearrow store verify``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from firearrow.errors import StoreError
from firearrow.store.config import StoreConfig
from firearrow.store.offline import Finding, Layout, Severity, verify

SHOWN_MAX: Final = 10  # findings in the text of an error


class BrokenStore(StoreError):
    """Stores are damaged; they are kept for inspection.

    ``findings`` are by the directory of the store.
    """

    def __init__(self, findings: dict[Path, list[Finding]]) -> None:
        super().__init__("\n".join(_sentences(findings)))
        self.findings = findings


def damage_in(config: StoreConfig, delay_levels: str) -> list[Finding]:
    """Damage of a store that no process has open; quick for a small store."""
    layout = Layout(config.root_path, (config.commit_log_path,), config.max_hash_slot_num, delay_levels, made_as=config)
    verdict = verify(layout, jobs=1)
    return [found for found in verdict.findings if found.severity is Severity.DAMAGE]


def _sentences(findings: dict[Path, list[Finding]]) -> list[str]:
    return [line for store, found in findings.items() for line in _of_store(store, found)]


def _of_store(store: Path, found: Sequence[Finding]) -> list[str]:
    lines = [f"the store {store} is damaged (it is kept; `firearrow store verify {store}`):"]
    lines += [f"  {it.place()}{it.what} [{it.invariant}]" for it in found[:SHOWN_MAX]]
    if len(found) > SHOWN_MAX:
        lines.append(f"  and {len(found) - SHOWN_MAX} more")
    return lines
