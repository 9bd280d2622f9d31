"""The line to the Java process stays in step when a call takes too long."""

from __future__ import annotations

import io
import os
import queue
from pathlib import Path

import pytest

from tests.interop import driver as module
from tests.interop.driver import Driver


def test_an_answer_that_comes_too_late_is_that_of_no_other_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as answers, os.fdopen(write_end, "wb") as java:
        driver = Driver(io.BytesIO(), answers, lambda: None, tmp_path / "driver.log")
        with monkeypatch.context() as patch:
            patch.setattr(module, "CALL_TIMEOUT_S", 0)
            with pytest.raises(queue.Empty):
                driver.call("slow", int)
        java.write(b'{"result": 1}\n{"result": 2}\n')
        java.flush()
        assert driver.call("next", int) == 2
        java.close()
        driver.finish()
