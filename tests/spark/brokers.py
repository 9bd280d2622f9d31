"""A broker in a process of its own, and what is in its queues, read by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from firearrow.client.pull.rangereader import PullOptions
from firearrow.client.queues import Queue
from firearrow.message.model import MessageView
from firearrow.message.record import iter_records
from firearrow.wire.codes import RequestCode
from tests.interop.servers import BROKER_NAME, SMALL_FILES, Server, serve
from tests.net import rawclient
from tests.net.rawclient import RawClient

PULLED_AT_ONCE = 32


def serving(
    directory: Path, settings: Mapping[str, str] | None = None, *, killed: bool = False
) -> AbstractContextManager[Server]:
    """Run name server and broker for a ``with`` block, with small files; see ``serve``."""
    keys = {**SMALL_FILES, **(settings or {})}
    store, logs = directory / "store", directory / "logs"
    return serve("firearrow", store, logs, settings=keys, killed=killed)


def create_topic(server: Server, topic: str, queues: int = 4, perm: int = 6) -> None:
    """Create a topic, or change it."""
    client = RawClient()
    rawclient.create_topic(client, server.broker, topic, queues, perm)
    client.close()


def stored(server: Server, topic: str, queues: int = 4) -> list[MessageView]:
    """All messages of a topic, queue by queue."""
    client = RawClient()
    try:
        return [view for n in range(queues) for view in _queue(client, server.broker, topic, n)]
    finally:
        client.close()


def _queue(client: RawClient, address: str, topic: str, queue_id: int) -> Iterator[MessageView]:
    options, queue = PullOptions("by_hand"), Queue(topic, BROKER_NAME, queue_id)
    queue_offset = 0
    while True:
        fields = options.fields(queue, queue_offset, PULLED_AT_ONCE)
        answer = client.begin(address, RequestCode.PULL_MESSAGE, fields).answer()
        if answer.code != 0:
            assert answer.code == 19, answer
            return
        yield from iter_records(answer.body)
        queue_offset = int(answer.ext["nextBeginOffset"])
