r"""Checks of requests: names, messages and times, with RocketMQ's codes and texts in its order.

Each check raises `ProxyError`, for example for a topic with a space::

    check_topic("a b")  ->  40002: The specified topic[a b] contains illegal characters, allowing only
                            ^[%|a-zA-Z0-9_-]+$

A check is on the path of every send, so a sound message costs few steps: the texts of its properties, tag and keys are
joined and looked at together. Only where that finds something, the checks follow one by one and name the first fault.

Control characters are U+0000 to U+001F and U+007F to U+009F. White space is Java's: of U+00A0, U+2007 and U+202F, which
do not break lines, there is none.

Source: RocketMQ's ``GrpcValidator``, ``SendMessageActivity``, ``Validators``, ``TopicValidator``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from firearrow.message import names
from firearrow.message.properties import RESERVED
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.messages import (
    Code,
    FilterExpression,
    FilterType,
    Message,
    MessageType,
    Settings,
    SystemProperties,
)
from firearrow.proxy.statuses import ProxyError
from firearrow.proxy.times import check_duration, time_ms

NAME_CHARS_SHOWN: Final = 1000  # of a name in a text; Java: all

_RULE: Final = "^[%|a-zA-Z0-9_-]+$"
_is_topic: Final = re.compile(rf"[%|a-zA-Z0-9_-]{{1,{names.TOPIC_LENGTH_MAX}}}").fullmatch
_is_group: Final = re.compile(rf"[%|a-zA-Z0-9_-]{{1,{names.GROUP_LENGTH_MAX}}}").fullmatch
_is_lite_topic: Final = re.compile(r"[a-zA-Z0-9_-]+").fullmatch
_is_white: Final = re.compile(r"[\t-\r\x1c-\x20\u1680\u2000-\u2006\u2008-\u200a\u2028\u2029\u205f\u3000]*").fullmatch
_control_in: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]").search
_TRANSACTION: Final = int(MessageType.TRANSACTION)


def is_blank(text: str) -> bool:
    """Tell whether a text is empty or only white space, by Java's rule (``StringUtils#isBlank``)."""
    return not text or _is_white(text) is not None


# --- names ---


def check_topic(name: str) -> None:
    """Check the name of a topic that a client may use: `Code.ILLEGAL_TOPIC` for a bad one or the system's."""
    if not _is_topic(name):
        raise ProxyError(Code.ILLEGAL_TOPIC, _fault_of_topic(name))
    if names.is_system_topic(name):
        raise ProxyError(Code.ILLEGAL_TOPIC, "cannot access system topic")


def check_group(name: str) -> None:
    """Check the name of a consumer group: `Code.ILLEGAL_CONSUMER_GROUP` for a bad one or the system's."""
    if not _is_group(name):
        raise ProxyError(Code.ILLEGAL_CONSUMER_GROUP, _fault_of_group(name))
    if name.startswith(names.SYSTEM_GROUP_PREFIX):
        raise ProxyError(Code.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group")


def check_topic_and_group(topic: str, group: str) -> None:
    """Check both names, the topic first."""
    check_topic(topic)
    check_group(group)


def check_lite_topic(name: str, config: ProxyConfig) -> None:
    """Check the name of a lite topic: `Code.ILLEGAL_LITE_TOPIC` for a bad one."""
    if is_blank(name):
        raise ProxyError(Code.ILLEGAL_LITE_TOPIC, "lite topic cannot be the char sequence of whitespace")
    if len(name.encode()) > config.max_lite_topic_size:
        raise ProxyError(Code.ILLEGAL_LITE_TOPIC, f"lite topic exceed the max size {config.max_lite_topic_size}")
    if not _is_lite_topic(name):
        raise ProxyError(
            Code.ILLEGAL_LITE_TOPIC,
            "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)",
        )


def _fault_of_topic(name: str) -> str:
    if is_blank(name):
        return "The specified topic is blank"
    if _length(name) > names.TOPIC_LENGTH_MAX:
        return f"The specified topic is longer than topic max length {names.TOPIC_LENGTH_MAX}."
    return f"The specified topic[{name}] contains illegal characters, allowing only {_RULE}"


def _fault_of_group(name: str) -> str:
    if is_blank(name):
        return "the specified group is blank"
    if _length(name) > names.GROUP_LENGTH_MAX:
        shown = name[:NAME_CHARS_SHOWN]
        return f"the specified group[{shown}] is longer than group max length: {names.GROUP_LENGTH_MAX}."
    return f"the specified group[{name}] contains illegal characters, allowing only {_RULE}"


def _length(text: str) -> int:
    """Return the count of UTF-16 units, as Java has it."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


# --- filters ---


def check_filter(expression: FilterExpression) -> None:
    """Check an expression: `Code.ILLEGAL_FILTER_EXPRESSION` for one of bars without tags, and for SQL without any.

    The broker checks the words of SQL. Source: RocketMQ's ``FilterAPI``.
    """
    text = expression.expression
    if expression.type == FilterType.SQL:
        if not text:
            raise ProxyError(Code.ILLEGAL_FILTER_EXPRESSION, "Expression can't be null! SQL92")
    elif text and not text.replace("||", ""):
        raise ProxyError(Code.ILLEGAL_FILTER_EXPRESSION, "subString split error")


# --- clients ---

CLIENT_PROPERTIES_MAX: Final = 32
CLIENT_KEY_CHARS_MAX: Final = 64
CLIENT_VALUE_CHARS_MAX: Final = 256
CLIENT_PROPERTIES_BYTES_MAX: Final = 4096  # as a field of the settings
_is_client_key: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]*").fullmatch


def check_client_properties(settings: Settings) -> None:
    """Check the properties that a client sends about itself: `Code.INVALID_CLIENT_PROPERTIES` beyond a limit.

    Keys that begin with ``rocketmq.`` are reserved for clients' libraries, and valid. The properties are shown, and no
    decision rests on them. Source: ``definition.proto`` of rocketmq-apis.
    """
    properties = settings.client_properties
    if not properties:
        return
    if len(properties) > CLIENT_PROPERTIES_MAX:
        raise _bad_properties(f"there are {len(properties)}, the limit is {CLIENT_PROPERTIES_MAX}")
    for key, value in properties.items():
        shown = repr(key[:CLIENT_KEY_CHARS_MAX])
        if len(key) > CLIENT_KEY_CHARS_MAX:
            raise _bad_properties(f"key {shown}... is longer than {CLIENT_KEY_CHARS_MAX} characters")
        if not _is_client_key(key):
            raise _bad_properties(f"key {shown} is not a letter and letters, digits, '_', '.' or '-'")
        if len(value) > CLIENT_VALUE_CHARS_MAX:
            raise _bad_properties(f"the value of {shown} is longer than {CLIENT_VALUE_CHARS_MAX} characters")
    size = Settings(client_properties=properties).ByteSize()
    if size > CLIENT_PROPERTIES_BYTES_MAX:
        raise _bad_properties(f"they have {size} bytes, the limit is {CLIENT_PROPERTIES_BYTES_MAX}")


def _bad_properties(fault: str) -> ProxyError:
    return ProxyError(Code.INVALID_CLIENT_PROPERTIES, f"client properties: {fault}")


# --- times ---


def check_invisible_ms(invisible_ms: int, config: ProxyConfig, least_ms: int = 0) -> None:
    """Check an invisible time in ms: `Code.ILLEGAL_INVISIBLE_TIME` if it is too short or too long."""
    if invisible_ms < least_ms:
        raise ProxyError(Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {least_ms}")
    if invisible_ms > config.max_invisible_time_mills > 0:
        raise ProxyError(
            Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {config.max_invisible_time_mills}"
        )


def check_delivery_ms(delivery_ms: int, config: ProxyConfig, now_ms: int) -> None:
    """Check a delivery time in ms since 1970: `Code.ILLEGAL_DELIVERY_TIME` if it is too late. A past time will do."""
    if delivery_ms - now_ms > config.max_delay_time_mills > 0:
        raise ProxyError(
            Code.ILLEGAL_DELIVERY_TIME,
            f"the max delay time of message is too large, max is {config.max_delay_time_mills}",
        )


# --- messages to send ---


def check_send(messages: Sequence[Message], config: ProxyConfig, now_ms: int) -> None:
    """Check a send: the topic of the first message, then each message. ``now_ms`` is the time in ms since 1970."""
    if not messages:
        raise ProxyError(Code.MESSAGE_CORRUPTED, "no message to send")
    topic = messages[0].topic
    check_topic(topic.name)
    check_message(messages[0], config, now_ms)
    for message in messages[1:]:
        if message.topic != topic:
            raise ProxyError(Code.MESSAGE_CORRUPTED, "topic in message is not same")
        check_message(message, config, now_ms)


def check_message(message: Message, config: ProxyConfig, now_ms: int) -> None:
    """Check a message, apart from its topic."""
    size = len(message.body)
    if not size and config.enable_message_body_empty_check:
        raise ProxyError(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if size > config.max_message_size > 0:
        raise ProxyError(Code.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {config.max_message_size}")
    system = message.system_properties
    properties, tag, keys = message.user_properties, system.tag, system.keys
    if properties or tag or keys:
        _check_texts(dict(properties), [tag, *keys], config)
    message_id = system.message_id
    if not message_id.strip() and is_blank(message_id):
        raise ProxyError(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    if system.message_type == _TRANSACTION:
        _check_recovery(system, config)
    if system.HasField("delivery_timestamp"):
        delivery_ms = time_ms(system.delivery_timestamp, Code.ILLEGAL_DELIVERY_TIME)
        check_delivery_ms(delivery_ms, config, now_ms)
    if system.priority < 0:
        # Java: Message#setPriority raises an exception, which becomes INTERNAL_SERVER_ERROR.
        raise ProxyError(Code.BAD_REQUEST, "The priority must be greater than or equal to 0")
    if group := system.message_group:
        _check_message_group(group, config)
    if lite_topic := system.lite_topic:
        check_lite_topic(lite_topic, config)


def _check_texts(properties: Mapping[str, str], words: list[str], config: ProxyConfig) -> None:
    """Check an application's properties, and its tag and keys."""
    if not are_plain(properties, words, config):
        check_properties(properties, words[0], words[1:], config)


def are_plain(properties: Mapping[str, str], words: list[str], config: ProxyConfig) -> bool:
    """Tell whether properties, tag and keys are sound at a glance: what `check_properties` would find in detail."""
    text = "".join([*properties, *properties.values(), *words])
    return (
        text.isascii()
        and text.isprintable()  # in ASCII, only control characters are not
        and len(text) <= (config.max_user_property_size or -1)
        and len(properties) <= config.user_property_max_num
        and RESERVED.isdisjoint(properties)
        and "|" not in words[0]
        and not any(map(str.isspace, words))
    )


def check_properties(properties: Mapping[str, str], tag: str, keys: Collection[str], config: ProxyConfig) -> None:
    """Check an application's properties, tag and keys one by one: their names, characters, count and size."""
    if len(properties) > config.user_property_max_num:
        raise ProxyError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE, f"too many user properties, max is {config.user_property_max_num}"
        )
    size = len(tag.encode())
    for name, value in properties.items():
        if name in RESERVED:
            raise ProxyError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        for part, text in (("key", name), ("value", value)):
            if _control_in(text):
                raise ProxyError(
                    Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"the {part} of property cannot contain control character"
                )
            size += len(text.encode())
    _check_tag(tag)
    for key in keys:
        _check_word(key, "key", Code.ILLEGAL_MESSAGE_KEY)
        size += len(key.encode())
    # Java: 0 or less is said to be no limit, but then no property passes.
    if size > config.max_user_property_size > 0:
        raise ProxyError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {config.max_user_property_size}",
        )


def _check_tag(tag: str) -> None:
    if not is_blank(tag) and "|" in tag:
        raise ProxyError(Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")
    _check_word(tag, "tag", Code.ILLEGAL_MESSAGE_TAG)


def _check_word(word: str, kind: str, code: Code) -> None:
    if word and is_blank(word):
        raise ProxyError(code, f"{kind} cannot be the char sequence of whitespace")
    if _control_in(word):
        raise ProxyError(code, f"{kind} cannot contain control character")


def _check_message_group(group: str, config: ProxyConfig) -> None:
    if is_blank(group):
        raise ProxyError(Code.ILLEGAL_MESSAGE_GROUP, "message group cannot be the char sequence of whitespace")
    limit = config.max_message_group_size
    # Java: without a limit there is no look at the characters either.
    if limit > 0 and len(group.encode()) >= limit:
        raise ProxyError(Code.ILLEGAL_MESSAGE_GROUP, f"message group exceed the max size {limit}")
    if _control_in(group):
        raise ProxyError(Code.ILLEGAL_MESSAGE_GROUP, "message group cannot contain control character")


def _check_recovery(system: SystemProperties, config: ProxyConfig) -> None:
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return
    duration = system.orphaned_transaction_recovery_duration
    check_duration(duration)
    if duration.seconds > config.max_transaction_recovery_second > 0:
        limit = config.max_transaction_recovery_second
        raise ProxyError(Code.BAD_REQUEST, f"the max transaction recovery time of message is too large, max is {limit}")
