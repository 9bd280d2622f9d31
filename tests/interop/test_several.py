"""Several brokers of one command are restarted one by one, while clients send and consume."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cli.traffic import Traffic
from tests.interop.driver import Driver
from tests.interop.javaclient import JavaClient, Outgoing
from tests.interop.servers import Server, running
from tests.interop.waiting import wait_until

TOPIC = "restarted"
POLL_MS = 300
A_FEW = 5
LATE_S = 40


def test_no_message_is_lost_and_no_send_fails_while_brokers_are_restarted(
    driver: Driver, tmp_path: Path
) -> None:
    firearrow = (sys.executable, "-m", "firearrow")
    log = tmp_path / "firearrow.log"
    with running([*firearrow, "serve", "--ephemeral", "--brokers", "2"], log) as process:
        words = process.wait_for_line("ready ").split()[1:]
        name_server, broker, _ = (word.partition("=")[2] for word in words)
        at = ("-n", name_server)
        subprocess.run([*firearrow, "topic", "create", TOPIC, *at], check=True)
        java = JavaClient(driver, Server("firearrow", name_server, broker, tmp_path, tmp_path))
        producer = java.producer("java_sender", poll_ms=POLL_MS)
        consumer = java.push_consumer("java_reader", TOPIC, nameServerPollMs=POLL_MS)
        sent: list[str] = []
        with Traffic(name_server, TOPIC) as traffic:
            restart = subprocess.Popen(
                [*firearrow, "cluster", "restart", *at, "--route-seconds", "1", "--deadline", "1"]
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
