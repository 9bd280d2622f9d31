"""Fixtures for pytest, in separate runs: only their output is examined."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from firearrow.testing import plugin

pytest_plugins = ["pytester"]

# What a run imports first is forgotten after it, and numpy can't be imported twice.
for name in ("firearrow.testing.virtual", "firearrow.testing.cluster", "tests.testing.asking"):
    import_module(name)

SENDING = """
    import pytest
    from tests.testing.asking import damage, send
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    # Whether this environment has our entry point depends on when it was made.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return Run(pytester)


class Run:
    """Runs tests with the plug-in; each ends as expected."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester

    def __call__(self, tests: str, *arguments: str, **outcomes: int) -> pytest.RunResult:
        self.pytester.makepyfile(f"{SENDING}\n{tests}")
        options = ("-p", plugin.__name__, "-p", "no:cacheprovider", "--strict-markers")
        result = self.pytester.runpytest_inprocess(*options, *arguments)
        result.assert_outcomes(**outcomes)
        return result


def test_it_is_an_entry_point() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text)["project"]["entry-points"]["pytest11"]
    assert entries == {"firearrow": plugin.__name__}


def test_it_costs_nothing_until_it_is_used() -> None:
    code = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import firearrow.testing.plugin\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {"firearrow", "firearrow.testing", "firearrow.testing.plugin"}
    assert ours <= set(ran.stdout.split())
    assert not [name for name in ran.stdout.split() if name.split(".")[0] in ("numpy", "msgspec")]
    assert {name for name in ran.stdout.split() if name.startswith("firearrow")} == ours


def test_each_test_has_its_own_cluster(run: Run) -> None:
    run(
        """
    @pytest.mark.parametrize("again", [1, 2])
    def test_it(rocketmq_cluster, again):
        assert rocketmq_cluster.messages("T") == []
        send(rocketmq_cluster.brokers[0], "T")
        assert len(rocketmq_cluster.messages("T")) == 1
        """,
        passed=2,
    )


def test_the_shared_broker_is_one_and_topics_are_fresh(run: Run) -> None:
    run(
        """
    seen = []

    @pytest.mark.parametrize("name", ["a/b", "ä ö", "x" * 300])
    def test_it(rocketmq_broker, rocketmq_topic, name):
        seen.append((rocketmq_broker.address, rocketmq_topic))
        send(rocketmq_broker, rocketmq_topic)
        assert [it.body for it in rocketmq_broker.messages(rocketmq_topic)] == [b"body"]

    def test_after(rocketmq_broker):
        addresses, topics = map(set, zip(*seen))
        assert (len(addresses), len(topics)) == (1, 3)
        known = rocketmq_broker.server.topics.table
        assert [topic for topic in topics if topic in known] == []
        """,
        passed=4,
    )


def test_hours_pass_at_once(run: Run) -> None:
    run(
        """
    import asyncio
    from datetime import timedelta

    def test_it(rocketmq_clock):
        before = rocketmq_clock.now
        rocketmq_clock.run(rocketmq_clock.cluster.create_topic("T"))
        rocketmq_clock.advance(timedelta(hours=2))
        rocketmq_clock.run(asyncio.sleep(3600))
        assert timedelta(hours=3) <= rocketmq_clock.now - before < timedelta(hours=3, seconds=1)
        """,
        passed=1,
    )


def test_a_broken_store_fails_the_test_unless_that_is_allowed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = run(
        """
    def break_it(cluster):
        send(cluster.brokers[0], "T")
        cluster.stop_broker()
        damage(cluster.store)

    def test_not_allowed(rocketmq_cluster):
        break_it(rocketmq_cluster)

    @pytest.mark.rocketmq(verify=False)
    def test_allowed(rocketmq_cluster):
        break_it(rocketmq_cluster)
        """,
        passed=2,
        errors=1,
    )
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_not_allowed*", "E*BrokenStore: the store * is damaged*"])
    [kept] = tmp_path.glob("firearrow-*")
    assert (kept / "broker-a" / "commitlog").is_dir()


def test_file_and_markers_configure(run: Run) -> None:
    run.pytester.makeini(
        """
        [pytest]
        rocketmq_brokers = 2
        rocketmq_config =
            brokerClusterName=shop
            transactionCheckMax = 2
        """
    )
    run(
        """
    def facts(brokers):
        config = brokers[0].server.config
        names = config.broker_cluster_name, config.region_id
        return len(brokers), *names, config.transaction_check_max

    @pytest.mark.rocketmq(brokers=3, transactionCheckMax=4)
    class TestIt:
        def test_class(self, rocketmq_cluster):
            assert facts(rocketmq_cluster.brokers) == (3, "shop", "DefaultRegion", 4)

        @pytest.mark.rocketmq(transactionCheckMax=5, config={"regionId": "moon"})
        def test_own(self, rocketmq_clock):
            assert facts(rocketmq_clock.cluster.brokers) == (3, "shop", "moon", 5)

    def test_file(rocketmq_cluster):
        assert facts(rocketmq_cluster.brokers) == (2, "shop", "DefaultRegion", 2)

    def test_session(rocketmq_broker):
        assert rocketmq_broker.server.config.broker_cluster_name == "shop"
        """,
        passed=4,
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rocketmq_brokers = many", "*rocketmq_brokers = many: must be a number*"),
        ("rocketmq_config = brokerId", "*rocketmq_config: 'brokerId' is not key=value*"),
        ("rocketmq_config = listenPort=1", "*an embedded cluster sets listenPort itself*"),
    ],
)
def test_mistakes_are_told(run: Run, line: str, message: str) -> None:
    run.pytester.makeini(f"[pytest]\n{line}")
    result = run("    def test_it(rocketmq_cluster): pass", errors=1)
    result.stdout.fnmatch_lines([message])


def test_a_marker_takes_keywords_only(run: Run) -> None:
    result = run(
        """
    @pytest.mark.rocketmq(3)
    def test_it(rocketmq_cluster): pass
        """,
        errors=1,
    )
    result.stdout.fnmatch_lines(["*the marker rocketmq takes keywords*"])
