"""Send a copy of a message to its group's retry topic, if the message's broker can't redeliver it.

Source: RocketMQ's ``DefaultMQPushConsumerImpl#sendMessageBackAsNormalMessage``.
"""

from __future__ import annotations

from typing import Final

from firearrow.client.message import Message
from firearrow.client.producer.drafts import Draft
from firearrow.client.producer.sender import Rules, Sender
from firearrow.client.session.session import Session
from firearrow.message import properties as keys_of
from firearrow.message import sysflag
from firearrow.message.names import retry_topic

FIRST_RETRY_LEVEL: Final = 3
GROUP: Final = "CLIENT_INNER_PRODUCER"  # the producer group of RocketMQ's clients for this
_KEPT: Final = sysflag.COMPRESSED | sysflag.COMPRESSION_MASK


async def send_retry_copy(session: Session, group: str, message: Message, times_max: int) -> None:
    """Send the copy. Raises SendFailed with the reason."""
    view = message.view
    poster = Sender(session, GROUP, Rules())
    draft = Draft(retry_topic(group), view.body, _properties(session, message, times_max), view.flag)
    try:
        await poster.post(draft, sys_flag=view.sys_flag & _KEPT)
    finally:
        poster.close()


def _properties(session: Session, message: Message, times_max: int) -> dict[str, str]:
    found = {
        **message.view.properties,
        keys_of.RETRY_TOPIC: session.topic(message.topic),
        keys_of.DELAY_LEVEL: str(FIRST_RETRY_LEVEL + message.reconsume_times),
        keys_of.RECONSUME_TIME: str(message.reconsume_times + 1),
        keys_of.MAX_RECONSUME_TIMES: str(times_max),
    }
    found.setdefault(keys_of.ORIGIN_MESSAGE_ID, message.message_id)
    found.pop(keys_of.TRANSACTION_PREPARED, None)
    return found
