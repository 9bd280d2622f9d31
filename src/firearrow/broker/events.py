"""Events of a broker beside those of its store (``firearrow.events``, ``firearrow.store``)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import SubscriptionGroupConfig


class GroupLeft(NamedTuple):
    """The last member of a consumer group is gone."""

    group: str


class TopicsChanged(NamedTuple):
    """Topics are new or have changed; they are kept already."""

    configs: Sequence[TopicConfig]


class TopicMade(NamedTuple):
    """A send has made a topic."""

    config: TopicConfig


class GroupsChanged(NamedTuple):
    """Consumer groups are new or have changed; they are kept already."""

    configs: Sequence[SubscriptionGroupConfig]


class GroupDeleted(NamedTuple):
    """A consumer group is no more, if there was one."""

    group: str


class MembersChanged(NamedTuple):
    """A consumer group has other members or other topics than before; ``notify`` says whether its
    configuration wants them to be told."""

    group: str
    notify: bool


class WaitsElsewhere(NamedTuple):
    """A message was put that is to wait in a topic of the broker's own, on its way to another. Of
    those with a delay level dispatch tells: there may be as many as messages."""

    topic: str
    real_topic: str


class SettingsChanged(NamedTuple):
    """Keys of the configuration have other values."""

    keys: Collection[str]
