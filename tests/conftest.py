"""Settings of the whole suite: how hard Hypothesis tries, and which tests stay together.

`HYPOTHESIS_PROFILE` chooses: `dev` looks for new counterexamples at each run, `ci` (the default
where CI is set) repeats the same ones everywhere, `fuzz` takes its time. None has a deadline: a
busy machine is no counterexample.

Tests that share what takes ten seconds to make share a worker of pytest-xdist, which takes them in
their order (all that use the session of Spark are together, so that one JVM gets warm instead of
four); all others come in any order. Of its workers half begin with the tests that wait, half
with those that compute, so that neither leave a core idle.
"""

import faulthandler
import gc
import os
import re
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

from firearrow.logs import KeyValueFormatter
from tests.net.certificates import make_certificate

SHARING = {
    "tests/test_packaging.py",
    "tests/test_tidy.py",
    "tests/integrations/test_celery.py",
    *(
        f"tests/interop/test_{name}.py"
        for name in (
            "commands", "controller", "differ", "pipeline", "pop", "pop_calls", "pop_traps",
            "python_client", "python_consumers", "timing", "traps",
        )
    ),
}  # fmt: skip
SLOW_IS_FINE = [HealthCheck.too_slow]

settings.register_profile("dev", deadline=None, suppress_health_check=SLOW_IS_FINE)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=SLOW_IS_FINE)
settings.register_profile("fuzz", deadline=None, max_examples=20_000, suppress_health_check=SLOW_IS_FINE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


# A shell that runs the tests in the background has them, and all that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """Gives workers a test at a time, but those of a module in `SHARING` to one.

    Marks of `xdist_group` have no effect with pytest 9.2, in which a test's id can't be changed.
    """

    def _split_scope(self, nodeid: str) -> str:
        path, _, name = nodeid.partition("::")
        if _uses_session(path):
            return "spark"
        if path not in SHARING:
            return nodeid
        kind = re.search(r"\[(real|firearrow)\b", name)
        return f"{path} {kind[1]}" if kind else path

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give workers with an odd number the last of what is left, others the first."""
        if int(node.gateway.id.removeprefix("gw")) % 2:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def mark_test_complete(self, node: WorkerController, *report: Any) -> None:
        """Forget what is done: all that a worker was ever given is looked through at each test."""
        super().mark_test_complete(node, *report)
        given = self.assigned_work[node]
        self.assigned_work[node] = {scope: tests for scope, tests in given.items() if not all(tests.values())}


@cache
def _uses_session(path: str) -> bool:
    """Whether a module's tests share the session of Spark. Its text tells: who schedules knows the
    names of tests, not their fixtures."""
    file = Path(__file__).parent.parent / path
    return path.startswith("tests/spark/") and "spark: SparkSession" in file.read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Have workers of pytest-xdist share servers, instead of starting their own of everything."""
    return Together(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Tell a worker of pytest-xdist where to write how it crashes."""
    node.workerinput["traces"] = str(_traces(node.config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Have a worker write the Python traces of its threads when a signal ends it.

    pytest has them go to standard error, far above the summary, and again after each test that
    runs a pytest of its own.
    """
    if file := _trace_file(item.config):
        faulthandler.enable(file)
    return (yield)


@cache
def _trace_file(config: pytest.Config) -> TextIO | None:
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return None
    file = Path(worker["traces"], worker["workerid"]).open("w")  # noqa: SIM115 - the end closes it
    config.add_cleanup(file.close)
    return file


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show what crashed workers were doing beside the names of the tests."""
    for file in sorted(_traces(config).iterdir()):
        if trace := file.read_text():
            terminalreporter.section(f"worker '{file.name}' was here when it crashed")
            terminalreporter.write(trace)


@cache
def _traces(config: pytest.Config) -> Path:
    """A directory for traces, which is removed at the end."""
    directory = TemporaryDirectory(prefix="firearrow-traces-")
    config.add_cleanup(directory.cleanup)
    return Path(directory.name)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage while thousands of tests are collected, nor later among them: they stay
    till the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark the tests that use Spark, before ``-m`` chooses; then have workers see tests that wait
    first, short ones between."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
    yield
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    slow = item.get_closest_marker("slow") is not None
    waits = any(item.get_closest_marker(name) for name in ("interop", "spark"))
    return (0 if slow else 1) if waits else (3 if slow else 2)


@pytest.fixture(autouse=True, scope="session")
def disk() -> Iterator[None]:
    """Have every disk be half full: on a full one stores refuse messages, as they should."""

    def half_full(path: Path | str | int) -> os.statvfs_result:
        real = os_statvfs(path)
        blocks = real.f_blocks
        free = blocks - blocks // 2
        return os.statvfs_result((*real[:3], free, free, *real[5:]))

    os_statvfs = os.statvfs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "statvfs", half_full)
        yield


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Have `caplog.text` show the fields of what is logged, as people see them.

    A formatter that is set would not last: once PySpark is imported, its loggers put theirs into
    each handler that pytest adds to them.
    """
    monkeypatch.setattr(caplog.handler, "format", KeyValueFormatter().format)
    return caplog


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1, signed by itself, and its key, in one file."""
    return make_certificate(tmp_path_factory.mktemp("tls"), "tests")
