"""Settings of the whole suite: how hard Hypothesis tries, and which tests stay together.

`HYPOTHESIS_PROFILE` chooses: `dev` looks for new counterexamples at each run, `ci` (the default
where CI is set) repeats the same ones everywhere, `fuzz` takes its time. None has a deadline: a
busy machine is no counterexample.

Interop tests that share a server share one worker of pytest-xdist, and so do those that start
servers of their own, a JVM at a time; those that use Spark share one, since one session takes ten
seconds to start.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from firearrow.logs import KeyValueFormatter

SLOW_IS_FINE = [HealthCheck.too_slow]

settings.register_profile("dev", deadline=None, suppress_health_check=SLOW_IS_FINE)
settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=SLOW_IS_FINE
)
settings.register_profile(
    "fuzz", deadline=None, max_examples=20_000, suppress_health_check=SLOW_IS_FINE
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests that share something dear into one group, for `--dist loadgroup`."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        group = _group_of(item)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))


def _group_of(item: pytest.Item) -> str | None:
    if item.get_closest_marker("spark"):
        return "spark"
    if item.get_closest_marker("interop"):
        has_own = "server" not in getattr(item, "fixturenames", ())
        return "interop with servers of its own" if has_own else "interop"
    return None


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
def caplog(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """Have `caplog.text` show the fields of what is logged, as people see them.

    A formatter that is set would not last: once PySpark is imported, its loggers put theirs into
    each handler that pytest adds to them.
    """
    monkeypatch.setattr(caplog.handler, "format", KeyValueFormatter().format)
    return caplog
