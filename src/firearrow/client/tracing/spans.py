"""Spans of OpenTelemetry: one for each send, whose context the message carries to its consumer.

The context is in the message's properties (``traceparent`` and ``tracestate``, by the W3C). The attributes follow
OpenTelemetry's conventions for RocketMQ. This needs the extra ``otel``, which brings ``opentelemetry-api``. The
application configures the recording and export of spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from firearrow.client.message import Message
from firearrow.client.producer.drafts import Draft, Receipt
from firearrow.client.session.session import Session
from firearrow.errors import MissingPackage
from firearrow.message import properties as keys_of

SYSTEM: Final = "rocketmq"


class SendSpan:
    """Span of a send."""

    def __init__(self, span: Any) -> None:
        self._span = span

    def sent(self, receipt: Receipt) -> None:
        """Add the message's queue and id."""
        queue = receipt.queue
        self._span.set_attribute("messaging.message.id", receipt.message_id)
        self._span.set_attribute("messaging.destination.partition.id", f"{queue.broker}/{queue.queue_id}")


class Spans:
    """Spans of a group. Raises ConfigError if OpenTelemetry is not installed."""

    def __init__(self, session: Session, group: str) -> None:
        try:
            self._trace = import_module("opentelemetry.trace")
            self._propagate = import_module("opentelemetry.propagate")
        except ImportError as error:
            raise MissingPackage("spans need", "OpenTelemetry", "otel") from error
        self._tracer = self._trace.get_tracer("firearrow")
        self._session = session
        self._group = group

    @contextmanager
    def sending(self, drafts: Sequence[Draft]) -> Iterator[SendSpan]:
        """Span of a send. It adds its context to the messages' properties, so call it before they are encoded."""
        first = drafts[0]
        topic = self._session.bare(first.topic)
        attributes = self._attributes("send", topic, first.properties)
        attributes["messaging.message.body.size"] = sum(len(draft.body) for draft in drafts)
        if len(drafts) > 1:
            attributes["messaging.batch.message_count"] = len(drafts)
        kind = self._trace.SpanKind.PRODUCER
        with self._tracer.start_as_current_span(f"send {topic}", kind=kind, attributes=attributes) as span:
            for draft in drafts:
                self._propagate.inject(draft.properties)
            yield SendSpan(span)

    @contextmanager
    def processing(self, message: Message) -> Iterator[None]:
        """Span of the consumption of a message, as a child of its send's span."""
        attributes = self._attributes("process", message.topic, message.properties)
        attributes["messaging.message.body.size"] = len(message.body)
        attributes["messaging.message.id"] = message.message_id
        attributes["messaging.consumer.group.name"] = self._session.bare(self._group)
        with self._tracer.start_as_current_span(
            f"process {message.topic}",
            context=self._propagate.extract(message.properties),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=attributes,
        ):
            yield

    def _attributes(self, operation: str, topic: str, found: dict[str, str]) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": topic,
            "messaging.client.id": self._session.client_id,
            "messaging.rocketmq.namespace": self._session.namespace,
        }
        if keys_of.TAGS in found:
            attributes["messaging.rocketmq.message.tag"] = found[keys_of.TAGS]
        if keys_of.KEYS in found:
            attributes["messaging.rocketmq.message.keys"] = found[keys_of.KEYS].split()
        return attributes
