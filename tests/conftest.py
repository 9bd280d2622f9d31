"""Configure the whole suite: the effort of Hypothesis, and the tests that stay together.

`HYPOTHESIS_PROFILE` chooses a profile. `dev` looks for new counterexamples at each run, `ci` (the default where
CI is set) repeats the same ones everywhere, `fuzz` takes its time. None has a deadline: a busy machine is no
counterexample.

Tests that share an expensive resource share a worker of pytest-xdist, which runs them in their order. All users of
the session of Spark are together, so that one JVM gets warm instead of four. All other tests come in any order.
Half of the workers begin with the tests that wait, the others with the tests that compute: no core is idle.
"""

import errno
import faulthandler
import gc
import os
import re
import signal
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, TextIO

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
    "tests/spark/test_cluster.py",
    "tests/spark/test_yarn.py",
    *(
        f"tests/interop/test_{name}.py"
        for name in (
            "commands", "console", "controller", "differ", "exactlyonce", "grpc_cluster", "grpc_cluster_lite",
            "grpc_java", "pipeline", "pop", "pop_calls", "pop_traps", "proxy", "python_client", "python_consumers",
            "remoting_proxy", "timing", "traps",
        )
    ),
}  # fmt: skip
SLOW_IS_FINE = [HealthCheck.too_slow]

settings.register_profile("dev", deadline=None, suppress_health_check=SLOW_IS_FINE)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=SLOW_IS_FINE)
settings.register_profile("fuzz", deadline=None, max_examples=20_000, suppress_health_check=SLOW_IS_FINE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


# No process that tests start needs numpy's threads for matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell that runs the tests in the background has them, and all that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """Scheduler that gives workers one test at a time, and all tests of a module in `SHARING` to one worker.

    Marks of `xdist_group` have no effect with pytest 9.2, in which a test's id can't be changed.
    """

    def _split_scope(self, nodeid: str) -> str:
        path, _, name = nodeid.partition("::")
        if _uses_session(path):
            return "spark"
        if path.startswith("tests/console/"):  # the tests of a module share a cluster and its console
            return path
        if path not in SHARING:
            return nodeid
        kind = re.search(r"\[(real|firearrow)\b", name)
        return f"{path} {kind[1]}" if kind else path

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give workers with an odd number the last remaining unit, others the first."""
        if int(node.gateway.id.removeprefix("gw")) % 2:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def mark_test_complete(self, node: WorkerController, *report: Any) -> None:
        """Forget completed units: the scheduler looks through all units of a worker at each test."""
        super().mark_test_complete(node, *report)
        given = self.assigned_work[node]
        self.assigned_work[node] = {scope: tests for scope, tests in given.items() if not all(tests.values())}


@cache
def _uses_session(path: str) -> bool:
    """Return True if a module's tests share the session of Spark.

    The text of the module tells it, because the scheduler knows the names of tests but not their fixtures.
    """
    file = Path(__file__).parent.parent / path
    return path.startswith("tests/spark/") and "spark: SparkSession" in file.read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Make workers of pytest-xdist share servers, instead of starting their own of everything."""
    return Together(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Tell a worker of pytest-xdist the directory for the trace of its crash."""
    node.workerinput["traces"] = str(_traces(node.config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Make a worker write the Python traces of its threads when a signal ends it.

    pytest itself writes them to standard error, far above the summary, and does so again after each test that
    runs another pytest.
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
    """Show the traces of crashed workers beside the names of the tests."""
    for file in sorted(_traces(config).iterdir()):
        if trace := file.read_text():
            terminalreporter.section(f"worker '{file.name}' was here when it crashed")
            terminalreporter.write(trace)


@cache
def _traces(config: pytest.Config) -> Path:
    """Temporary directory for traces; the end of the run removes it."""
    directory = TemporaryDirectory(prefix="firearrow-traces-")
    config.add_cleanup(directory.cleanup)
    return Path(directory.name)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Disable the garbage collector while pytest collects thousands of tests, then freeze them.

    The tests stay until the end, so no later collection needs to visit them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark the tests that use Spark, before ``-m`` selects tests.

    Workers then sort them: tests that wait, then short tests, then slow tests that compute. Both kinds of workers meet
    among the single tests that wait, so that none has many tests of one server left at the end.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
    yield
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    slow = item.get_closest_marker("slow") is not None
    waits = any(item.get_closest_marker(name) for name in ("interop", "spark"))
    if waits:
        return 0 if slow else 1 if item.nodeid.partition("::")[0] in SHARING else 2
    return 4 if slow else 3


@pytest.fixture(autouse=True, scope="session")
def disk() -> Iterator[None]:
    """Pretend that every disk is half full: stores refuse messages on a full one, as they should."""

    def half_full(path: Path | str | int) -> os.statvfs_result:
        real = os_statvfs(path)
        blocks = real.f_blocks
        free = blocks - blocks // 2
        return os.statvfs_result((*real[:3], free, free, *real[5:]))

    os_statvfs = os.statvfs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "statvfs", half_full)
        yield


@pytest.fixture(autouse=True, scope="session")
def syncs() -> Iterator[None]:
    """Make syncs of this process return at once: its tests would wait a hundred thousand times for the disk.

    Only a loss of power takes what the kernel holds, and tests of one have a file system of their own. Processes that
    tests start do sync.
    """

    def checked(file: int | BinaryIO) -> None:
        """Refuse what the real call refuses."""
        mode = os.fstat(file if isinstance(file, int) else file.fileno()).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    with pytest.MonkeyPatch.context() as patch:
        for name in {"fsync", "fdatasync"} & vars(os).keys():  # macOS has one of them
            patch.setattr(os, name, checked)
        yield


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make clients of this process wait for slow answers, in a test that is about other things than time."""
    from tests.patience import be_patient

    be_patient(monkeypatch.setattr)


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Make `caplog.text` show the fields of a log record, as users see them.

    Setting a formatter would not last: once PySpark is imported, its loggers put theirs into each handler that
    pytest adds to them.
    """
    monkeypatch.setattr(caplog.handler, "format", KeyValueFormatter().format)
    return caplog


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Self-signed certificate for 127.0.0.1, with its key in the same file."""
    return make_certificate(tmp_path_factory.mktemp("tls"), "tests")
