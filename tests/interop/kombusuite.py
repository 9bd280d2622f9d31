"""kombu's own tests for transports, on this one; `test_kombu_suite` runs pytest on this module.

Of its classes one is left out: `BaseEventLoop` is for transports that Celery's event loop polls,
and Celery asks this one in the way it asks most others.
"""

from __future__ import annotations

import os
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import kombu
import pytest

import firearrow.integrations.kombu  # noqa: F401  (makes rocketmq:// known)

LIVE = f"rocketmq://{os.environ['KOMBU_SUITE_NAMESRV']}"
DEAD = "rocketmq://127.0.0.1:1"

_spec = spec_from_file_location("kombu_common", os.environ["KOMBU_SUITE"])
assert _spec is not None
assert _spec.loader is not None
common: Any = module_from_spec(_spec)
_spec.loader.exec_module(common)


@pytest.fixture
def connection() -> kombu.Connection:
    return kombu.Connection(LIVE)


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    return kombu.Connection(DEAD)


@pytest.fixture
def failover_connection() -> kombu.Connection:
    return kombu.Connection(f"{DEAD};{LIVE}", connect_timeout=10)


class TestExchangeTypes(common.BaseExchangeTypes):
    pass


class TestTimeToLive(common.BaseTimeToLive):
    pass


class TestPriority(common.BasePriority):
    pass


class TestMessage(common.BaseMessage):
    pass


class TestFailover(common.BaseFailover):  # and BasicFunctionality, of which it is one
    pass
