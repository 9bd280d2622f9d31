"""What clients are answered, step by step, is what RocketMQ's broker answers.

``make differ`` runs many seeds (FIREARROW_DIFFER_SEEDS, from FIREARROW_DIFFER_START on).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from firearrow.message import names
from tests.interop import differ_lites, differ_popped, differ_pops
from tests.interop.differ import SETTINGS, STEPS, Side, compare
from tests.interop.differ_lites import SETTINGS as LITE
from tests.interop.differ_lites import LiteScript
from tests.interop.differ_popped import PoppedScript
from tests.interop.differ_pops import PopScript
from tests.interop.differ_tools import masked
from tests.interop.driver import Driver
from tests.interop.javaclient import JavaClient, Outgoing, PushConsumer
from tests.interop.servers import serve
from tests.interop.waiting import wait_until

START = int(os.environ.get("FIREARROW_DIFFER_START", "0"))
SEEDS = range(START, START + int(os.environ.get("FIREARROW_DIFFER_SEEDS", "2")))
SLOW_SEEDS = SEEDS if "FIREARROW_DIFFER_SEEDS" in os.environ else SEEDS[:1]


@pytest.fixture(scope="module")
def sides(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """RocketMQ's broker and ours, with the same configuration."""
    root = tmp_path_factory.mktemp("differ")
    with (
        serve("real", root / "real", root / "real-logs", settings=SETTINGS | LITE) as real,
        serve("firearrow", root / "own", root / "own-logs", settings=SETTINGS | LITE) as own,
    ):
        pair = Side(real, JavaClient(driver, real)), Side(own, JavaClient(driver, own))
        yield pair
        for side in pair:
            side.close()
            side.java.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_both_answer_the_same(sides: tuple[Side, Side], seed: int) -> None:
    assert compare(sides, seed) > STEPS


@pytest.mark.parametrize("seed", SEEDS)
def test_both_give_the_same_to_pops(sides: tuple[Side, Side], seed: int) -> None:
    assert compare(sides, seed, PopScript) > differ_pops.STEPS


@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_both_give_the_same_again(sides: tuple[Side, Side], seed: int) -> None:
    assert compare(sides, seed, PoppedScript) > differ_popped.STEPS


@pytest.mark.parametrize("seed", SEEDS)
def test_both_give_the_same_to_lite_pops(sides: tuple[Side, Side], seed: int) -> None:
    assert compare(sides, seed, LiteScript) > differ_lites.STEPS


if "FIREARROW_DIFFER_SEEDS" in os.environ:  # it takes two minutes

    def test_tools_print_the_same_of_a_live_consumer(sides: tuple[Side, Side]) -> None:
        """What a consumer does now, and what it did: the counts of ``statsAll`` are the same."""

        consumers = [_live_consumer(side.java) for side in sides]
        real, own = (_printed_of(side.java, consumer) for side, consumer in zip(sides, consumers, strict=True))
        for text, expected in zip(own, real, strict=True):
            assert "\n".join(text) == "\n".join(expected)
        counts, status, overview, progress, queried, gone = own
        assert counts[-1] == "live live_group 0 RATE RATE 5 5"
        assert any("consumerGroup : live_group" in line for line in status)
        assert any(line.startswith("Same subscription") for line in overview)
        assert "Consume Diff Total: 0" in progress
        assert len(queried) == 6
        assert gone == []


def _live_consumer(java: JavaClient) -> PushConsumer:
    """A consumer that has consumed five messages and waits for more."""
    java.create_topic("live", queues=1)
    java.producer().send("live", [Outgoing(body=b"%d" % n, keys="k") for n in range(5)])
    consumer = java.push_consumer("live_group", "live")
    consumer.wait_for(5)
    return consumer


def _printed_of(java: JavaClient, consumer: PushConsumer) -> list[list[str]]:
    """What the tools print of it, and when it is gone."""
    java.wait_until_consumed("live_group", "live", 5)

    def counted() -> list[str]:
        lines = masked(java.mqadmin("statsAll", "-t", "live"))
        return lines if lines[-1].split()[-2:] == ["5", "5"] else []

    retries = names.retry_topic("live_group")  # its client looks for new queues every 20 s
    wait_until(lambda: consumer.queues(retries) == [0], 40, f"a consumer of {retries}")
    counts = wait_until(counted, 40, "two samples of the counters")
    words = java.mqadmin("consumerConnection", "-g", "live_group").split()
    [client_id] = [word for word in words if "@" in word]
    status = java.mqadmin("consumerStatus", "-g", "live_group", "-i", client_id)
    overview = java.mqadmin("consumerStatus", "-g", "live_group")
    progress = java.mqadmin("consumerProgress", "-g", "live_group", "-s", "true")
    queried = java.mqadmin("queryMsgByKey", "-t", "live", "-k", "k")
    consumer.stop()
    gone = java.mqadmin("consumerStatus", "-g", "live_group")
    texts = (status, overview, progress, queried, gone)
    return [counts, *(_without_clients(masked(text), client_id) for text in texts)]


def _without_clients(lines: list[str], client_id: str) -> list[str]:
    """Lines without what is different for each client: its id, its own measurements, message ids.

    The rows of mqadmin's own files and of what threads do are left out.
    """
    lines = [line.replace(client_id, "CLIENT") for line in lines]
    lines = [re.sub(r"\b[0-9A-F]{32,}\b", "ID", line) for line in lines]
    lines = [re.sub(r"\b(\d{17}|\d{14})\b", "TIME", line) for line in lines]
    lines = [re.sub(r"@[0-9a-f]+\b", "@OBJECT", line) for line in lines]
    return [line for line in lines if not _OF_A_CLIENT.search(line)]


_OF_A_CLIENT = re.compile("PROP_CONSUMER_START_TIMESTAMP|namesrvAddr|instanceName|lastTimestamp")
