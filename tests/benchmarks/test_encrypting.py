"""Cases whose clients encrypt: both sides get one certificate, and the generator is to trust it."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cases import Case
from benchmarks.certificate import make_certificate
from benchmarks.generator import Generator, Load, WarmUp
from benchmarks.runner import Rounds, run_paired
from benchmarks.servers import Broker, Deployment, Keys, Launch, Shape
from benchmarks.toolchain import Tools
from benchmarks.workloads import QUICK, Bench, Metrics


class Nothing:
    """A workload that measures nothing."""

    def prepare(self, bench: Bench, deployment: Deployment) -> list[str]:
        return []

    def measure(self, bench: Bench, deployment: Deployment, number: int) -> Metrics:
        return {}


@pytest.mark.parametrize("encrypted", [True, False])
def test_both_sides_show_one_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: bool) -> None:
    shapes: list[Shape] = []

    def launch(directory: Path, shape: Shape, keys: Keys) -> Deployment:
        shapes.append(shape)
        return Deployment("side", [], "", (), directory)

    for name in ("wait_ready", "idle_cores"):
        monkeypatch.setattr(Deployment, name, lambda *_: 0.0)
    case = Case("key", "title", Nothing(), (), encrypted=encrypted)
    bench = Bench(Tools(tmp_path), Generator(tmp_path), replace(QUICK, rounds=0), tmp_path)
    launches: dict[str, Launch] = {"firearrow": launch, "rocketmq": launch}
    run_paired(case, Nothing(), launches, bench, Rounds(case, {}), lambda *_: None)
    [ours, theirs] = [shape.certificate for shape in shapes]
    assert ours is theirs
    assert (ours is not None) is encrypted


def test_the_generator_is_told_whom_to_trust(tmp_path: Path) -> None:
    program = tmp_path / "load"
    program.write_text('#!/bin/sh\necho "$@" > "$0.words"\necho \'{"stable": true, "seconds": 1, "rates": []}\'\n')
    program.chmod(0o700)
    certificate = make_certificate(tmp_path)
    brokers = (Broker("a", "127.0.0.1:1"),)
    deployment = Deployment("side", [], "", brokers, tmp_path, certificate=certificate)
    Generator(program).warm_up(Load("send", connections=1), deployment, WarmUp(1, 2))
    words = program.with_suffix(".words").read_text().split()
    assert words[words.index("--trust") + 1] == str(certificate.binary)
    assert certificate.binary.read_bytes()[:1] == b"\x30"
