"""Brokers are taken out of use while clients send and consume: several of one command, which are
restarted one by one, and one of the original."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from firearrow.client.admin import Admin
from firearrow.wire.bodies import TopicConfig
from tests.cli.traffic import Traffic
from tests.interop.controllers import ask
from tests.interop.driver import Driver
from tests.interop.javaclient import JavaClient, Outgoing
from tests.interop.servers import SMALL_FILES, Server, running, serve
from tests.interop.waiting import wait_until

TOPIC = "restarted"
POLL_MS = 300
A_FEW = 5
LATE_S = 40
FIREARROW = (sys.executable, "-m", "firearrow")
QUEUES = 8


def test_no_message_is_lost_and_no_send_fails_while_brokers_are_restarted(driver: Driver, tmp_path: Path) -> None:
    log = tmp_path / "firearrow.log"
    with running([*FIREARROW, "serve", "--ephemeral", "--brokers", "2"], log) as process:
        words = process.wait_for_line("ready ").split()[1:]
        name_server, broker, *_ = (word.partition("=")[2] for word in words)
        at = ("-n", name_server)
        subprocess.run([*FIREARROW, "topic", "create", TOPIC, *at], check=True)
        java = JavaClient(driver, Server("firearrow", name_server, broker, tmp_path, tmp_path))
        producer = java.producer("java_sender", poll_ms=POLL_MS)
        consumer = java.push_consumer("java_reader", TOPIC, nameServerPollMs=POLL_MS)
        sent: list[str] = []
        with Traffic(name_server, TOPIC) as traffic:
            restart = subprocess.Popen(
                [*FIREARROW, "cluster", "restart", *at, "--route-seconds", "1", "--deadline", "1"]
            )
            while restart.poll() is None:
                bodies = [f"java {len(sent) + number}" for number in range(A_FEW)]
                messages = [Outgoing(body=body.encode()) for body in bodies]
                reports = producer.send(TOPIC, messages)  # raises if one fails
                assert {report.status for report in reports} == {"SEND_OK"}
                sent += bodies
            assert restart.returncode == 0
            traffic.end()
            assert traffic.failed == []
            all_sent = {*sent, *traffic.sent}
            assert traffic.missing(all_sent) == set()
        consumer.rebalance()
        wait_until(
            lambda: all_sent <= {it.body.decode() for it in consumer.received()},
            LATE_S,
            "all messages at the Java consumer",
        )
        java.close()
        assert process.stop() == 0


def test_a_broker_of_the_original_gets_nothing_while_it_is_out_of_use(tmp_path: Path) -> None:
    def messages() -> int:
        """How many messages it has got."""
        fields = [{"topic": TOPIC, "queueId": queue_id} for queue_id in range(QUEUES)]
        return sum(int(ask(theirs.broker, 30, each).ext["offset"]) for each in fields)

    with serve("firearrow", tmp_path / "ours", tmp_path / "our_logs") as ours:
        keys = {**SMALL_FILES, "namesrvAddr": ours.namesrv, "brokerName": "other"}
        with serve("real", tmp_path / "theirs", tmp_path / "their_logs", settings=keys) as theirs:
            at = ("-n", ours.namesrv)
            wait_until(lambda: b'"other"' in ask(ours.namesrv, 106, {}).body, LATE_S, "the other")
            subprocess.run([*FIREARROW, "topic", "create", TOPIC, *at], check=True)
            with Traffic(ours.namesrv, TOPIC) as traffic:
                wait_until(messages, LATE_S, "messages at the original")
                drain = ["cluster", "drain", "other", *at, "--route-seconds", "1"]
                subprocess.run([*FIREARROW, *drain], check=True)
                before, enough = messages(), len(traffic.sent) + 100
                wait_until(lambda: len(traffic.sent) > enough, LATE_S, "messages at ours")
                assert messages() == before
                subprocess.run([*FIREARROW, "cluster", "undrain", "other", *at], check=True)
                wait_until(lambda: messages() > before, LATE_S, "messages at the original again")
                traffic.end()
                assert traffic.failed == []
                assert traffic.missing({*traffic.sent}) == set()


@contextmanager
def two_of_the_original(home: Path) -> Iterator[Server]:
    """RocketMQ's name server with the broker `broker-a`, which is given, and the broker `other`."""
    with serve("real", home / "first", home / "first_logs") as first:
        keys = {**SMALL_FILES, "namesrvAddr": first.namesrv, "brokerName": "other"}
        with serve("real", home / "other", home / "other_logs", settings=keys):
            wait_until(lambda: b'"other"' in ask(first.namesrv, 106, {}).body, LATE_S, "the other")
            yield first


def test_an_undrain_of_a_broker_of_the_original_is_undone(tmp_path: Path) -> None:
    def run(*words: str) -> list[dict[str, Any]]:
        command = [*FIREARROW, *words, "--json", "-n", first.namesrv]
        rows: list[dict[str, Any]] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        return rows

    def perms() -> dict[str, str]:
        return {row["broker"]: row["perm"] for row in run("topic", "routes", TOPIC)}

    with two_of_the_original(tmp_path) as first:
        run("topic", "create", TOPIC)
        wait_until(lambda: len(perms()) == 2, LATE_S, "both brokers in the route")
        file = tmp_path / "undo.json"
        run("cluster", "undrain", "other", "--undo-file", str(file))
        assert not file.exists()  # it was in use
        run("cluster", "drain", "other", "--route-seconds", "1")
        assert perms() == {"broker-a": "rw", "other": "r"}
        run("cluster", "undrain", "other", "--undo-file", str(file))
        assert perms() == {"broker-a": "rw", "other": "rw"}
        run("cluster", "undo", str(file))
        assert perms() == {"broker-a": "rw", "other": "rw"}
        run("cluster", "undo", str(file), "--apply")
        assert perms() == {"broker-a": "rw", "other": "r"}


def test_an_undo_takes_a_topic_from_the_broker_of_the_original_that_got_it_last(tmp_path: Path) -> None:
    """Name server and brokers are the original's, and no request takes one broker from a route."""

    def shown(*words: str) -> list[tuple[str, int, str | None]]:
        command = [*FIREARROW, *words, "--json", "-n", first.namesrv]
        rows = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        return [(row["broker"], row["readQueues"], row.get("state")) for row in rows]

    async def create() -> None:
        async with Admin.of([first.namesrv]) as admin:
            await admin.topics.create(first.broker, TopicConfig(TOPIC, 2, 2))

    with two_of_the_original(tmp_path) as first:
        asyncio.run(create())
        file = str(tmp_path / "undo.json")
        shown("topic", "create", TOPIC, "--queues", "5", "--undo-file", file)
        both = [("broker-a", 5, None), ("other", 5, None)]
        assert shown("topic", "routes", TOPIC) == both
        assert shown("topic", "undo", file) == [("broker-a", 2, "would be changed"), ("other", 5, "would be deleted")]
        done = [("broker-a", 2, "changed"), ("other", 5, "deleted")]
        assert shown("topic", "undo", file, "--apply") == done
        for words in (("topic", "show", TOPIC), ("topic", "routes", TOPIC)):
            assert shown(*words) == [("broker-a", 2, None)]
