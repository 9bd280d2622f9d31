"""Each code block of docs/testing.md, and the README's test, runs as it stands there. Java programs are in interop."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from firearrow.testing import plugin
from tests.pages import DOCS, README, blocks

pytest_plugins = ["pytester"]

pytestmark = pytest.mark.usefixtures("patience")

HERE = Path(__file__).parent
PAGE = DOCS / "testing.md"

# What a run imports first is forgotten after it, and numpy can't be imported twice.
for name in ("firearrow.testing.virtual", "firearrow.testing.cluster", "firearrow.broker.core"):
    import_module(name)


def written(language: str, page: Path = PAGE) -> list[str]:
    return [block.code for block in blocks(page, language)]


FOR_PYTEST = [it for page in (PAGE, README) for it in written("python", page) if "def test_" in it]


@pytest.mark.parametrize("code", FOR_PYTEST)
def test_examples_for_pytest(code: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    shutil.copy(HERE / "shop.py", pytester.path)
    pytester.makepyfile(code)
    result = pytester.runpytest_inprocess("-p", plugin.__name__, "--strict-markers")
    result.assert_outcomes(passed=1)


def test_the_configuration(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    [configuration] = written("ini")
    pytester.makeini(configuration)
    pytester.makepyfile(
        """
        def test_it(rocketmq_cluster):
            for broker in rocketmq_cluster.brokers:
                settings = broker.server.settings
                assert settings.broker.enable_property_filter
                assert settings.store.message_delay_level == "1s 5s 1h"
            assert len(rocketmq_cluster.brokers) == 2
        """
    )
    pytester.runpytest_inprocess("-p", plugin.__name__).assert_outcomes(passed=1)


@pytest.mark.parametrize("code", [it for it in written("python") if "def test_" not in it])
def test_examples_without_pytest(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    exec(compile(code, PAGE.name, "exec"), {"__name__": "__main__"})


def test_the_shell_script() -> None:
    [script] = written("bash")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-euc", script], capture_output=True, text=True, check=True, timeout=60,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert re.fullmatch(r"ready: clients go to 127\.0\.0\.1:\d+\n", ran.stdout)
