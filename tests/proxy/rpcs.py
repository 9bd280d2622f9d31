"""A client of RocketMQ 5's gRPC protocol for tests: each RPC by its name, with Firearrow's messages."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Final, Self

import grpc

from firearrow.proxy import messages as m

SERVICE: Final = "/apache.rocketmq.v2.MessagingService"
ADMIN: Final = "/apache.rocketmq.v2.Admin"
SECONDS_MAX: Final = 30.0
OPTIONS: Final = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.http2.bdp_probe", 0),  # windows that stay as they are
]
_numbers = count()


class Rpcs:
    """Calls of one client id; `rpcs.SendMessage(request)` returns the answer, or for a stream all its messages."""

    def __init__(
        self, address: str, client_id: str = "", metadata: Mapping[str, str] | None = None, trust: bytes | None = None
    ) -> None:
        if trust is None:
            self._channel = grpc.insecure_channel(address, OPTIONS)
        else:
            self._channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(trust), OPTIONS)
        self.client_id = client_id or f"client-{next(_numbers)}"
        self.metadata = {
            "x-mq-client-id": self.client_id,
            "x-mq-language": "PYTHON",
            "x-mq-client-version": "5.1.2",
            "x-mq-protocol": "v2",
            **(metadata or {}),
        }
        self._streams: list[Telemetry] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the streams and the connection."""
        for stream in self._streams:
            stream.close()
        self._channel.close()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answer = getattr(m, f"{name}Response")

        def call(request: Any, seconds: float = SECONDS_MAX) -> Any:
            return self._channel.unary_unary(f"{SERVICE}/{name}", None, answer.FromString)(
                request.SerializeToString(), timeout=seconds, metadata=list(self.metadata.items())
            )

        return call

    def call(self, name: str, request: bytes, seconds: float = SECONDS_MAX) -> bytes:
        """Call a method with any bytes; return the answer's."""
        found: bytes = self._channel.unary_unary(f"{SERVICE}/{name}")(
            request, timeout=seconds, metadata=list(self.metadata.items())
        )
        return found

    def admin(self, name: str, request: Any, seconds: float = SECONDS_MAX) -> Any:
        """Call an RPC of the Admin service."""
        return self.begun_admin(name, request, seconds).result()

    def begun_admin(self, name: str, request: Any, seconds: float = SECONDS_MAX) -> Any:
        """Begin a call of the Admin service; its `result` is the answer."""
        answer = m.ListMessageResponse if name == "QueryMessage" else getattr(m, f"{name}Response")
        return self._channel.unary_unary(f"{ADMIN}/{name}", None, answer.FromString).future(
            request.SerializeToString(), timeout=seconds, metadata=list(self.metadata.items())
        )

    def future(self, name: str, request: Any, seconds: float = SECONDS_MAX) -> Any:
        """Begin the call of an RPC with one answer; its ``result()`` is the answer."""
        answer = getattr(m, f"{name}Response")
        return self._channel.unary_unary(f"{SERVICE}/{name}", None, answer.FromString).future(
            request.SerializeToString(), timeout=seconds, metadata=list(self.metadata.items())
        )

    def raw(self, name: str, request: bytes, seconds: float = SECONDS_MAX) -> list[bytes]:
        """Call a method with any bytes; return the messages of its answer."""
        call = self._channel.unary_stream(f"{SERVICE}/{name}")
        return list(call(request, timeout=seconds, metadata=list(self.metadata.items())))

    def streamed(self, name: str, request: Any, seconds: float = SECONDS_MAX) -> Any:
        """Return the call of an RPC whose answer is a stream: an iterator that can be cancelled."""
        answer = getattr(m, f"{name}Response")
        return self._channel.unary_stream(f"{SERVICE}/{name}", None, answer.FromString)(
            request.SerializeToString(), timeout=seconds, metadata=list(self.metadata.items())
        )

    def received(self, request: m.ReceiveMessageRequest, seconds: float = SECONDS_MAX) -> list[m.Message]:
        """Receive; check the frame of the answer, a status first and a time last; return the messages."""
        answers = list(self.streamed("ReceiveMessage", request, seconds))
        kinds = [answer.WhichOneof("content") for answer in answers]
        assert kinds[0] == "status", kinds
        assert kinds[-1] == "delivery_timestamp", kinds
        assert set(kinds[1:-1]) <= {"message"}, kinds
        code = answers[0].status.code
        assert code == (m.Code.OK if len(answers) > 2 else m.Code.MESSAGE_NOT_FOUND), answers[0].status
        return [answer.message for answer in answers[1:-1]]

    def telemetry(self) -> Telemetry:
        """Open a telemetry stream."""
        stream = Telemetry(self._channel, self.metadata)
        self._streams.append(stream)
        return stream

    def begin(self, settings: m.Settings) -> tuple[Telemetry, m.Settings]:
        """Send settings on a new stream; return it and the proxy's answer."""
        stream = self.telemetry()
        stream.send(m.TelemetryCommand(settings=settings))
        answer = stream.next()
        assert answer.status.code == m.Code.OK, answer
        return stream, answer.settings

    @staticmethod
    def ack_request(group: str, topic: str, *messages: m.Message) -> m.AckMessageRequest:
        entries = [
            m.AckMessageEntry(
                message_id=message.system_properties.message_id,
                receipt_handle=message.system_properties.receipt_handle,
                lite_topic=message.system_properties.lite_topic or None,
            )
            for message in messages
        ]
        return m.AckMessageRequest(group=m.Resource(name=group), topic=m.Resource(name=topic), entries=entries)


class Telemetry:
    """A telemetry stream."""

    def __init__(self, channel: grpc.Channel, metadata: Mapping[str, str]) -> None:
        self._out: queue.SimpleQueue[m.TelemetryCommand | None] = queue.SimpleQueue()
        self.call = channel.stream_stream(
            f"{SERVICE}/Telemetry", lambda message: message.SerializeToString(), m.TelemetryCommand.FromString
        )(self._requests(), metadata=list(metadata.items()), timeout=10 * SECONDS_MAX)

    def _requests(self) -> Iterator[m.TelemetryCommand]:
        while (command := self._out.get()) is not None:
            yield command

    def send(self, command: m.TelemetryCommand) -> None:
        self._out.put(command)

    def next(self) -> m.TelemetryCommand:
        """Wait for the next command of the proxy; grpc.RpcError if the stream fails, StopIteration at its end."""
        command: m.TelemetryCommand = next(self.call)
        return command

    def end(self) -> None:
        """Say that no command follows."""
        self._out.put(None)

    def close(self) -> None:
        self.end()
        self.call.cancel()


def send_request(
    topic: str,
    *bodies: bytes,
    kind: m.MessageType = m.MessageType.NORMAL,
    tag: str = "",
    keys: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    **system: Any,
) -> m.SendMessageRequest:
    """Return a send of messages that differ by their bodies; ``system`` are further fields of SystemProperties."""
    request = m.SendMessageRequest()
    for body in bodies:
        message = request.messages.add(topic=m.Resource(name=topic), body=body, user_properties=properties or {})
        found = m.SystemProperties(
            message_id=f"{next(_numbers):032X}",
            body_encoding=m.Encoding.IDENTITY,
            message_type=kind,
            born_host="tests",
            keys=keys,
            **system,
        )
        if tag:
            found.tag = tag
        found.born_timestamp.GetCurrentTime()
        message.system_properties.CopyFrom(found)
    return request


def receive_request(
    group: str, topic: str, *, count: int = 32, invisible_s: int = 30, wait_s: int = 10, auto_renew: bool = False
) -> m.ReceiveMessageRequest:
    """Return a receive of all messages of a topic."""
    return m.ReceiveMessageRequest(
        group=m.Resource(name=group),
        message_queue=m.MessageQueue(topic=m.Resource(name=topic)),
        filter_expression=m.FilterExpression(type=m.FilterType.TAG, expression="*"),
        batch_size=count,
        invisible_duration=m.Duration(seconds=invisible_s),
        long_polling_timeout=m.Duration(seconds=wait_s),
        auto_renew=auto_renew,
    )


def settings_of_consumer(group: str, *topics: str, kind: m.ClientType = m.ClientType.SIMPLE_CONSUMER) -> m.Settings:
    """Return the settings of a consumer of all messages of topics."""
    settings = m.Settings(client_type=kind)
    settings.request_timeout.seconds = 3
    settings.subscription.group.name = group
    for topic in topics:
        entry = settings.subscription.subscriptions.add(topic=m.Resource(name=topic))
        entry.expression.type = m.FilterType.TAG
        entry.expression.expression = "*"
    return settings


def settings_of_producer(*topics: str) -> m.Settings:
    """Return the settings of a producer."""
    settings = m.Settings(client_type=m.ClientType.PRODUCER)
    settings.request_timeout.seconds = 3
    settings.publishing.topics.extend(m.Resource(name=topic) for topic in topics)
    return settings
