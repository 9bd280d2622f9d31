"""Client of a proxy for tests: gRPC's own channel, Firearrow's messages, and the metadata of RocketMQ's clients."""

from __future__ import annotations

import hmac
import queue
from collections.abc import Iterator
from typing import Any, Self

import grpc

from firearrow.clock import SystemClock
from firearrow.proxy import messages as m
from firearrow.proxy.times import timestamp_of

SECONDS_MAX = 20
SERVICE = "apache.rocketmq.v2.MessagingService"
DATE = "20261129T013000Z"


class ProxyClient:
    """A channel with a client id; ``user`` and ``secret`` sign the calls."""

    def __init__(self, address: str, client_id: str, user: str = "", secret: str = "") -> None:
        self.client_id = client_id
        self.metadata = [
            ("x-mq-client-id", client_id),
            ("x-mq-language", "JAVA"),
            ("x-mq-client-version", "5.0.7"),
            ("x-mq-date-time", DATE),
        ]
        if user:
            signature = hmac.new(secret.encode(), DATE.encode(), "sha1").hexdigest()
            words = f"Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}"
            self.metadata.append(("authorization", f"MQv2-HMAC-SHA1 {words}"))
        self._channel: Any = grpc.insecure_channel(address)
        self._streams: list[TelemetryStream] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.close()
        self._channel.close()

    def call(self, name: str, request: Any) -> Any:
        """Make a call with one answer, by its method's name."""
        method = self._channel.unary_unary(f"/{SERVICE}/{name}", None, getattr(m, f"{name}Response").FromString)
        return method(request.SerializeToString(), timeout=SECONDS_MAX, metadata=self.metadata)

    def stream(self, name: str, request: Any) -> list[Any]:
        """Make a call with several answers, and return all."""
        method = self._channel.unary_stream(f"/{SERVICE}/{name}", None, getattr(m, f"{name}Response").FromString)
        return list(method(request.SerializeToString(), timeout=SECONDS_MAX, metadata=self.metadata))

    # --- clients ---

    def telemetry(self, settings: m.Settings) -> TelemetryStream:
        """Open a stream by settings."""
        method = self._channel.stream_stream(f"/{SERVICE}/Telemetry", None, m.TelemetryCommand.FromString)
        stream = TelemetryStream(method, self.metadata)
        self._streams.append(stream)
        stream.send(m.TelemetryCommand(settings=settings))
        return stream

    def produce(self, *topics: str) -> TelemetryStream:
        """Become a producer; return the stream after the answer to the settings."""
        publishing = m.Publishing(topics=[m.Resource(name=topic) for topic in topics])
        return self._settled(m.Settings(client_type=m.ClientType.PRODUCER, publishing=publishing))

    def consume(
        self, group: str, *topics: str, kind: m.ClientType = m.ClientType.SIMPLE_CONSUMER, expression: str = "*"
    ) -> TelemetryStream:
        """Become a consumer; return the stream after the answer to the settings."""
        entries = [
            m.SubscriptionEntry(topic=m.Resource(name=topic), expression=filter_of(expression)) for topic in topics
        ]
        subscription = m.Subscription(group=m.Resource(name=group), subscriptions=entries)
        return self._settled(m.Settings(client_type=kind, subscription=subscription))

    def _settled(self, settings: m.Settings) -> TelemetryStream:
        stream = self.telemetry(settings)
        answer = stream.receive()
        assert answer.status.code == m.Code.OK, answer.status
        assert answer.HasField("settings")
        return stream

    def heartbeat(self, client_type: m.ClientType, group: str = "") -> m.HeartbeatResponse:
        """Send a heartbeat."""
        request = m.HeartbeatRequest(client_type=client_type)
        if group:
            request.group.name = group
        answer: m.HeartbeatResponse = self.call("Heartbeat", request)
        return answer

    def send(self, topic: str, body: bytes, *, message_id: str = "id", **system: Any) -> m.SendMessageResponse:
        """Send a message; ``system`` are further system properties."""
        usual: dict[str, Any] = {
            "message_type": m.MessageType.NORMAL,
            "born_timestamp": timestamp_of(SystemClock().now_ms()),
        }
        properties = m.SystemProperties(message_id=message_id, **usual | system)
        message = m.Message(topic=m.Resource(name=topic), body=body, system_properties=properties)
        answer: m.SendMessageResponse = self.call("SendMessage", m.SendMessageRequest(messages=[message]))
        return answer

    def receive(
        self, group: str, topic: str, broker: str = "", *, count: int = 32, invisible_s: int = 30, wait_s: int = 5
    ) -> list[m.Message]:
        """Receive messages; fail unless the proxy answers that there are some, or none."""
        request = receive_request(group, topic, broker, count=count, invisible_s=invisible_s, wait_s=wait_s)
        answers = self.stream("ReceiveMessage", request)
        assert answers[0].status.code in (m.Code.OK, m.Code.MESSAGE_NOT_FOUND), answers[0].status
        assert answers[-1].HasField("delivery_timestamp")
        return [answer.message for answer in answers if answer.HasField("message")]

    def receive_all(self, group: str, topic: str, broker: str, count: int) -> list[m.Message]:
        """Receive a number of messages from a broker, by several calls."""
        found: list[m.Message] = []
        while len(found) < count:
            found += self.receive(group, topic, broker)
        return found

    def ack(self, group: str, topic: str, *handles: str) -> m.AckMessageResponse:
        """Acknowledge messages."""
        entries = [m.AckMessageEntry(message_id="id", receipt_handle=handle) for handle in handles]
        request = m.AckMessageRequest(group=m.Resource(name=group), topic=m.Resource(name=topic), entries=entries)
        answer: m.AckMessageResponse = self.call("AckMessage", request)
        return answer


class TelemetryStream:
    """A telemetry stream, open until its client is closed."""

    def __init__(self, method: Any, metadata: list[tuple[str, str]]) -> None:
        self._sent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call: Any = method(self._requests(), metadata=metadata)

    def _requests(self) -> Iterator[bytes]:
        while (data := self._sent.get()) is not None:
            yield data

    def send(self, command: m.TelemetryCommand) -> None:
        """Send a command."""
        self._sent.put(command.SerializeToString())

    def receive(self) -> m.TelemetryCommand:
        """Wait for the next command of the proxy; grpc.RpcError when the stream has failed."""
        command: m.TelemetryCommand = next(self._call)
        return command

    def close(self) -> None:
        """End the stream."""
        self._sent.put(None)
        self._call.cancel()


def receive_request(
    group: str, topic: str, broker: str = "", *, count: int = 32, invisible_s: int = 30, wait_s: int = 5
) -> m.ReceiveMessageRequest:
    """Return a request for messages of any broker, or of one."""
    return m.ReceiveMessageRequest(
        group=m.Resource(name=group),
        message_queue=m.MessageQueue(topic=m.Resource(name=topic), broker=m.Broker(name=broker)),
        filter_expression=filter_of("*"),
        batch_size=count,
        invisible_duration=m.Duration(seconds=invisible_s),
        long_polling_timeout=m.Duration(seconds=wait_s),
    )


def filter_of(expression: str) -> m.FilterExpression:
    """Return a filter by tags."""
    return m.FilterExpression(type=m.FilterType.TAG, expression=expression)
