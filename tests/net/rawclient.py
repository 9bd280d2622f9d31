"""A remoting client that blocks, for tests that send requests by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from firearrow.client.session.portal import LoopThread
from firearrow.errors import BrokerError
from firearrow.message.names import AUTO_CREATE_TOPIC
from firearrow.net import futures
from firearrow.net.access import OPEN, Access
from firearrow.net.client import Client
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import NO_FIELDS, FieldValue
from firearrow.wire.frame import AnyCommand

CALL_SECONDS_MAX: Final = 10.0


class RawPending:
    """A request in flight."""

    def __init__(self, thread: LoopThread, address: str, pending: futures.Pending) -> None:
        self._thread = thread
        self._address = address
        self._pending = pending

    def done(self) -> bool:
        """Tell whether the answer has arrived."""
        return self._pending.done()

    def answer(self) -> AnyCommand:
        """Wait for the answer, with any code."""

        async def wait() -> AnyCommand:
            return await self._pending

        return self._thread.run(wait())

    def result(self) -> AnyCommand:
        """Wait for the answer; BrokerError unless its code is 0."""
        answer = self.answer()
        if answer.code != 0:
            raise BrokerError.of(answer.code, answer.remark, self._address)
        return answer


class RawClient:
    """Calls servers by address; its loop has a thread from the first call until ``close``."""

    def __init__(self, access: Access = OPEN, *, timeout_seconds: float = CALL_SECONDS_MAX) -> None:
        self._client = Client(access=access, call_seconds=timeout_seconds)
        self._thread: LoopThread | None = None

    def begin(
        self,
        address: str,
        code: int,
        fields: Mapping[str, FieldValue] = NO_FIELDS,
        body: bytes = b"",
        *,
        timeout_seconds: float | None = None,
    ) -> RawPending:
        """Send a request without waiting for the answer."""
        if self._thread is None:
            self._thread = LoopThread("raw client")
        pending = self._thread.run(self._client.begin(address, code, fields, body, timeout_seconds=timeout_seconds))
        return RawPending(self._thread, address, pending)

    def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, FieldValue] = NO_FIELDS,
        body: bytes = b"",
        *,
        timeout_seconds: float | None = None,
    ) -> AnyCommand:
        """Send a request and wait for its answer; BrokerError unless its code is 0."""
        return self.begin(address, code, fields, body, timeout_seconds=timeout_seconds).result()

    def close(self) -> None:
        """Close all connections; a call after that opens others."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close(self._client.close)


def create_topic(client: RawClient, address: str, topic: str, queues: int, perm: int = 6) -> None:
    """Create a topic on a broker, or change it."""
    fields: dict[str, FieldValue] = {
        "topic": topic,
        "defaultTopic": AUTO_CREATE_TOPIC,
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": perm,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
    client.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
