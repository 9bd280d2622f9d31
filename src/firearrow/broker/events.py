"""Events of a broker, except its store's (``firearrow.events``, ``firearrow.store``)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import SubscriptionGroupConfig


class GroupLeft(NamedTuple):
    """The last member of a consumer group has left."""

    group: str


class TopicsChanged(NamedTuple):
    """Topics are new or have changed; the change is already stored."""

    configs: Sequence[TopicConfig]


class TopicMade(NamedTuple):
    """A send has created a topic."""

    config: TopicConfig


class GroupsChanged(NamedTuple):
    """Consumer groups are new or have changed; the change is already stored."""

    configs: Sequence[SubscriptionGroupConfig]


class GroupDeleted(NamedTuple):
    """A consumer group was deleted, if it existed."""

    group: str


class MembersChanged(NamedTuple):
    """A consumer group has other members or other topics than before; ``notify`` is True if its configuration wants
    notifications.
    """

    group: str
    notify: bool


class WaitsElsewhere(NamedTuple):
    """A message was put into a system topic, where it waits on its way to its topic. Messages with a delay level are
    reported by dispatch: there may be as many as messages.
    """

    topic: str
    real_topic: str


class SettingsChanged(NamedTuple):
    """Keys of the configuration have other values."""

    keys: Collection[str]
