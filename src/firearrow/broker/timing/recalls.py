"""Recalls: messages by which others, that wait for their time, are not delivered.

A recall waits in the slot of the message that it names. Its key is the unique key of that message,
behind the topic where `appendTopicForTimerDeleteKey` says so.

Source: upstream ``RecallMessageProcessor``, ``TimerMessageStore#buildDeleteKey``.
"""

from __future__ import annotations

from firearrow.broker.sending.puts import Draft
from firearrow.broker.state.settings import Settings
from firearrow.message import names, properties
from firearrow.message.model import MessageView
from firearrow.message.recall import RecallHandle
from firearrow.store.config import StoreConfig

Recall = tuple[str, str]
"""The topic whose message is recalled, if that matters, and the key by which it is named."""


def recall_handle(draft: Draft, broker_name: str, unique_key: str) -> str | None:
    """The handle by which a message that was just put can be recalled, None if it can't."""
    topic = draft.properties.get(properties.REAL_TOPIC, "")
    if draft.topic != names.TIMER_TOPIC or names.is_retry(topic):
        return None
    # As upstream: a time within the slot, which is rounded down to the same one again.
    time_ms = int(draft.properties[properties.TIMER_OUT_MS]) + 1
    return RecallHandle(topic, broker_name, time_ms, unique_key).encode()


def delete_key(topic: str, unique_key: str, config: StoreConfig) -> str:
    """Give the names by which a recall names its messages."""
    return f"{topic}+{unique_key}" if config.append_topic_for_timer_delete_key else unique_key


def identity_of(view: MessageView) -> tuple[str, str]:
    """Give the topic that a waiting message is for, and its unique key.

    Senders choose the key, so by that alone one message could pass for another.
    """
    return view.properties.get(properties.REAL_TOPIC, ""), view.unique_key or ""


def recall_by(view: MessageView, settings: Settings) -> Recall:
    """Give the recall that a message is."""
    topic, _ = identity_of(view)
    return _recall(topic, view.properties[properties.TIMER_DELETE_UNIQUE_KEY], settings)


def recall_of(view: MessageView, settings: Settings) -> Recall:
    """Give the recall by which a message would not be delivered."""
    topic, unique_key = identity_of(view)
    return _recall(topic, delete_key(topic, unique_key, settings.store), settings)


def _recall(topic: str, key: str, settings: Settings) -> Recall:
    """A recall is of its own topic alone where it takes a permission to send to a topic."""
    return (topic if settings.broker.authorization_enabled else "", key)
