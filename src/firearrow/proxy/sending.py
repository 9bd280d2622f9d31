"""Properties that a send stores, and its system flag: RocketMQ's translation of a Protobuf message.

A field of `SystemProperties` becomes a property of the remoting protocol::

    tag                                    TAGS
    keys                                   KEYS, joined by a space
    message_id                             UNIQ_KEY
    message_type = TRANSACTION             TRAN_MSG = true
    orphaned_transaction_recovery_duration CHECK_IMMUNITY_TIME_IN_SECONDS, only with TRANSACTION
    delivery_timestamp                     TIMER_DELIVER_MS, with ``useDelayLevel`` also DELAY
    priority                               _SYS_MSG_PRIORITY_
    delivery_attempt                       RECONSUME_TIME, 0 if it is absent
    message_group                          __SHARDINGKEY
    lite_topic                             __LITE_TOPIC
    trace_context                          TRACE_CONTEXT
    born_host                              __BORNHOST, the address of the connection if it is blank
    born_timestamp                         BORN_TIMESTAMP in ms, 0 if it is absent

PGROUP is the topic: RocketMQ 5 has no producer groups, and a check of a transaction goes to the producers of its topic.

Source: RocketMQ's ``SendMessageActivity#buildMessageProperty``, ``#buildSysFlag``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from firearrow.errors import MessageError
from firearrow.message import properties as keys_of
from firearrow.message.sysflag import COMPRESSED, TRANSACTION_PREPARED
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.messages import Code, Encoding, Message, MessageType
from firearrow.proxy.statuses import ProxyError
from firearrow.proxy.times import NANOS_MAX, NANOS_OF_MS, TIME_SECONDS_MAX, is_time, time_ms
from firearrow.proxy.validation import are_plain, is_blank
from firearrow.wire.headers import PlainSend

_TRANSACTION: Final = int(MessageType.TRANSACTION)
_GZIP: Final = int(Encoding.GZIP)
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def sys_flag_of(message: Message) -> int:
    """Return the system flag of a message to send: a body in GZIP counts as compressed, and stays as it is."""
    system = message.system_properties
    flag = COMPRESSED if system.body_encoding == _GZIP else 0
    return flag | TRANSACTION_PREPARED if system.message_type == _TRANSACTION else flag


def properties_of(message: Message, config: ProxyConfig, *, sender: str, now_ms: int) -> dict[str, str]:
    """Return the properties that a message is stored with.

    The message must have passed `validation.check_message`. ``sender`` is the address of its connection as
    ``host:port``, ``now_ms`` the time in ms since 1970.
    """
    system = message.system_properties
    own = message.user_properties
    properties = dict(own) if own else {}  # to copy a map takes long, even an empty one
    properties[keys_of.TAGS] = system.tag
    if keys := system.keys:
        properties[keys_of.KEYS] = " ".join(keys)
    properties[keys_of.UNIQUE_KEY] = system.message_id
    if system.message_type == _TRANSACTION:
        properties[keys_of.TRANSACTION_PREPARED] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = system.orphaned_transaction_recovery_duration.seconds
            properties[keys_of.CHECK_IMMUNITY_SEC] = str(seconds)
    if system.HasField("delivery_timestamp"):
        properties |= _delivery(time_ms(system.delivery_timestamp), config, now_ms)
    if system.HasField("priority"):
        properties[keys_of.PRIORITY] = str(system.priority)
    properties[keys_of.RECONSUME_TIME] = str(system.delivery_attempt)
    properties[keys_of.PRODUCER_GROUP] = message.topic.name
    if group := system.message_group:
        properties[keys_of.SHARDING_KEY] = group
    if lite_topic := system.lite_topic:
        properties[keys_of.LITE_TOPIC] = lite_topic
    if context := system.trace_context:
        properties[keys_of.TRACE_CONTEXT] = context
    host = system.born_host
    if not host or is_blank(host):
        host = sender
    properties[keys_of.BORN_HOST] = host
    born = system.born_timestamp
    if is_time(born):
        properties[keys_of.BORN_TIMESTAMP] = str(time_ms(born))
    return properties


def plain_header(message: Message, size: int, config: ProxyConfig, topic: str, sender: str) -> PlainSend | None:
    """Return the header that stores a plain message, whose body has ``size`` bytes, in queue 0; None for any other.

    A plain message passes `validation.check_message` at a glance, and its type is NORMAL. One pass takes a third of the
    time of that check, `properties_of` and `text_of`. The topic must have passed its check.
    """
    system = message.system_properties
    message_id, host, born = system.message_id, system.born_host or sender, system.born_timestamp
    seconds, nanos = born.seconds, born.nanos
    if (
        not 0 < size <= config.max_message_size
        or not (message_id.isascii() and message_id.isalnum())
        or not (host.isascii() and host.isprintable() and " " not in host)
        or not (0 <= seconds <= TIME_SECONDS_MAX and 0 <= nanos <= NANOS_MAX)
        or system.message_type == _TRANSACTION
        or system.message_group
        or system.lite_topic
        or system.trace_context
        or system.HasField("delivery_timestamp")
        or system.HasField("priority")
    ):
        return None
    own, tag, keys = message.user_properties, system.tag, system.keys
    begin = ""
    if own or tag or keys:
        properties = dict(own)
        if not (all(properties) and are_plain(properties, [tag, *keys], config)) or "_" in "".join(properties):
            return None
        properties |= {keys_of.TAGS: tag, keys_of.KEYS: " ".join(keys)}
        begin = "".join([f"{name}\x01{value}\x02" for name, value in properties.items() if value])
    born_ms = seconds * 1000 + nanos // NANOS_OF_MS
    return PlainSend(
        producer_group=topic,
        topic=topic,
        queue_id=0,
        sys_flag=COMPRESSED if system.body_encoding == _GZIP else 0,
        born_timestamp=born_ms,
        flag=0,
        properties=(
            f"{begin}UNIQ_KEY\x01{message_id}\x02RECONSUME_TIME\x01{system.delivery_attempt}\x02PGROUP\x01{topic}\x02"
            f"__BORNHOST\x01{host}\x02BORN_TIMESTAMP\x01{born_ms}\x02"
        ),
    )


def _delivery(delivery_ms: int, config: ProxyConfig, now_ms: int) -> dict[str, str]:
    found = {keys_of.TIMER_DELIVER_MS: str(delivery_ms)}
    if config.use_delay_level:
        found[keys_of.DELAY_LEVEL] = str(delay_level_of(config.message_delay_level, delivery_ms - now_ms))
    return found


def delay_level_of(levels: str, delay_ms: int) -> int:
    """Return the level (1 is the first) with the shortest delay above ``delay_ms``, or otherwise the longest.

    ``levels`` is a valid ``messageDelayLevel``.
    """
    delays_ms = [int(word[:-1]) * _UNIT_MS[word[-1]] for word in levels.split()]
    by_delay = sorted((level_ms, number) for number, level_ms in enumerate(delays_ms, 1))
    return next((number for level_ms, number in by_delay if level_ms > delay_ms), by_delay[-1][1])


def text_of(properties: Mapping[str, str]) -> str:
    """Return properties as a send carries them.

    Raises ProxyError for a separator in the message id, the trace context or the born host: it would forge other
    properties. Java: these become properties.
    """
    if "" in properties:
        properties = {name: value for name, value in properties.items() if name}
    try:
        return keys_of.format(properties)
    except MessageError as error:
        raise ProxyError(Code.BAD_REQUEST, str(error)) from None


def queue_key_of(message: Message) -> str:
    """Return the text that chooses the queue of a message: its message group or its lite topic, or nothing."""
    system = message.system_properties
    group = system.message_group
    return system.lite_topic if is_blank(group) else group
