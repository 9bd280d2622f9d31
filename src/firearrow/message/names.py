"""Names of topics and groups: every rule in one place.

RocketMQ's names carry meaning. ``%RETRY%g`` holds the messages that group ``g`` failed to consume, ``%DLQ%g`` its dead
letters. ``%LMQ%q`` is an LMQ, which has no topic configuration. A fixed set of topics belongs to the broker itself::

    SCHEDULE_TOPIC_XXXX          delayed messages, queue = delay level - 1
    rmq_sys_wheel_timer          messages with a delivery time, until it comes
    RMQ_SYS_TRANS_HALF_TOPIC     transactional messages before commit or rollback
    RMQ_SYS_TRANS_OP_HALF_TOPIC  the decisions on these messages
    rmq_sys_REVIVE_LOG_<cluster> pops and acknowledgements of POP consumers

Sources of the rules: TopicValidator, MixAll, KeyBuilder, NamespaceUtil, MessageExtBrokerInner.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from struct import unpack

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
LMQ_PREFIX = "%LMQ%"
LITE_MARK = "$"
LITE_PREFIX = LMQ_PREFIX + LITE_MARK
LITE_CHARS_MAX = 64
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
TRANS_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ROCKSDB_TRANS_HALF_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_TRANS_OP_HALF_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"

REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
TRANS_GROUP = "CID_RMQ_SYS_TRANS"
TOOLS_GROUP = "TOOLS_CONSUMER"

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRANS_HALF_TOPIC,
        TRACE_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
        ROCKSDB_TRANS_HALF_TOPIC,
        ROCKSDB_TRANS_OP_HALF_TOPIC,
    }
)
"""System topics by name. Topics with the prefix ``rmq_sys_`` and those that a broker adds are system topics too."""

NOT_SENDABLE_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        ROCKSDB_TRANS_HALF_TOPIC,
        ROCKSDB_TRANS_OP_HALF_TOPIC,
    }
)
"""Topics that no client may send to."""

SYSTEM_GROUPS = frozenset(
    {
        "SELF_TEST_C_GROUP",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_PULL",
        "CID_ONS-HTTP-PROXY",
        TRANS_GROUP,
        TOOLS_GROUP,
        "FILTERSRV_CONSUMER",
    }
)
"""Consumer groups that every broker has from its start."""

TOPIC_LENGTH_MAX = 127  # characters: the length byte of a V1 record is signed
RETRY_TOPIC_LENGTH_MAX = 255  # characters: needs a V2 record above 127
DIRECTORY_BYTES_MAX = 255  # of its name
GROUP_LENGTH_MAX = 120  # characters: leaves room for the retry prefix in 127

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""Namespace of the pairs of name servers that have the queue counts of ordered topics, by broker."""

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_LITE_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_NAME_RULE = "only letters, digits and the characters % | _ - are allowed"


def validate_topic(name: str) -> str | None:
    """Return why a name cannot be a topic, or None if it can.

    Retry and dead-letter topics may have 255 characters, all others 127.
    """
    longest = RETRY_TOPIC_LENGTH_MAX if is_retry(name) or is_dlq(name) else TOPIC_LENGTH_MAX
    return _validate("topic", name, longest)


def validate_group(name: str) -> str | None:
    """Return why a name cannot be a producer or consumer group, or None if it can."""
    return _validate("group", name, GROUP_LENGTH_MAX)


def _validate(kind: str, name: str, longest: int) -> str | None:
    if not name.strip():
        return f"the {kind} name is blank"
    if _NAME.fullmatch(name) is None:
        return f"the {kind} name {name!r} contains illegal characters, {_NAME_RULE}"
    if len(name) > longest:
        return f"the {kind} name is {len(name)} characters long, the limit is {longest}"
    return None


def fault_as_directory(name: str) -> str | None:
    """Return why no directory may have the name of a topic, or None if one may.

    A topic of a record or a table may have any name, as another program may have written the record or table. Code that
    makes or removes a directory of that name, or writes it into a line of a file, must check it here first.
    `validate_topic` allows less; LMQs and the broker's system topics need more.
    """
    if name in ("", ".", ".."):
        return f"the name {name!r} is none of a directory"
    if "/" in name or not name.isprintable():
        return f"the name {name!r} contains illegal characters: / or unprintable ones"
    size = len(name.encode())
    if size > DIRECTORY_BYTES_MAX:
        return f"the name is {size} bytes long, the limit is {DIRECTORY_BYTES_MAX}"
    return None


def is_system_topic(topic: str, added: Collection[str] = ()) -> bool:
    """Tell whether a topic belongs to the broker, so that nobody may create or delete it.

    ``added`` are the names that a broker adds at its start.
    """
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX) or topic in added


def is_of_users(topic: str) -> bool:
    """Tell whether a topic is one of applications: neither a broker's, nor of retries or dead letters."""
    return not (is_system_topic(topic) or is_retry(topic) or is_dlq(topic))


def is_system_group(group: str) -> bool:
    """Tell whether a group belongs to the broker or its tools."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def is_sendable(topic: str) -> bool:
    """Tell whether the name of a topic allows clients to send to it."""
    return topic not in NOT_SENDABLE_TOPICS


def retry_topic(group: str) -> str:
    """Return the topic of the messages that a group failed to consume."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the topic of a group's dead letters."""
    return DLQ_PREFIX + group


def is_retry(topic: str) -> bool:
    """Tell whether a topic is a retry topic, of push or POP consumers."""
    return topic.startswith(RETRY_PREFIX)


def is_dlq(topic: str) -> bool:
    """Tell whether a topic is a dead-letter topic."""
    return topic.startswith(DLQ_PREFIX)


def group_of(topic: str) -> str | None:
    """Return the group of a retry or dead-letter topic, None for all other topics.

    Not for POP retry topics of the first form: their name alone does not tell where the group ends.
    """
    if is_retry(topic):
        return topic[len(RETRY_PREFIX) :].split("+", 1)[0]
    return topic[len(DLQ_PREFIX) :] if is_dlq(topic) else None


def pop_retry_topic(topic: str, group: str, *, v2: bool = False) -> str:
    """Return the topic of the messages of a topic that a group popped and failed to consume.

    The first form joins group and topic with ``_``, the second (``enableRetryTopicV2``) with ``+``, which no name
    chosen by a user can contain.
    """
    return f"{RETRY_PREFIX}{group}{'+' if v2 else '_'}{topic}"


def is_pop_retry_v2(topic: str) -> bool:
    """Tell whether a topic is a POP retry topic of the second form."""
    return is_retry(topic) and "+" in topic


def is_lmq(name: str) -> bool:
    """Tell whether a name is an LMQ, which has queue 0 only and no topic configuration."""
    return name.startswith(LMQ_PREFIX)


def takes_lmqs(topic: str) -> bool:
    """Tell whether messages of a topic may go to LMQs too.

    Java: MixAll#topicAllowsLMQ. A retried message keeps the property, but is in the LMQs already.
    """
    return not topic.startswith((RETRY_PREFIX, DLQ_PREFIX, SYSTEM_TOPIC_PREFIX)) and topic != SCHEDULE_TOPIC


def validate_lmq(name: str) -> str | None:
    """Return why a name cannot be an LMQ, or None if it can.

    It may contain other characters than a topic. The name becomes the name of a directory.
    """
    if not is_lmq(name) or name == LMQ_PREFIX:
        return f"the LMQ {name!r} must be {LMQ_PREFIX} and a name"
    return fault_as_directory(name)


def lite_queue(parent: str, lite_topic: str) -> str:
    """Return the LMQ of a lite topic of a parent topic."""
    return f"{LITE_PREFIX}{parent}{LITE_MARK}{lite_topic}"


def lite_parts(name: str) -> tuple[str, str] | None:
    """Return parent topic and lite topic of an LMQ, None if it belongs to no lite topic."""
    if not name.startswith(LITE_PREFIX):
        return None
    parts = name[len(LITE_PREFIX) :].split(LITE_MARK)
    return (parts[0], parts[1]) if len(parts) == 2 and all(parts) else None


def validate_lite(name: str) -> str | None:
    """Return why a name cannot be a lite topic, or None if it can.

    Java: the proxy checks this. The broker does not, and a ``$`` in a name stops its dispatch.
    """
    if not name:
        return "the name of the lite topic is blank"
    if len(name) > LITE_CHARS_MAX:
        return f"the name of the lite topic is longer than {LITE_CHARS_MAX} characters"
    if not _LITE_NAME.fullmatch(name):
        return f"the lite topic {name!r} contains illegal characters: only a-z, A-Z, 0-9, _ and -"
    return None


def with_namespace(namespace: str, name: str) -> str:
    """Return the name of a topic or group within a namespace: ``ns%name``.

    The prefix of retry and dead-letter topics stays in front. A name that belongs to the broker, or has the namespace
    already, is returned unchanged.
    """
    if not namespace or not name or is_system_topic(name) or is_system_group(name):
        return name
    prefix, bare = _without_prefix(name)
    return name if bare.startswith(f"{namespace}%") else f"{prefix}{namespace}%{bare}"


def without_namespace(namespace: str, name: str) -> str:
    """Return the name of a topic or group outside of a namespace."""
    if not namespace:
        return name
    prefix, bare = _without_prefix(name)
    return prefix + bare.removeprefix(f"{namespace}%")


def _without_prefix(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def offset_key(topic: str, group: str) -> str:
    """Return the key of a group's offsets in a topic: ``topic@group``."""
    return f"{topic}@{group}"


def topic_and_group(key: str) -> tuple[str, str]:
    """Split a key of offsets.

    Names of topics and groups have no ``@``, but names of LMQs, which may be either, can have it. The group follows the
    last ``@``, unless an earlier one begins an LMQ group.
    """
    topic, mark, rest = key.partition(f"@{LMQ_PREFIX}")
    if mark:
        return topic, LMQ_PREFIX + rest
    topic, _, group = key.rpartition("@")
    return topic, group


def reply_topic(cluster: str) -> str:
    """Return the topic of the replies of request/reply calls."""
    return f"{cluster}_REPLY_TOPIC"


def revive_topic(cluster: str) -> str:
    """Return the topic that holds POP checkpoints and acknowledgements."""
    return f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_{cluster}"


def broker_member_topic(broker_name: str) -> str:
    """Return the topic where the brokers of one name find each other."""
    return f"{SYSTEM_TOPIC_PREFIX}SYNC_BROKER_MEMBER_{broker_name}"


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: h = 31 h + unit over UTF-16 units, signed 32 bits."""
    code = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            code = (31 * code + unit) & 0xFFFFFFFF
    else:
        encoded = text.encode("utf-16-be", "surrogatepass")
        for unit in unpack(f">{len(encoded) // 2}H", encoded):
            code = (31 * code + unit) & 0xFFFFFFFF
    return code - 0x1_0000_0000 if code & 0x8000_0000 else code


@lru_cache(maxsize=4096)  # tags repeat: a topic has a handful, and a miss costs about 1 µs
def tag_code(tags: str | None) -> int:
    """Return the number that stands for tags in a ConsumeQueue's filter; 0 stands for no tags.

    It is the Java hash of the property ``TAGS``, sign-extended to 64 bits when stored.
    """
    return java_hash(tags) if tags else 0
