"""Whatever happens to a store's bytes: the tools report it, and never fail over it."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firearrow.clock import SystemClock
from firearrow.store.offline import Finding, Layout, Verdict, apply, carved_messages, diff, plan, stat, verify
from tests.store.offline.damage import golden_store, messages, write

FILES = [
    "commitlog/00000000000000000000",
    "commitlog/00000000000000262144",
    "commitlog/00000000000000524288",
    "consumequeue/GoldenPlain/0/00000000000000000000",
    "consumequeue/SCHEDULE_TOPIC_XXXX/0/00000000000000000000",
    "index/20261120213024175",
    "checkpoint",
    "config/topics.json",
    "config/consumerOffset.json",
]
BYTES = st.one_of(
    st.binary(min_size=1, max_size=8),
    st.integers(1, 4000).map(bytes),
    st.integers(1, 4000).map(lambda size: b"\xff" * size),
)
STROKES = st.lists(st.tuples(st.sampled_from(FILES), st.floats(0, 1, exclude_max=True), BYTES), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound store; its timer files, most of its bytes, are left out."""
    root = golden_store(tmp_path_factory.mktemp("whole"))
    for path in [*root.glob("timer*"), root / "config/timercheck"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return root


def beside_index(verdict: Verdict) -> list[Finding]:
    """Findings but of the index: where its entries are out of order, which keys are said to be
    missing depends on where the log is cut."""
    return [found for found in verdict.findings if not found.invariant.startswith("index-")]


@settings(max_examples=15)
@given(strokes=STROKES)
def test_nothing_fails(
    tmp_path_factory: pytest.TempPathFactory, whole: Path, strokes: list[tuple[str, float, bytes]]
) -> None:
    root = tmp_path_factory.mktemp("any") / "store"
    shutil.copytree(whole, root)
    for name, where, data in strokes:
        size = (root / name).stat().st_size
        at = int(where * size)
        write(root, name, at, data[: size - at])
    layout = Layout(root)
    verdict = verify(layout)
    cut = verify(layout, stretch_bytes=50_000)
    assert (cut.sound, cut.records) == (verdict.sound, verdict.records)
    assert beside_index(cut) == beside_index(verdict)
    assert plan(layout).verdict == verdict
    records = stat(layout).records
    assert len(messages(root)) <= records == verdict.records
    assert len(list(carved_messages([root]))) <= records + 1
    diff(layout, Layout(whole))
    diff(layout, Layout(whole), logical=True)
    after = apply(layout, SystemClock()).verdict
    assert after.sound or not verdict.sound
    assert apply(layout, SystemClock()).verdict.sound == after.sound


def test_a_file_with_a_name_far_away(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    path = root / "commitlog" / f"{10**18:020d}"
    path.write_bytes(bytes(262_144))
    assert not verify(Layout(root)).sound
    assert len(plan(Layout(root)).steps) < 10
