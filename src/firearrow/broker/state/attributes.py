"""Attributes of topics and groups: their names, their values, and their changes by requests.

A request has changes, ``+key=value`` to add or alter and ``-key`` to delete; a topic or group has the outcome, without
signs. At its creation only additions are possible. Some attributes decide the form of a topic's files and are fixed
from then on.

Source: RocketMQ's ``TopicAttributes``, ``SubscriptionGroupAttributes``, ``AttributeUtil``, ``AttributeParser``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from firearrow.errors import BrokerError
from firearrow.javanumbers import INT_MAX, LONG_MAX
from firearrow.wire.bodies import QUEUE_TYPE, TopicConfig
from firearrow.wire.codes import ResponseCode


class Attribute(NamedTuple):
    """Attribute: True if it may change after creation, and a function that returns the fault of a value."""

    changeable: bool
    fault: Callable[[str], str | None]


def _one_of(*values: str) -> Callable[[str], str | None]:
    def fault(value: str) -> str | None:
        return None if value in values else f"value is not in set: [{', '.join(values)}]"

    return fault


def _between(least: int, most: int) -> Callable[[str], str | None]:
    def fault(value: str) -> str | None:
        try:
            inside = least <= int(value) <= most
        except ValueError:
            return f"{value!r} is not a number"
        return None if inside else f"value is not in range({least}, {most})"

    return fault


def _policy(value: str) -> str | None:
    if value == COMPACTION:
        return "there are no compaction topics: all messages are deleted with the log's files"
    return _one_of("DELETE", COMPACTION)(value)


def _any(_: str) -> None:
    """Accept any text."""


_BOOLEAN: Final = _one_of("true", "false")

CLEANUP_POLICY: Final = "cleanup.policy"
COMPACTION: Final = "COMPACTION"
MESSAGE_TYPE: Final = "message.type"
PRIORITY: Final = "PRIORITY"
PRIORITY_FACTOR: Final = "priority.factor"
LITE: Final = "LITE"
LITE_BIND_TOPIC: Final = "lite.bind.topic"

TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    QUEUE_TYPE: Attribute(False, _one_of("BatchCQ", "SimpleCQ")),
    CLEANUP_POLICY: Attribute(False, _policy),
    MESSAGE_TYPE: Attribute(
        True, _one_of(*("UNSPECIFIED", "NORMAL", "FIFO", "DELAY"), *("TRANSACTION", "MIXED", PRIORITY, LITE))
    ),
    "reserve.time": Attribute(True, _between(-1, LONG_MAX)),
    "lite.topic.expiration": Attribute(True, _between(-1, INT_MAX)),
    # Firearrow's own, for the pipeline that makes tables of topics (`firearrow pipeline tables`)
    "table.format": Attribute(True, _one_of("delta", "iceberg")),
    "table.mode": Attribute(True, _one_of("append", "upsert")),
    "table.bodies": Attribute(True, _one_of("json", "avro", "protobuf")),
    "table.change.data.feed": Attribute(True, _BOOLEAN),
    **{
        f"table.{name}": Attribute(True, _any)
        for name in ("schema", "registry", "subject", "message", "partition", "cluster", "key")
    },
}
"""Attributes that a topic can have."""

GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    PRIORITY_FACTOR: Attribute(True, _between(0, 100)),
    LITE_BIND_TOPIC: Attribute(True, _any),
    "lite.sub.model": Attribute(True, _one_of("Shared", "Exclusive")),
    "lite.sub.reset.offset.exclusive": Attribute(True, _BOOLEAN),
    "lite.sub.reset.offset.unsubscribe": Attribute(True, _BOOLEAN),
    "lite.sub.client.quota": Attribute(True, _between(-1, LONG_MAX)),
    "lite.sub.client.max.event.cnt": Attribute(True, _between(10, LONG_MAX)),
    "lite.sub.wildcard": Attribute(True, _any),
}
"""Attributes that a consumer group can have."""


def has_priorities(topic: TopicConfig) -> bool:
    """Tell whether a topic has a queue for each priority."""
    return topic.attributes.get(MESSAGE_TYPE) == PRIORITY


def parse_changes(text: str | None) -> dict[str, str]:
    """Read ``+k=v,-k`` into changes by signed key; BrokerError names the fault."""
    changes: dict[str, str] = {}
    for part in filter(None, (text or "").split(",")):
        key, equals, value = part.partition("=")
        if equals and not key.startswith("+"):
            raise _refusal(f"add/alter attribute format is wrong: {key}")
        if not equals and not key.startswith("-"):
            raise _refusal(f"delete attribute format is wrong: {key}")
        if equals and not value:
            raise _refusal(f"attribute without a value: {key}")
        if key in changes:
            raise _refusal(f"key duplication: {key}")
        changes[key] = value
    return changes


def altered(
    known: Mapping[str, Attribute], current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """Return the attributes after the changes; ``current`` is None on creation.

    Raises BrokerError that names the key and the reason against its change.
    """
    outcome = dict(current or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        _check_form(sign, key, seen, current)
        _check_rules(known, key, None if sign == "-" else value, creating=current is None)
        if sign == "+":
            outcome[key] = value
        else:
            del outcome[key]
        seen.add(key)
    return outcome


def _check_form(sign: str, key: str, seen: set[str], current: Mapping[str, str] | None) -> None:
    if not key or any(mark in key for mark in "+-="):
        raise _refusal(f"kv string format wrong: {sign}{key}")
    if key in seen:
        raise _refusal(f"alter duplication key. key: {key}")
    if current is None:
        if sign != "+":
            raise _refusal(f"only add attribute is supported while creating. key: {key}")
    elif sign == "-":
        if key not in current:
            raise _refusal(f"attempt to delete a nonexistent key: {key}")
    elif sign != "+":
        raise _refusal(f"wrong format key: {sign}{key}")


def _check_rules(known: Mapping[str, Attribute], key: str, value: str | None, *, creating: bool) -> None:
    attribute = known.get(key)
    if attribute is None:
        raise _refusal(f"unsupported key: {key}")
    if not creating and not attribute.changeable:
        raise _refusal(f"attempt to update an unchangeable attribute. key: {key}")
    fault = None if value is None else attribute.fault(value)
    if fault is not None:
        raise _refusal(f"{key}: {fault}")


def _refusal(why: str) -> BrokerError:
    return BrokerError.lookup(ResponseCode.SYSTEM_ERROR)(ResponseCode.SYSTEM_ERROR, why)
