"""Identity of a client: its address, its id, and the ids that it gives to messages."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from random import Random

from msgspec.structs import replace

from firearrow.clock import Clock
from firearrow.message.ids import create_unique_id, month_start_ms, unique_id_prefix
from firearrow.message.names import java_hash
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import Heartbeat

_MONTH_MS_MIN = 28 * 24 * 3_600_000


def local_ip() -> str:
    """IP address of this machine towards others; the look-up sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737: no machine has this address
        except OSError:
            return "127.0.0.1"
        ip: str = probe.getsockname()[0]
        return ip


def client_id(ip: str, instance: str, unit: str = "") -> str:
    """Client id as brokers know it: ``ip@instance``, or ``ip@instance@unit``."""
    host = f"[{ip}]" if ":" in ip else ip
    return f"{host}@{instance}@{unit}" if unit else f"{host}@{instance}"


def instance_name(chance: Random) -> str:
    """Instance name in the form of RocketMQ's clients, ``pid#number``, unique on this machine."""
    return f"{os.getpid()}#{chance.getrandbits(48)}"


class UniqueIds:
    """Unique ids for messages (``UNIQ_KEY``)."""

    def __init__(self, ip: str, clock: Clock, chance: Random) -> None:
        self._prefix = unique_id_prefix(ip, os.getpid(), chance.getrandbits(32))
        self._clock = clock
        self._month_ms = month_start_ms(clock.now_ms())
        self._counter = chance.getrandbits(16)

    def next(self) -> str:
        """Next id."""
        since = self._clock.now_ms() - self._month_ms
        if not 0 <= since < _MONTH_MS_MIN:
            self._month_ms = month_start_ms(self._clock.now_ms())
            since = self._clock.now_ms() - self._month_ms
        self._counter += 1
        return create_unique_id(self._prefix, since, self._counter)


# Heartbeats of version 2 repeat no subscriptions that the broker has.
#
# Each heartbeat has a number that stands for its content except versions. A broker that has confirmed version 2 gets
# the number alone, until the content changes or the broker asks for everything.
#
# Source: RocketMQ's ``MQClientInstance#sendHeartbeatToBrokerV2``, ``HeartbeatData#computeHeartbeatFingerprint``.


class Fingerprints:
    """Fingerprints that brokers have confirmed, by broker address."""

    def __init__(self) -> None:
        self._confirmed: dict[str, int] = {}

    def mark(self, address: str, body: Heartbeat) -> Heartbeat:
        """Add the fingerprint to a heartbeat, and leave out the subscriptions that the broker has."""
        number = fingerprint(body)
        knows = self._confirmed.get(address) == number
        if knows:
            consumers = [replace(it, subscription_data_set=[]) for it in body.consumer_data_set]
            body = replace(body, consumer_data_set=consumers)
        return replace(body, heartbeat_fingerprint=number, without_sub=knows)

    def answered(self, address: str, body: Heartbeat, fields: Mapping[str, str]) -> None:
        """Note the broker's answer to a heartbeat."""
        if body.without_sub and fields.get("IS_SUB_CHANGE") == "true":
            self.forget(address)
        elif not body.without_sub and fields.get("IS_SUPPORT_HEART_BEAT_V2") == "true":
            self._confirmed[address] = body.heartbeat_fingerprint

    def forget(self, address: str) -> None:
        """Send the full content with the next heartbeat."""
        self._confirmed.pop(address, None)


def fingerprint(body: Heartbeat) -> int:
    """Fingerprint of a heartbeat; never 0, since 0 means version 1."""
    consumers = [
        replace(consumer, subscription_data_set=[replace(one, sub_version=0) for one in consumer.subscription_data_set])
        for consumer in body.consumer_data_set
    ]
    plain = replace(body, client_id="", consumer_data_set=consumers, heartbeat_fingerprint=0, without_sub=False)
    return java_hash(fastjson.dumps(plain).decode()) or 1
