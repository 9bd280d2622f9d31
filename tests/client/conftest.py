"""Fixtures of the client's tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.world import scratch


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory in memory: there a broker's syncs, thousands in an hour, take no time."""
    path = scratch()
    yield path
    shutil.rmtree(path)
