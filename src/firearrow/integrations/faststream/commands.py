"""Commands to publish messages, and responses of handlers with options of RocketMQ."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack, cast

from faststream.response import BatchPublishCommand, PublishCommand, PublishType, Response

from firearrow.client.message import Message


class RequestOptions(TypedDict, total=False):
    """Options of a request, as for `Producer.request`."""

    tag: str
    """Tag, for the filters of subscribers."""
    key: str | Sequence[str]
    """Word, or several, for looking the message up."""
    sharding_key: str
    """Key that chooses the queue: messages of one key keep their order."""


class SendingOptions(RequestOptions, total=False):
    """Options of a message, as for `Producer.send`."""

    delay: timedelta
    """Time from now until the message is delivered."""
    deliver_at: datetime
    """Time of the delivery, with a time zone."""
    priority: int
    """Priority from 0 on, for a priority topic."""


class RocketMQPublishCommand(BatchPublishCommand):
    """Command to publish one message or a batch.

    ``timeout`` is for a request, in seconds. ``request`` is the request that the message replies to.
    """

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        _publish_type: PublishType,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: float | None = None,
        sending: RequestOptions | None = None,
    ) -> None:
        super().__init__(
            body,
            *bodies,
            _publish_type=_publish_type,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
        )
        self.timeout = timeout
        self.sending: SendingOptions = cast("SendingOptions", sending or {})
        self.request: Message | None = None

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> RocketMQPublishCommand:
        """Command of any other one; with ``batch``, a sequence is the bodies of a batch."""
        if isinstance(cmd, cls) and not batch:
            return cmd
        body, rest = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *rest,
            _publish_type=cmd.publish_type,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            sending=cmd.sending if isinstance(cmd, cls) else None,
        )


class RocketMQResponse(Response):
    """Response of a handler, with options for its publishers."""

    def __init__(
        self,
        body: Any = None,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **sending: Unpack[SendingOptions],
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.sending = sending

    def as_publish_command(self) -> RocketMQPublishCommand:
        """Command of a publisher."""
        return RocketMQPublishCommand(
            self.body,
            _publish_type=PublishType.PUBLISH,
            headers=self.headers,
            correlation_id=self.correlation_id,
            sending=self.sending,
        )

    def get_publish_key(self) -> Any | None:
        """Sharding key."""
        return self.sending.get("sharding_key")
