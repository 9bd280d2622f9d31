"""What attributes say of parents and groups of lite topics."""

import pytest

from firearrow.broker.lite import facts
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import SubscriptionGroupConfig


def topic(**attributes: str) -> TopicConfig:
    return TopicConfig(topic_name="P", attributes=attributes)


def group(attributes: dict[str, str]) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig(group_name="G", attributes=attributes)


def test_a_parent_and_its_time() -> None:
    assert facts.is_parent(topic(**{"message.type": "LITE"}))
    assert not facts.is_parent(topic(**{"message.type": "NORMAL"}))
    assert not facts.is_parent(topic())
    assert facts.expiration_minutes(topic()) == -1
    assert facts.expiration_minutes(topic(**{"lite.topic.expiration": "30"})) == 30


def test_a_group_without_attributes_is_none_of_lite_topics() -> None:
    for one in (None, group({})):
        assert facts.parent_of(one) is None
        assert not facts.is_exclusive(one)
        assert not facts.is_wildcard(one)
        assert not facts.begins_again(one, evicted=True)
        assert not facts.begins_again(one, evicted=False)


def test_what_a_group_may_be() -> None:
    assert facts.parent_of(group({"lite.bind.topic": "P"})) == "P"
    assert facts.is_exclusive(group({"lite.sub.model": "Exclusive"}))
    assert not facts.is_exclusive(group({"lite.sub.model": "Shared"}))
    assert facts.is_wildcard(group({"lite.sub.wildcard": ""}))


@pytest.mark.parametrize("evicted", [False, True])
def test_who_begins_again(evicted: bool) -> None:
    key = f"lite.sub.reset.offset.{'exclusive' if evicted else 'unsubscribe'}"
    assert facts.begins_again(group({key: "true"}), evicted=evicted)
    assert not facts.begins_again(group({key: "true"}), evicted=not evicted)
    assert not facts.begins_again(group({key: "false"}), evicted=evicted)
