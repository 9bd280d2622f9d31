"""Repair and rebuild know the notes that a stop leaves for the next start."""

from pathlib import Path

import pytest

from firearrow.clock import SystemClock
from firearrow.errors import CorruptStore
from firearrow.store import inventory
from firearrow.store.offline import Layout, Order, apply, plan, rebuild, verify
from tests.store.offline.damage import own_store
from tests.store.stores import abandon, append, bodies, make_store, opened, settle

CLOSED, LEFT_OUT = "closed.json", "left-out-queues.tsv"


def test_verify_takes_them_for_no_strays(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    (root / LEFT_OUT).write_text("T\t0\t600\n")
    assert (root / CLOSED).exists()
    assert verify(Layout(root)).findings == []


def test_a_store_whose_log_lost_its_end_starts_after_a_repair(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    last = max((root / "commitlog").iterdir())
    last.unlink()
    with pytest.raises(CorruptStore, match=r"put [^ ]+ back"):
        make_store(root).open()
    assert plan(Layout(root)).steps[-1].file == CLOSED
    outcome = apply(Layout(root), SystemClock())
    assert outcome.verdict.sound, outcome.verdict.findings
    assert outcome.kept is not None
    assert Path(outcome.kept, CLOSED).exists()
    with opened(root) as store:
        assert store.max_queue_offset("T", 0) == store.queue("T", 0).next_offset == 600
    assert not (root / "quarantine").exists()


def test_what_a_repair_has_made_is_not_made_again_by_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = own_store(tmp_path)
    max((root / "consumequeue/T/0").iterdir()).unlink()
    min((root / "index").iterdir()).unlink()
    assert apply(Layout(root), SystemClock()).verdict.sound
    with opened(root) as store:
        assert len(bodies(store)) == 600
    assert "rebuilt" not in caplog.text


@pytest.mark.parametrize("order", [Order(), Order(index=False), Order(queues=False)])
def test_what_a_rebuild_has_made_is_not_made_again_by_the_start(
    tmp_path: Path, order: Order, caplog: pytest.LogCaptureFixture
) -> None:
    root = own_store(tmp_path)
    before = inventory.load(root)
    assert before is not None
    made = rebuild(Layout(root), SystemClock(), order)
    noted = inventory.load(root)
    assert noted is not None
    assert noted.log == before.log
    assert noted.queues == ({"T": {}} if order.queues else before.queues)
    assert noted.index == ([] if order.index else before.index)
    assert made.kept is not None
    assert Path(made.kept, CLOSED).exists()
    with opened(root) as store:
        assert len(bodies(store)) == 600
    assert "rebuilt" not in caplog.text
    assert "left out" not in caplog.text


def test_a_rebuild_does_not_hide_that_the_log_lost_its_end(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    max((root / "commitlog").iterdir()).unlink()
    rebuild(Layout(root), SystemClock())
    with pytest.raises(CorruptStore, match=r"put [^ ]+ back"):
        make_store(root).open()


def left_out(root: Path) -> None:
    """A store that was killed while a queue could not be written."""
    store = make_store(root)
    store.open(background=False)
    (root / "consumequeue/A").parent.mkdir(exist_ok=True)
    (root / "consumequeue/A").write_text("")
    for number in range(50):
        append(store, b"%d" % number, "A")
        append(store, b"%d" % number, "B")
    settle(store)
    abandon(store)
    (root / "consumequeue/A").unlink()
    assert (root / LEFT_OUT).read_text() == "A\t0\t50\n"


def test_a_queue_that_was_left_out_is_made_by_a_rebuild(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    left_out(tmp_path)
    kept = rebuild(Layout(tmp_path), SystemClock(), Order(only=frozenset({("A", 0)}))).kept
    assert not (tmp_path / LEFT_OUT).exists()
    assert kept is not None
    assert Path(kept, LEFT_OUT).read_text() == "A\t0\t50\n"
    with opened(tmp_path) as store:
        assert len(bodies(store, "A")) == len(bodies(store, "B")) == 50
    assert "rebuilt" not in caplog.text


def test_a_queue_that_the_log_does_not_give_whole_stays_noted(tmp_path: Path) -> None:
    left_out(tmp_path)
    (tmp_path / LEFT_OUT).write_text("A\t0\t70\nB\t0\t50\n")
    rebuild(Layout(tmp_path), SystemClock(), Order(only=frozenset({("A", 0), ("B", 0)})))
    assert (tmp_path / LEFT_OUT).read_text() == "A\t0\t70\n"
    with opened(tmp_path) as store:
        assert len(bodies(store, "A")) == 50
    assert not (tmp_path / LEFT_OUT).exists()


def test_a_repair_leaves_a_queue_that_is_only_behind_to_the_start(tmp_path: Path) -> None:
    left_out(tmp_path)
    (tmp_path / "commitlog/stray").write_text("")
    assert apply(Layout(tmp_path), SystemClock()).verdict.sound
    with opened(tmp_path) as store:
        assert len(bodies(store, "A")) == len(bodies(store, "B")) == 50
