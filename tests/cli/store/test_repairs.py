"""The page of `firearrow store verify --report`: what its tables say."""

from __future__ import annotations

from pathlib import Path

import pytest

from firearrow.cli.main import main
from firearrow.cli.output.reports import Table
from firearrow.cli.store.repairs import report_of
from firearrow.store.offline import Layout, verify
from tests.store.offline.damage import a_message, forget_last_entry, golden_store, in_record


def tables(root: Path) -> dict[str, Table]:
    return {table.title: table for table in report_of(verify(Layout(root)), 0).tables}


def test_a_verdict(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    found = tables(root)
    assert found["Verdict"].rows == [["sound", 952, 3, 24, 1, 2941]]
    assert found["Findings"].rows == []
    message = a_message(root)
    in_record(root, message, 88, b"\0")
    found = tables(root)
    assert found["Verdict"].values("store") == ["damaged"]
    expected = verify(Layout(root)).findings
    assert found["Findings"].values("invariant") == [finding.invariant for finding in expected]
    assert found["Findings"].values("severity") == [finding.severity.value for finding in expected]
    assert message.physical_offset in found["Findings"].values("commitLogOffset")


def test_a_verdict_says_what_a_start_is_to_dispatch(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    assert tables(root)["Verdict"].note == ""
    forget_last_entry(root)
    assert tables(root)["Verdict"].note == (
        "1 messages of the log are after the ends of the queues: a start dispatches them"
    )


def test_a_page_is_written_beside_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, page = golden_store(tmp_path), tmp_path / "page.html"
    in_record(root, a_message(root), 88, b"\0")
    assert main(["store", "verify", str(root), "--report", str(page)]) == 1
    said = capsys.readouterr()
    assert said.out.startswith(f"{root} is damaged: ")
    assert said.err == f"firearrow: report in {page}\n"
    assert "<h2>Findings</h2>\n<svg " in page.read_text(encoding="utf-8")
