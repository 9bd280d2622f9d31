"""Each Python block of docs/integrations.md runs as it stands there, and so do its commands."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from firearrow.testing.broker import EmbeddedBroker
from firearrow.testing.cluster import BlockingCluster
from tests.examples import run as run_blocks
from tests.pages import DOCS, NAME_SERVER, blocks
from tests.patience import patient_environment

PAGE = DOCS / "integrations.md"
TEXT = PAGE.read_text(encoding="utf-8")
BILLING, TEST_BILLING, IMAGES, BILLS, SHOP, GREETINGS, WEB, VIEWS, COMMAND, *NOTEBOOK = blocks(PAGE, "python")
PROGRAMS = {
    "billing.py": BILLING,
    "images.py": IMAGES,
    "bills.py": BILLS,
    "shop.py": SHOP,
    "greetings.py": GREETINGS,
    "web.py": WEB,
    "store/views.py": VIEWS,
    "store/management/commands/bill.py": COMMAND,
}
TIMEOUT_S = 60


DRIVER_OF_WEB = """\
import threading

from fastapi.testclient import TestClient

import web

billed = threading.Event()
web.print = lambda *words: print(*words) or billed.set()
with TestClient(web.app) as client:
    assert client.post("/orders/17").json()["message"]
    assert billed.wait(60)
"""

DRIVER_OF_VIEWS = """\
import django
from django.conf import settings
from django.test import RequestFactory

databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
settings.configure(DATABASES=databases, INSTALLED_APPS=["store"], DEFAULT_CHARSET="utf-8")
django.setup()

from store.views import order

print(order(RequestFactory().post("/"), 17).content.decode())
"""

MANAGE = """\
import django
from django.conf import settings
from django.core.management import execute_from_command_line

settings.configure(INSTALLED_APPS=["store"])
django.setup()
execute_from_command_line()
"""


def write(directory: Path, name_server: str) -> None:
    """Write the examples as files, with the address of a name server that runs."""
    for name, block in PROGRAMS.items():
        assert NAME_SERVER in block.code
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(block.code.replace(NAME_SERVER, name_server))
    (directory / "test_billing.py").write_text(TEST_BILLING.code)


@pytest.fixture
def examples(tmp_path: Path, rocketmq_broker: EmbeddedBroker) -> Path:
    """Directory of the examples, on a cluster that other tests use, too."""
    write(tmp_path, rocketmq_broker.name_server)
    return tmp_path


@pytest.fixture
def orders(tmp_path: Path, rocketmq_cluster: BlockingCluster) -> Path:
    """Directory of the examples, on a cluster with an empty topic ``orders``."""
    rocketmq_cluster.create_topic("orders")
    write(tmp_path, rocketmq_cluster.name_server)
    return tmp_path


def run(examples: Path, *command: str) -> str:
    ran = subprocess.run(
        [sys.executable, *command], cwd=examples, capture_output=True, text=True, timeout=TIMEOUT_S,
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


def test_faststreams_application_and_its_test(examples: Path) -> None:
    assert "`faststream run billing:app`" in TEXT
    for command in (["billing.py"], ["-m", "faststream", "run", "billing:app"]):
        lines = run(examples, *command).splitlines()  # and those of FastStream's log
        assert [line for line in lines if line in {"discount: 199", "order 17: 19.99"}] == [
            "discount: 199",
            "order 17: 19.99",
        ]
    run(examples, "test_billing.py")


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


def test_fastapis_lifespan(orders: Path) -> None:
    (orders / "driver.py").write_text(DRIVER_OF_WEB)
    assert run(orders, "driver.py") == "billed: {'number': 17}\n"


def test_djangos_view_and_command(orders: Path) -> None:
    (orders / "driver.py").write_text(DRIVER_OF_VIEWS)
    (orders / "manage.py").write_text(MANAGE)
    assert run(orders, "driver.py") == '{"number": 17}\n'
    assert "for `python manage.py bill`" in TEXT
    command = subprocess.Popen(
        [sys.executable, "manage.py", "bill"],
        cwd=orders, stdout=subprocess.PIPE, text=True, env=patient_environment(orders),
    )  # fmt: skip
    too_late = threading.Timer(TIMEOUT_S, command.kill)
    too_late.start()
    try:
        assert command.stdout is not None
        assert command.stdout.readline() == "billed: {'number': 17}\n"
    finally:
        too_late.cancel()
        command.kill()
        command.communicate()


def test_a_notebooks_cells(rocketmq_cluster: BlockingCluster) -> None:
    """All in one loop, as in a notebook."""
    rocketmq_cluster.create_topic("orders")
    cells = "".join(cell.code for cell in NOTEBOOK)
    run_blocks([NOTEBOOK[0]._replace(code=cells)], rocketmq_cluster.name_server)
