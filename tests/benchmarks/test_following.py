"""The lag of a slave: what is looked at while a load runs, and what is an error."""

import threading
from pathlib import Path
from typing import cast

import pytest

from benchmarks import following, remoting
from benchmarks.errors import BenchmarkError
from benchmarks.following import Following
from benchmarks.generator import Generator, Load, Measurement
from benchmarks.servers import Broker, Deployment
from benchmarks.toolchain import Tools
from benchmarks.workloads import QUICK, Bench
from tests.benchmarks.test_workloads import FOUND

LOAD = Load("send", connections=1)


class LastsUntil:
    """A generator whose load lasts until something has happened."""

    def __init__(self, happened: threading.Event) -> None:
        self._happened = happened

    def measure(self, load: Load, deployment: Deployment, seconds: float) -> Measurement:
        assert self._happened.wait(20)
        return FOUND


@pytest.fixture
def deployment(monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.setattr(following, "wait_dispatched", lambda _: None)
    monkeypatch.setattr(following, "PAUSE_S", 0)
    master, slave = Broker("a", "127.0.0.1:1"), Broker("a", "127.0.0.1:2")
    return Deployment("side", [], "", (master,), Path(), (slave,))


def measured(monkeypatch: pytest.MonkeyPatch, deployment: Deployment, answers: list[list[int]]) -> dict[str, float]:
    """Have the master give these answers, the last one again and again."""
    happened = threading.Event()

    def lags(_: str) -> list[int]:
        if len(answers) > 1:
            return answers.pop(0)
        happened.set()
        return answers[0]

    monkeypatch.setattr(remoting, "lags", lags)
    generator = cast(Generator, LastsUntil(happened))
    bench = Bench(Tools(Path("load")), generator, QUICK, Path())
    return dict(Following(LOAD).measure(bench, deployment, 0))


def test_the_largest_lag_is_found(monkeypatch: pytest.MonkeyPatch, deployment: Deployment) -> None:
    monkeypatch.setattr(remoting, "messages_in", lambda *_: 100)
    found = measured(monkeypatch, deployment, [[0], [2_500_000], [1000]])
    assert found["lag_mb_max"] == 2.5
    assert found["looks"] >= 3
    assert found["messages_per_s"] == FOUND.messages_per_s


@pytest.mark.parametrize("answers", [[[7], []], [[7], [7, 7]]])
def test_a_slave_that_is_gone_is_an_error(
    monkeypatch: pytest.MonkeyPatch, deployment: Deployment, answers: list[list[int]]
) -> None:
    with pytest.raises(BenchmarkError, match="the lag of its slave can't be had"):
        measured(monkeypatch, deployment, answers)


def test_a_slave_that_lacks_messages_is_an_error(monkeypatch: pytest.MonkeyPatch, deployment: Deployment) -> None:
    monkeypatch.setattr(remoting, "messages_in", lambda address, *_: 100 if address.endswith(":1") else 90)
    with pytest.raises(BenchmarkError, match="its slave lacks 10 messages"):
        measured(monkeypatch, deployment, [[7]])
