"""Heartbeats of version 2: a broker that has the subscriptions of a client is not told them again.

Each heartbeat has a number that stands for all it says but for versions. Once a broker has answered
that it knows version 2, it gets the number alone, until that changes or the broker asks for all.

Source: upstream ``MQClientInstance#sendHeartbeatToBrokerV2``,
``HeartbeatData#computeHeartbeatFingerprint``.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from firearrow.message.names import java_hash
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import Heartbeat


class Fingerprints:
    """Fingerprints that brokers have confirmed, by their addresses."""

    def __init__(self) -> None:
        self._confirmed: dict[str, int] = {}

    def mark(self, address: str, body: Heartbeat) -> Heartbeat:
        """Give a heartbeat its number, and leave out the subscriptions that the broker has."""
        number = fingerprint(body)
        knows = self._confirmed.get(address) == number
        if knows:
            consumers = [replace(it, subscription_data_set=[]) for it in body.consumer_data_set]
            body = replace(body, consumer_data_set=consumers)
        return replace(body, heartbeat_fingerprint=number, without_sub=knows)

    def answered(self, address: str, body: Heartbeat, fields: Mapping[str, str]) -> None:
        """Take note of what a broker said to a heartbeat."""
        if body.without_sub and fields.get("IS_SUB_CHANGE") == "true":
            self.forget(address)
        elif not body.without_sub and fields.get("IS_SUPPORT_HEART_BEAT_V2") == "true":
            self._confirmed[address] = body.heartbeat_fingerprint

    def forget(self, address: str) -> None:
        """Say everything next time."""
        self._confirmed.pop(address, None)


def fingerprint(body: Heartbeat) -> int:
    """The number of a heartbeat, which is never 0: that means version 1."""
    consumers = [
        replace(consumer, subscription_data_set=[replace(one, sub_version=0) for one in consumer.subscription_data_set])
        for consumer in body.consumer_data_set
    ]
    plain = replace(body, client_id="", consumer_data_set=consumers, heartbeat_fingerprint=0, without_sub=False)
    return java_hash(fastjson.dumps(plain).decode()) or 1
