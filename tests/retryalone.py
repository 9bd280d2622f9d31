"""Retry failed tests alone: `pytest -p tests.retryalone`, which `make test` gives and nothing else.

A test that measures time may fail among thousands and pass on an idle machine. After the whole run, each
failed test runs once more, in a fresh process without pytest-xdist. If it passes there, it counts as passed and
as retried, and the end of the output names it. If it fails again, the run fails.

A run with more than three failures has no retries. Neither has a run with an error in a fixture or in the
collection, a crashed worker, an internal error or an interruption: its failures stay failures.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

RETRIES_MAX = 3
"""More failures than this have a common reason, which no retry may hide."""

RETRY_SECONDS_MAX = 1200
"""Longer than any test's own timeout: only a process that does not end takes so much."""

REASON_CHARACTERS_MAX = 200
"""Length of a failure's reason at the end of the output: a claim about bytes may quote all of them."""


def pytest_configure(config: pytest.Config) -> None:
    """Observe the whole run; a worker of pytest-xdist knows only its share."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Retries())


class Retries:
    """Failures of a run, and the retries that decide about them."""

    def __init__(self) -> None:
        self._failures: list[pytest.TestReport] = []
        self._passed: list[pytest.TestReport] = []
        self._broken = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember a failure. Errors of fixtures, crashes and failures of subtests exclude retries."""
        if report.failed:
            self._failures.append(report)
            self._broken |= report.when != "call" or type(report) is not pytest.TestReport

    def pytest_internalerror(self) -> None:
        """Exclude retries: pytest itself or a plugin failed."""
        self._broken = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        """Exclude retries after the crash of a worker, even of an idle one."""
        self._broken |= error is not None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        """Retry the failures of a complete run; an interrupted one raises instead.

        The session also counts errors of the collection: then the two numbers differ.
        """
        completed = yield
        if len(self._failures) == session.testsfailed <= RETRIES_MAX and not self._broken:
            reporter = session.config.pluginmanager.get_plugin("terminalreporter")
            for report in self._failures:
                self._retry(report, session, reporter)
        return completed

    def _retry(self, report: pytest.TestReport, session: pytest.Session, reporter: Any) -> None:
        reporter.line("")
        reporter.section(f"retry alone: {report.nodeid}")
        passed, output = _run_alone(report.nodeid, session.config.rootpath)
        if not passed:
            reporter.line(output)
            reporter.section(f"failed again when run alone: {report.nodeid}")
            return
        for title, text in (("first failure", report.longreprtext), *report.sections):
            reporter.section(title, sep="-")
            reporter.line(text)
        session.testsfailed -= 1
        self._passed.append(report)
        _count_as_passed(report, reporter.stats)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
        """Name the retried tests just above the last line."""
        yield
        for report in self._passed:
            line = f"failed at first, passed when run alone: {report.nodeid} - {_reason(report)}"
            terminalreporter.write_line(line, yellow=True)


def _run_alone(nodeid: str, root: Path) -> tuple[bool, str]:
    """Run one test in a process of its own; return the verdict and the output.

    A test that is skipped or expected to fail does not pass, although pytest exits with 0. The output goes to a
    file because a server that the test leaves behind would keep a pipe open.
    """
    with tempfile.TemporaryFile() as file:
        command = [sys.executable, "-m", "pytest", nodeid]
        try:
            code = subprocess.run(
                command, cwd=root, stdout=file, stderr=subprocess.STDOUT, timeout=RETRY_SECONDS_MAX, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
        file.seek(0)
        output = file.read().decode(errors="replace").rstrip()
    last_line = output.rpartition("\n")[2]
    return code == pytest.ExitCode.OK and bool(re.search(r"\b1 passed\b", last_line)), output


def _count_as_passed(report: pytest.TestReport, stats: dict[str, list[Any]]) -> None:
    stats["failed"].remove(report)
    if not stats["failed"]:
        del stats["failed"]  # an empty list would still make the last line red
    success = pytest.TestReport(report.nodeid, report.location, {}, "passed", None, "call")
    stats.setdefault("passed", []).append(success)
    stats.setdefault("retried", []).append(report)


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text: str = crash.message if crash else report.longreprtext
    return text.partition("\n")[0][:REASON_CHARACTERS_MAX]
