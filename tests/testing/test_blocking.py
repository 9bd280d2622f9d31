"""Embedded clusters in a separate thread, used without an event loop."""

import json
import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest

from firearrow.errors import InvalidRequest
from firearrow.testing import BrokenStore, EmbeddedCluster
from firearrow.wire.codes import RequestCode
from tests.net.rawclient import RawClient
from tests.testing.asking import damage, send


def test_methods_return_when_all_is_done() -> None:
    client = RawClient()
    with EmbeddedCluster(brokers=2) as cluster, closing(client):
        cluster.create_topic("T", queues=1)
        cluster.create_group("g", retry_max_times=1)
        answer = client.call(cluster.name_server, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert "T" in json.loads(answer.body)["topicList"]
        first, second = cluster.brokers
        send(first, body=b"a")
        send(second, body=b"b")
        assert [view.body for view in cluster.messages("T")] == [b"a", b"b"]
        cluster.kill_broker(1)
        cluster.stop_broker(0)
        assert [broker.is_running for broker in cluster.brokers] == [False, False]
        cluster.restart_broker(1)
        send(second, body=b"c")
        assert [view.body for view in cluster.messages("T")] == [b"a", b"b", b"c"]
        cluster.delete_topic("T")
        cluster.stop_name_server()
        with pytest.raises(ConnectionRefusedError):
            connect(cluster.name_server)
        cluster.restart_name_server()
        connect(cluster.name_server)
        assert cluster.store == first.store
        assert first.store.parent == cluster.directory


def connect(address: str) -> None:
    host, port = address.split(":")
    socket.create_connection((host, int(port)), timeout=5).close()


def test_nothing_is_left() -> None:
    threads = threading.active_count()
    with EmbeddedCluster() as cluster:
        assert threading.active_count() > threads
    assert threading.active_count() == threads
    assert not cluster.directory.exists()


def test_what_is_refused_is_raised_here() -> None:
    with EmbeddedCluster() as cluster, pytest.raises(InvalidRequest):
        cluster.create_topic("no topic")


def test_a_start_that_fails_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "broker-a").write_text("no directory")
    threads = threading.active_count()
    with pytest.raises(OSError, match="broker-a"), EmbeddedCluster(directory=tmp_path):
        raise AssertionError("it has started")
    assert threading.active_count() == threads


def test_a_broken_store_fails_the_test(tmp_path: Path) -> None:
    def leave_broken() -> None:
        with EmbeddedCluster(directory=tmp_path) as cluster:
            send(cluster.brokers[0])
            cluster.stop_broker()
            damage(cluster.store)

    with pytest.raises(BrokenStore, match="record-body-crc"):
        leave_broken()
