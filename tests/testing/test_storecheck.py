"""Text about damaged stores."""

from pathlib import Path

from firearrow.store.offline import Finding, Severity
from firearrow.testing.storecheck import SHOWN_MAX, BrokenStore, damage_in
from tests.store.offline.damage import own_store
from tests.store.stores import small_config


def finding(number: int) -> Finding:
    return Finding("log-gap", f"what {number}", Severity.DAMAGE, physical_offset=number)


def test_each_store_is_named_with_what_is_wrong_and_where() -> None:
    error = BrokenStore({Path("a"): [finding(7)], Path("b"): [finding(1), finding(2)]})
    assert str(error).splitlines() == [
        "the store a is damaged (it is kept; `firearrow store verify a`):",
        "  log offset 7: what 7 [log-gap]",
        "the store b is damaged (it is kept; `firearrow store verify b`):",
        "  log offset 1: what 1 [log-gap]",
        "  log offset 2: what 2 [log-gap]",
    ]


def test_of_many_findings_some_are_shown() -> None:
    error = BrokenStore({Path("a"): [finding(number) for number in range(SHOWN_MAX + 5)]})
    assert str(error).splitlines()[-1] == "  and 5 more"


def test_damage_is_found_and_nothing_else(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    config = small_config(root)
    levels = config.message_delay_level
    (root / "stranger").write_text("a warning")
    assert damage_in(config, levels) == []
    (root / "checkpoint").write_bytes(b"short")
    assert [it.invariant for it in damage_in(config, levels)] == ["checkpoint-size"]
