"""Each Python block of docs/integrations.md runs as it stands there, and so do its commands."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from firearrow.testing.broker import EmbeddedBroker
from tests.pages import DOCS, NAME_SERVER, blocks
from tests.patience import patient_environment

PAGE = DOCS / "integrations.md"
TEXT = PAGE.read_text(encoding="utf-8")
IMAGES, BILLS, SHOP, GREETINGS = [block.code for block in blocks(PAGE, "python")]
TIMEOUT_S = 60


@pytest.fixture
def examples(tmp_path: Path, rocketmq_broker: EmbeddedBroker) -> Path:
    """The examples as files, with the address of a name server that runs."""
    for name, code in {
        "images.py": IMAGES, "bills.py": BILLS, "shop.py": SHOP, "greetings.py": GREETINGS
    }.items():  # fmt: skip
        assert NAME_SERVER in code
        (tmp_path / name).write_text(code.replace(NAME_SERVER, rocketmq_broker.name_server))
    return tmp_path


def run(examples: Path, name: str) -> str:
    ran = subprocess.run(
        [sys.executable, name], cwd=examples, capture_output=True, text=True, timeout=TIMEOUT_S,
        env=patient_environment(examples),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def outputs_of(examples: Path, command: str, wanted: set[str]) -> None:
    """Run a worker until its output has all that is wanted, and end it as an operator would."""
    assert f"\n    {command}\n" in TEXT
    worker = subprocess.Popen(
        [sys.executable, "-u", "-m", *command.split()],
        cwd=examples, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**patient_environment(examples), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    too_late = threading.Timer(TIMEOUT_S, worker.kill)
    too_late.start()
    assert worker.stdout is not None
    seen = ""
    missing = set(wanted)
    try:
        for line in worker.stdout:
            seen += line
            missing = {text for text in missing if text not in line}
            if not missing:
                break
        worker.send_signal(signal.SIGTERM)
        seen += worker.stdout.read()
        assert (missing, worker.wait()) == (set(), 0), seen
    finally:
        too_late.cancel()
        worker.kill()
        worker.wait()
        worker.stdout.close()


def test_no_block_is_left_out() -> None:
    assert {block.language for block in blocks(PAGE)} == {"python"}


def test_taskiqs_worker(examples: Path) -> None:
    assert run(examples, "images.py") == ""
    wanted = {"cat.png to 200 pixels", "dog.png to 100 pixels"}
    outputs_of(examples, "taskiq worker images:broker", wanted)


def test_a_schedule_and_a_retry(examples: Path) -> None:
    assert run(examples, "bills.py") == "order 17 is billed\n"


def test_celerys_worker(examples: Path) -> None:
    """With processes that it forks, as it does by default."""
    assert run(examples, "shop.py") == ""
    outputs_of(examples, "celery -A shop worker", {"order 17 is billed", "order 18 is billed"})


def test_kombu_alone(examples: Path) -> None:
    assert run(examples, "greetings.py") == "{'hello': 'world'}\n"
