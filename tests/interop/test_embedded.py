"""RocketMQ's own client on a cluster that a test has in a thread, and on `serve --ephemeral`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from firearrow.testing import EmbeddedCluster
from tests.interop.driver import Driver
from tests.interop.javaclient import JavaClient, Outgoing
from tests.interop.servers import Server
from tests.interop.toolchain import java_command
from tests.pages import DOCS, blocks


def test_java_sends_to_an_embedded_cluster_and_consumes(driver: Driver, tmp_path: Path) -> None:
    messages = [Outgoing(body=b"%d" % number, queue=number % 4) for number in range(40)]
    with EmbeddedCluster() as cluster:
        broker = cluster.brokers[0]
        java = JavaClient(driver, Server("firearrow", cluster.name_server, broker.address, broker.store, tmp_path))
        cluster.create_topic("embedded", queues=4)
        consumer = java.push_consumer("embedded_group", "embedded")
        producer = java.producer()
        reports = producer.send("embedded", messages[:20])
        assert {report.status for report in reports} == {"SEND_OK"}
        assert len(consumer.wait_for(20)) == 20
        cluster.kill_broker()
        cluster.restart_broker()
        producer.send("embedded", messages[20:])
        consumer.wait_for(40)
        received = Counter(message.body for message in consumer.stop())
        assert received.keys() == {message.body for message in messages}
        stored = Counter(view.body for view in cluster.messages("embedded"))
        assert stored == Counter(message.body for message in messages)
        producer.close()
        java.close()


def test_the_java_example(tmp_path: Path) -> None:
    """As it stands in the documentation."""
    (program,) = (block.code for block in blocks(DOCS / "testing.md", "java"))
    source = tmp_path / "Ephemeral.java"
    source.write_text(program, encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        java_command(str(source)), stdout=subprocess.PIPE, text=True, check=True, timeout=120,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert ran.stdout.splitlines()[-1] == "SEND_OK"
