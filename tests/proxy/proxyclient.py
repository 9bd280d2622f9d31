"""Client of a proxy for tests of whole flows: a producer or consumer with the usual requests, each in one call."""

from __future__ import annotations

import hmac
from typing import Any

from firearrow.proxy import messages as m
from tests.proxy.rpcs import Rpcs, Telemetry, receive_request, send_request, settings_of_consumer, settings_of_producer

SECONDS_MAX = 20
DATE = "20261129T013000Z"


def signed(user: str, secret: str) -> dict[str, str]:
    """Return the metadata that prove a user."""
    signature = hmac.new(secret.encode(), DATE.encode(), "sha1").hexdigest()
    words = f"Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return {"x-mq-date-time": DATE, "authorization": f"MQv2-HMAC-SHA1 {words}"}


class ProxyClient(Rpcs):
    """Calls of one client id; each method fails if the answer has another shape than it should."""

    def produce(self, *topics: str) -> Telemetry:
        """Become a producer; return the stream after the answer to the settings."""
        return self.begin(settings_of_producer(*topics))[0]

    def consume(
        self, group: str, *topics: str, kind: m.ClientType = m.ClientType.SIMPLE_CONSUMER, expression: str = "*"
    ) -> Telemetry:
        """Become a consumer; return the stream after the answer to the settings."""
        settings = settings_of_consumer(group, *topics, kind=kind)
        for entry in settings.subscription.subscriptions:
            entry.expression.expression = expression
        return self.begin(settings)[0]

    def heartbeat(self, client_type: m.ClientType, group: str = "") -> m.Status:
        """Send a heartbeat; return the status of the answer."""
        request = m.HeartbeatRequest(client_type=client_type)
        if group:
            request.group.name = group
        answer: m.HeartbeatResponse = self.Heartbeat(request)
        return answer.status

    def send(self, topic: str, body: bytes, **system: Any) -> m.SendMessageResponse:
        """Send a message; ``system`` are options of `send_request`."""
        answer: m.SendMessageResponse = self.SendMessage(send_request(topic, body, **system))
        return answer

    def receive(self, group: str, topic: str, broker: str = "", *, wait_s: int = 5) -> list[m.Message]:
        """Receive messages of any broker, or of one."""
        request = receive_request(group, topic, wait_s=wait_s)
        request.message_queue.broker.name = broker
        return self.received(request)

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
        answer: m.AckMessageResponse = self.AckMessage(request)
        return answer
