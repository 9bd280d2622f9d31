"""Runs of pytest with `tests.retryalone`: exit code and last line, with workers of pytest-xdist and without."""

from __future__ import annotations

import pytest

from tests.test_tidy import ROOT

pytest_plugins = ["pytester"]

PLUGIN = "tests.retryalone"

# Tests by name. One with a mood fails among others, and passes in a process of its own after all others.
TESTS = {
    "good": "def test_good(): Path('others').write_text('ran')",
    "moody": "def test_moody(request): check_mood(request)",
    "moody_class": "class TestClass:\n    def test_moody(self, request): check_mood(request)",
    "moody_parameter": (
        "@pytest.mark.parametrize('text', ['-a::b[é]', '\\n/'])\n"
        "def test_parameter(request, text): text == '\\n/' or check_mood(request)"
    ),
    "bad": "def test_bad(): assert False, 'always'",
    "skipped_alone": "def test_skips(request):\n    is_alone(request) and pytest.skip()\n    assert False",
    "xfailed_alone": "def test_xfails(request):\n    is_alone(request) and pytest.xfail()\n    assert False",
    "interrupts_alone": (
        "def test_interrupts(request):\n"
        "    is_alone(request) and (os.kill(os.getppid(), signal.SIGINT), Event().wait())\n"
        "    assert False"
    ),
    "hangs_alone": "def test_hangs(request):\n    is_alone(request) and Event().wait()\n    assert False",
    "bad_fixture": "@pytest.fixture\ndef broken(): assert False\ndef test_fixture(broken): pass",
    "bad_teardown": "@pytest.fixture\ndef late():\n    yield\n    assert False\ndef test_teardown(late): pass",
    "subtests": "def test_parts(subtests, request):\n    with subtests.test('a'): check_mood(request)",
    "interrupted": "def test_interrupted(): raise KeyboardInterrupt",
    "crash": "def test_crash(): os._exit(3)",
}
START = """
import os
import signal
from pathlib import Path
from threading import Event
import pytest

def is_alone(request):
    return len(request.session.items) == 1 and not hasattr(request.config, "workerinput")

def check_mood(request):
    assert is_alone(request), "a bad mood"
    assert Path("others").read_text() == "ran"
"""
CRASH_AT_THE_END = """
import os

def pytest_sessionfinish(session):
    if getattr(session.config, "workerinput", {}).get("workerid") == "gw1":  # of this run, not of one around it
        os._exit(3)
"""
ERROR_AT_THE_END = """
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session):
    yield
    assert not hasattr(session.config, "workerinput")
    return True
"""
ONE_PROCESS = pytest.mark.parametrize("run", [0], indirect=True)
XDIST = pytest.mark.parametrize("run", [2], indirect=True)
ALONE = "failed at first, passed when run alone: "


@pytest.fixture(params=[0, 2], ids=["one-process", "xdist"])
def run(request: pytest.FixtureRequest, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("CI", raising=False)  # pytest writes a reason in several lines there
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return Run(pytester, request.param)


class Run:
    """Runner of some of the tests in a process of their own, with the lines of its output."""

    def __init__(self, pytester: pytest.Pytester, workers: int) -> None:
        self.pytester = pytester
        self.workers = workers
        self.lines: list[str] = []

    def __call__(self, *names: str, options: tuple[str, ...] = ("-p", PLUGIN)) -> tuple[int, str]:
        """Return the exit code and the counts of the last line."""
        self.pytester.makepyfile("\n".join((START, *(TESTS[name] for name in names))))
        workers = ("-p", "xdist", "-n", str(self.workers)) if self.workers else ()
        ran = self.pytester.runpytest_subprocess("-p", "no:cacheprovider", "--tb=short", *workers, *options)
        self.lines = ran.outlines
        counts, _, seconds = self.lines[-1].strip("= ").partition(" in ")
        assert seconds.split()[0].endswith("s")
        return int(ran.ret), counts

    def retries(self) -> list[str]:
        return [line.strip("= ") for line in self.lines if line.startswith("=") and " alone: " in line]


def test_a_test_that_passes_alone_passes_the_run(run: Run) -> None:
    assert run("moody", "good") == (0, "2 passed, 1 retried")
    assert len(run.retries()) == 1
    assert "E   AssertionError: a bad mood" in run.lines
    assert run.lines[-2].startswith(ALONE)
    assert run.lines[-2].endswith("::test_moody - AssertionError: a bad mood")
    assert not [line for line in run.lines if "FAILURES" in line or line.startswith("FAILED")]


@ONE_PROCESS
def test_three_tests_with_odd_names_pass_alone(run: Run) -> None:
    assert run("moody", "moody_class", "moody_parameter", "good") == (0, "5 passed, 3 retried")
    assert len([line for line in run.lines[-4:-1] if line.startswith(ALONE)]) == 3


@ONE_PROCESS
@pytest.mark.parametrize("name", ["bad", "skipped_alone", "xfailed_alone"])
def test_a_test_that_does_not_pass_alone_fails_the_run(run: Run, name: str) -> None:
    assert run(name, "good") == (1, "1 failed, 1 passed")
    first, second = run.retries()
    assert first.startswith("retry alone: ")
    assert second.startswith("failed again when run alone: ")
    assert run.lines[-2].startswith("FAILED ")


def test_one_of_two_passes_alone(run: Run) -> None:
    assert run("moody", "bad", "good") == (1, "1 failed, 2 passed, 1 retried")
    assert run.lines[-2].startswith(ALONE)
    assert run.lines[-3].endswith("::test_bad - AssertionError: always")


def test_four_failures_have_no_retry(run: Run) -> None:
    failures = ("moody", "moody_class", "moody_parameter", "bad")
    assert run(*failures, "good") == (1, "4 failed, 2 passed")
    assert run.retries() == []


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("bad_fixture", "1 failed, 1 passed, 1 error"),
        ("bad_teardown", "1 failed, 2 passed, 1 error"),
        ("subtests", "3 failed, 1 passed"),
    ],
)
def test_other_errors_forbid_retries(run: Run, name: str, counts: str) -> None:
    assert run("moody", name, "good") == (1, counts)
    assert run.retries() == []


@XDIST
def test_a_crashed_worker_forbids_retries(run: Run) -> None:
    assert run("moody", "crash", "good") == (1, "2 failed, 1 passed")
    assert run.retries() == []


@XDIST
def test_a_crash_between_tests_forbids_retries(run: Run) -> None:
    run.pytester.makeconftest(CRASH_AT_THE_END)
    assert run("moody", "good") == (1, "1 failed, 1 passed")
    assert run.retries() == []


def test_a_broken_module_forbids_retries(run: Run) -> None:
    run.pytester.makepyfile(test_broken="import nothing_like_this")
    options = ("-p", PLUGIN, "--continue-on-collection-errors")
    assert run("moody", "good", options=options) == (1, "1 failed, 1 passed, 1 error")
    assert run.retries() == []


def test_an_interrupted_run_has_no_retries(run: Run) -> None:
    assert run("moody", "interrupted", "good")[0] == pytest.ExitCode.INTERRUPTED
    assert run.retries() == []


@ONE_PROCESS
def test_an_interrupted_retry_interrupts_the_run(run: Run) -> None:
    assert run("moody", "interrupts_alone", "good") == (2, "1 failed, 2 passed, 1 retried")


@ONE_PROCESS
def test_a_retry_that_hangs_fails_the_run(run: Run) -> None:
    run.pytester.makeconftest(f"import {PLUGIN} as plugin\nplugin.RETRY_SECONDS_MAX = 0.5")
    assert run("hangs_alone", "good") == (1, "1 failed, 1 passed")
    assert len(run.retries()) == 2


def test_a_run_that_ends_at_its_first_failure_has_no_retries(run: Run) -> None:
    assert run("moody", "good", options=("-p", PLUGIN, "-x"))[0] in (1, 2)
    assert run.retries() == []


@pytest.mark.parametrize("run", [1], indirect=True)
def test_an_internal_error_of_the_last_worker_forbids_retries(run: Run) -> None:
    run.pytester.makeconftest(ERROR_AT_THE_END)
    assert run("moody", "good") == (1, "1 failed, 1 passed")
    assert run.retries() == []


@ONE_PROCESS
def test_a_run_without_the_plugin_has_no_retries(run: Run) -> None:
    assert run("moody", "good", options=()) == (1, "1 failed, 1 passed")


def test_only_make_test_retries() -> None:
    scripts = [ROOT / "Makefile", ROOT / "pyproject.toml", *(ROOT / "tools").glob("*.*"), ROOT / "tests/conftest.py"]
    assert [path.name for path in scripts if PLUGIN in path.read_text(encoding="utf-8")] == ["test.sh"]
