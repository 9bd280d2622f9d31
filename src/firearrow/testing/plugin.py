"""Fixtures for pytest: a RocketMQ cluster in the process of the tests.

=================== ======== ===================================================================
fixture             scope    value
=================== ======== ===================================================================
`rocketmq_cluster`  test     a fresh cluster in a separate thread (`BlockingCluster`)
`rocketmq_broker`   session  the first broker of a cluster that all tests share
`rocketmq_topic`    test     the name of a fresh topic on that shared cluster
`rocketmq_clock`    test     a fresh cluster in virtual time (`VirtualTime`)
=================== ======== ===================================================================

``rocketmq_brokers`` and ``rocketmq_config`` in pytest's configuration set the number of brokers and their
configuration; the marker ``rocketmq`` does so for one test. pytest imports this module in every run, so it imports no
other module of Firearrow before a fixture is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from firearrow.testing.broker import EmbeddedBroker
    from firearrow.testing.cluster import BlockingCluster
    from firearrow.testing.virtual import VirtualTime

MARKER: Final = (
    "rocketmq(brokers=1, verify=True, **keys): options of the fixtures rocketmq_cluster and "
    "rocketmq_clock for this test: the number of brokers, whether stores are verified at the end, "
    "and keys of RocketMQ's configuration"
)
_NAME_CHARS_MAX: Final = 60  # a topic may have 127, and its retry topics are longer
_topics = count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the settings of the configuration file."""
    parser.addini("rocketmq_brokers", "brokers of each RocketMQ cluster (default: 1)", default="1")
    parser.addini(
        "rocketmq_config", "keys of RocketMQ's configuration for each cluster, a line each: key=value", type="linelist"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def rocketmq_cluster(request: pytest.FixtureRequest) -> Iterator[BlockingCluster]:
    """A fresh RocketMQ cluster in a separate thread, for this test alone.

    Clients connect to ``rocketmq_cluster.name_server``. A damaged store fails the test.
    """
    from firearrow.testing.cluster import EmbeddedCluster

    with EmbeddedCluster(**_options(request)) as cluster:
        yield cluster


@pytest.fixture
def rocketmq_clock(request: pytest.FixtureRequest) -> Iterator[VirtualTime]:
    """A fresh RocketMQ cluster in virtual time: ``rocketmq_clock.cluster``.

    ``rocketmq_clock.run(coroutine)`` runs clients beside it; ``advance`` lets time pass.
    """
    from firearrow.testing.virtual import VirtualTime

    with VirtualTime(**_options(request)) as time:
        yield time


@pytest.fixture(scope="session")
def _rocketmq_shared(pytestconfig: pytest.Config) -> Iterator[BlockingCluster]:
    from firearrow.testing.cluster import EmbeddedCluster

    with EmbeddedCluster(**_of_session(pytestconfig)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def rocketmq_broker(_rocketmq_shared: BlockingCluster) -> EmbeddedBroker:
    """The first broker of a RocketMQ cluster that all tests of this process share.

    Clients connect to ``rocketmq_broker.name_server``. Use separate topics and groups in each test.
    """
    return _rocketmq_shared.brokers[0]


@pytest.fixture
def rocketmq_topic(_rocketmq_shared: BlockingCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a fresh topic on the shared cluster; it is deleted after the test."""
    words = re.sub(r"[^a-zA-Z0-9]+", "_", request.node.name)[:_NAME_CHARS_MAX].strip("_")
    topic = f"{words}_{next(_topics)}"
    _rocketmq_shared.create_topic(topic)
    yield topic
    _rocketmq_shared.delete_topic(topic)


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of the session, overridden by the markers of a test, the nearest last."""
    options = _of_session(request.config)
    for marker in reversed(list(request.node.iter_markers("rocketmq"))):
        given = dict(marker.kwargs)
        if marker.args:
            raise pytest.UsageError(f"{request.node.nodeid}: the marker rocketmq takes keywords")
        options["config"] |= given.pop("config", {})
        for name in ("brokers", "verify"):
            if name in given:
                options[name] = given.pop(name)
        options["config"] |= given
    return options


def _of_session(config: pytest.Config) -> dict[str, Any]:
    text = str(config.getini("rocketmq_brokers"))
    if not text.strip().isdecimal():
        raise pytest.UsageError(f"rocketmq_brokers = {text}: must be a number")
    keys: dict[str, str] = {}
    for line in config.getini("rocketmq_config"):
        key, sign, value = line.partition("=")
        if not sign:
            raise pytest.UsageError(f"rocketmq_config: {line!r} is not key=value")
        keys[key.strip()] = value.strip()
    return {"brokers": int(text), "config": keys}
