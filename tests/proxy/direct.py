"""Calls of a proxy in virtual time: a client hands its requests to the methods, without a connection.

gRPC's own client has threads and sockets, so it can't be on a virtual loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import count
from typing import Any, Final, cast

from firearrow.net.grpc import Call, Method
from firearrow.proxy import messages as m
from firearrow.proxy.clusterproxy import ClusterProxy
from firearrow.proxy.local import LocalProxy
from firearrow.testing.virtual import VirtualTime
from firearrow.wire.grpc import Status
from tests.proxy.rpcs import send_request, settings_of_consumer

PATH: Final = "/apache.rocketmq.v2.MessagingService"
_numbers = count(1)


class DirectCall:
    """A call as the proxy sees it; ``answers`` gets its messages, and at last None or the failure."""

    def __init__(self, client: Direct, method: Method, timeout_ms: float | None) -> None:
        self.peer = client
        self.method = method
        self.fields = client.fields
        self.timeout_ms = timeout_ms
        self.received_ms = client.now_ms()
        self.cancelled: Callable[[], None] | None = None
        self.ended: Callable[[], None] | None = None
        self.is_over = False
        self.answers: asyncio.Queue[bytes | tuple[Status, str] | None] = asyncio.Queue()

    def take(self, data: bytes) -> None:
        """Send a message of the client."""
        answer = self.method.handler(cast(Call, self), data)
        if answer is not None:
            self.answer(answer)

    def cancel(self) -> None:
        """Give the call up."""
        self.is_over = True
        if self.cancelled is not None:
            self.cancelled()

    async def all(self) -> list[bytes]:
        """Wait for the end; return all messages that were not taken yet."""
        found: list[bytes] = []
        while (answer := await self.answers.get()) is not None:
            assert isinstance(answer, bytes), answer
            found.append(answer)
        return found

    def answer_all(self, messages: Iterable[bytes]) -> None:
        for message in messages:
            self.send(message)
        self.end()

    def answer(self, message: bytes) -> None:
        self.send(message)
        self.end()

    def send(self, message: bytes) -> None:
        if not self.is_over:
            self.answers.put_nowait(message)

    def end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.answers.put_nowait(None)

    def fail(self, status: Status, message: str) -> None:
        if not self.is_over:
            self.is_over = True
            self.answers.put_nowait((status, message))


class Direct:
    """A client with its connection: ``await direct.SendMessage(request)``."""

    def __init__(
        self, proxy: LocalProxy | ClusterProxy, now_ms: Callable[[], int], metadata: Mapping[str, str] | None = None
    ) -> None:
        self._methods = proxy.service.methods()
        number = next(_numbers)
        self.now_ms = now_ms
        self.client_id = f"direct-{number}"
        self.address = f"127.0.0.1:{number}"
        fields = {"x-mq-client-id": self.client_id, "x-mq-client-version": "5.1.2", **(metadata or {})}
        self.fields = {name.encode(): value.encode() for name, value in fields.items()}
        self.attached: Any = None
        self.named: tuple[bytes, str] | None = None
        self.is_open = True

    def detach(self, attached: object) -> None:
        if self.attached is attached:
            self.attached = None

    def lose(self) -> None:
        """End the connection."""
        self.is_open = False
        attached, self.attached = self.attached, None
        if attached is not None:
            attached.close()

    def begin(self, name: str, timeout_ms: float | None = 30_000) -> DirectCall:
        """Begin a call."""
        return DirectCall(self, self._methods[f"{PATH}/{name}".encode()], timeout_ms)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answer = getattr(m, f"{name}Response")

        async def call(request: Any) -> Any:
            begun = self.begin(name)
            begun.take(request.SerializeToString())
            [message] = await begun.all()
            return answer.FromString(message)

        return call

    async def received(self, request: m.ReceiveMessageRequest) -> list[m.Message]:
        """Receive; return the messages."""
        begun = self.begin("ReceiveMessage")
        begun.take(request.SerializeToString())
        answers = [m.ReceiveMessageResponse.FromString(message) for message in await begun.all()]
        code = answers[0].status.code
        assert code in (m.Code.OK, m.Code.MESSAGE_NOT_FOUND), answers[0].status
        return [answer.message for answer in answers[1:-1]]

    async def settled(self, settings: m.Settings) -> DirectCall:
        """Send settings on a new telemetry stream; return it when they are answered."""
        stream = self.begin("Telemetry", None)
        stream.take(m.TelemetryCommand(settings=settings).SerializeToString())
        answer = await stream.answers.get()
        assert isinstance(answer, bytes), answer
        assert m.TelemetryCommand.FromString(answer).status.code == m.Code.OK, answer
        return stream


async def answered(client: Direct, request: m.ReceiveMessageRequest, timeout_ms: float | None = 30_000) -> m.Status:
    """Return the status of a receive."""
    call = client.begin("ReceiveMessage", timeout_ms)
    call.take(request.SerializeToString())
    answers = [m.ReceiveMessageResponse.FromString(data) for data in await call.all()]
    assert answers[-1].WhichOneof("content") == "delivery_timestamp"
    return answers[0].status


class World:
    """A broker in virtual time, with a topic ``T`` of one queue and a consumer ``g`` of it."""

    def __init__(self, time: VirtualTime) -> None:
        self.time = time
        self.cluster = time.cluster
        self.tasks: list[asyncio.Task[None]] = []
        """Tasks that end with the test."""

    def client(self, **metadata: str) -> Direct:
        """Make a client."""
        found = {name.replace("_", "-"): value for name, value in metadata.items()}
        return Direct(self.cluster.brokers[0].proxy, self.time.clock.now_ms, found)

    async def consumer(self, topic: str = "T", group: str = "g", **metadata: str) -> Direct:
        """Make a client with the settings of a simple consumer."""
        client = self.client(**metadata)
        await client.settled(settings_of_consumer(group, topic))
        return client

    async def send(self, *bodies: bytes, topic: str = "T", **options: Any) -> None:
        """Send messages, and wait until they are in their queues."""
        answer = await self.client().SendMessage(send_request(topic, *bodies, **options))
        assert answer.status == m.Status(code=m.Code.OK, message="OK")
        await asyncio.sleep(0.1)

    def bodies(self, topic: str) -> list[bytes]:
        """Bodies of the stored messages of a topic."""
        return [view.body for view in self.cluster.messages(topic)]


def run(main: Callable[[World], Awaitable[None]], **keys: Any) -> None:
    """Run a test in virtual time."""

    async def begun() -> None:
        world = World(time)
        await world.cluster.create_topic("T", queues=1)
        try:
            await main(world)
        finally:
            for task in world.tasks:
                task.cancel()

    with VirtualTime(grpc=True, config=keys) as time:
        time.run(begun())
