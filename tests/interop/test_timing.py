"""Messages with a delivery time, and their recall, by the official client."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.interop.driver import Driver, JavaError
from tests.interop.javaclient import ARRIVAL_TIMEOUT_S, JavaClient, Outgoing
from tests.interop.servers import SMALL_FILES, serve, target_kind
from tests.interop.waiting import wait_until

QUEUES = 4


@pytest.fixture(scope="module")
def recalling(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """The official client on a server that takes recalls."""
    directory = tmp_path_factory.mktemp("recalling")
    settings = {**SMALL_FILES, "recallMessageEnable": "true"}
    kind = target_kind()
    with serve(kind, directory / "store", directory / "logs", settings=settings) as server:
        client = JavaClient(driver, server)
        yield client
        client.close()


def wait_for_size(java: JavaClient, topic: str, count: int) -> None:
    def enough() -> bool:
        return sum(java.max_offset(topic, queue) for queue in range(QUEUES)) >= count

    wait_until(enough, ARRIVAL_TIMEOUT_S, f"{count} messages of {topic}")


def test_a_message_comes_in_its_time(recalling: JavaClient) -> None:
    recalling.create_topic("Timed", QUEUES)
    began_ms = round(time.time() * 1000)
    [report] = recalling.producer().send("Timed", [Outgoing(body=b"timed", delay=3000)])
    assert report.status == "SEND_OK"
    wait_for_size(recalling, "Timed", 1)
    [message] = recalling.pull_consumer().read("Timed")
    assert began_ms + 3000 <= message.store_timestamp <= began_ms + 8000
    assert message.properties["REAL_TOPIC"] == "Timed"
    assert message.msg_id == report.msg_id


def test_a_message_is_recalled(recalling: JavaClient) -> None:
    recalling.create_topic("Recalled", QUEUES)
    producer = recalling.producer()
    first, second = producer.send(
        "Recalled", [Outgoing(body=b"first", delay=6000), Outgoing(body=b"second", delay=8000)]
    )
    assert first.recall_handle
    assert producer.recall("Recalled", first.recall_handle) == first.msg_id
    wait_for_size(recalling, "Recalled", 1)
    [message] = recalling.pull_consumer().read("Recalled")
    assert message.body == b"second"
    assert second.recall_handle
    with pytest.raises(JavaError):  # its time is over
        producer.recall("Recalled", second.recall_handle)
