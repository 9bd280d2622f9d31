"""Each invariant, broken on its own, is named by verification, however the log is cut into pieces,
and repaired if it can be."""

import shutil
from pathlib import Path

import pytest

from firearrow.clock import SystemClock
from firearrow.store.offline import INVARIANTS, Layout, Severity, apply, plan, verify
from tests import golden
from tests.store.offline.damage import IN_DATABASE, ROWS, Damage, own_store, prepared


def test_every_invariant_has_a_row() -> None:
    assert [damage.invariant for damage in ROWS] == list(INVARIANTS)


ALL = [*ROWS, *IN_DATABASE]


def name(damage: Damage) -> str:
    return damage.apply.__name__.strip("_") + "-" + damage.invariant


@pytest.mark.parametrize("damage", ALL, ids=name)
def test_what_is_broken_is_named_and_repaired_if_it_can_be(damage: Damage, tmp_path: Path) -> None:
    root = prepared(damage, tmp_path)
    planned = plan(Layout(root))
    verdict = planned.verdict
    found = {finding.invariant for finding in verdict.findings}
    assert damage.invariant in found
    if damage.alone:
        assert found == {damage.invariant}
        damaging = INVARIANTS[damage.invariant].severity is Severity.DAMAGE
        assert verdict.sound is not damaging
    for stretch_bytes in (11_003, 100_003):
        assert verify(Layout(root), stretch_bytes=stretch_bytes) == verdict
    if not damage.corrected:
        return
    outcome = apply(Layout(root), SystemClock())
    count = len(planned.steps)
    assert [step.what for step in outcome.steps][:count] == [step.what for step in planned.steps]
    assert outcome.verdict.sound, outcome.verdict.findings
    found = {finding.invariant for finding in outcome.verdict.findings}
    assert damage.invariant not in found
    assert outcome.kept is not None
    assert (Path(outcome.kept) / "manifest.json").exists()
    assert not plan(Layout(root)).does_something


@pytest.mark.parametrize("name", golden.golden_names)
def test_stores_of_the_original_are_sound(name: str, tmp_path: Path) -> None:
    verdict = verify(Layout(golden.extract(name, tmp_path)))
    assert verdict.sound
    assert {finding.invariant for finding in verdict.findings} <= {"store-closed"}
    assert verdict.records == {"file-cq-clean": 952, "file-cq-killed": 970}.get(name, 961)


def test_our_own_store_is_sound(tmp_path: Path) -> None:
    verdict = verify(Layout(own_store(tmp_path)))
    assert verdict.findings == []
    assert verdict.records == 600


def test_a_queue_that_vanished_behind_a_clean_stop_is_damage(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    shutil.rmtree(root / "consumequeue" / "T")
    [finding] = verify(Layout(root)).findings
    assert (finding.invariant, finding.severity) == ("queue-entry-missing", Severity.DAMAGE)


@pytest.mark.parametrize("clean", [True, False])
def test_who_is_killed_in_its_first_seconds_has_no_checkpoint_yet(clean: bool, tmp_path: Path) -> None:
    root = own_store(tmp_path)
    (root / "checkpoint").unlink()
    if not clean:
        (root / "abort").write_text("1")
    verdict = verify(Layout(root))
    assert verdict.sound is not clean
    found = {finding.invariant: finding.severity for finding in verdict.findings}
    assert found["checkpoint-size"] is (Severity.DAMAGE if clean else Severity.NOTE)


def test_a_lmq_that_is_gone_may_have_been_deleted(tmp_path: Path) -> None:
    root = golden.extract("light-file", tmp_path)
    shutil.rmtree(root / "consumequeue" / "%LMQ%a")
    verdict = verify(Layout(root))
    [finding] = [one for one in verdict.findings if one.invariant != "config-offset"]
    assert (finding.invariant, finding.severity) == ("queue-entry-missing", Severity.NOTE)
    assert (finding.topic, finding.times) == ("%LMQ%a", 30)
    assert verdict.sound
    assert not plan(Layout(root)).does_something
    shutil.rmtree(root / "consumequeue" / "Parent")
    assert not verify(Layout(root)).sound
