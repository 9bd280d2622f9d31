"""What consumers say of themselves, as text, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from firearrow.cli.mqadmin.javatext import concurrent_order, digits, fixed, shown
from firearrow.cli.mqadmin.topics import in_order
from firearrow.wire.client_bodies import (
    ConsumerRunningInfo,
    MessageQueue,
    PopProcessQueueInfo,
    ProcessQueueInfo,
    SubscriptionData,
)

YOUNG_MS: Final = 2 * 60 * 1000  # so long a consumer's subscription may differ
BLOCKED_MS: Final = 60 * 1000

_QUEUE_FIELDS: Final = (
    "commitOffset", "cachedMsgMinOffset", "cachedMsgMaxOffset", "cachedMsgCount",
    "cachedMsgSizeInMiB", "transactionMsgMinOffset", "transactionMsgMaxOffset",
    "transactionMsgCount", "locked", "tryUnlockTimes", "lastLockTimestamp", "droped",
    "lastPullTimestamp", "lastConsumeTimestamp",
)  # fmt: skip


def _held_text(held: ProcessQueueInfo) -> str:
    values = [getattr(held, name) for name in held.__struct_fields__]
    pairs = [
        f"{name}={digits(value) if name.startswith('last') else shown(value)}"
        for name, value in zip(_QUEUE_FIELDS, values, strict=True)
    ]
    return f"ProcessQueueInfo [{', '.join(pairs)}]"


def info_text(info: ConsumerRunningInfo) -> str:
    """All that a consumer says of itself."""
    parts = ["#Consumer Properties#\n"]
    parts += [f"{name:<40}: {info.properties[name]}\n" for name in concurrent_order(info.properties)]
    parts.append("\n\n#Consumer Subscription#\n")
    for number, wanted in enumerate(_sorted(info.subscription_set), 1):
        parts.append(
            f"{number:03d} Topic: {wanted.topic:<40} "
            f"ClassFilter: {shown(wanted.class_filter_mode):<8} "
            f"SubExpression: {wanted.sub_string}\n"
        )
    parts += _queues_text(info)
    parts.append(
        f"\n\n#Consumer RT&TPS#\n{'#Topic':<64}  {'#Pull RT':>14} {'#Pull TPS':>14} "
        f"{'#Consume RT':>14} {'#ConsumeOK TPS':>14} {'#ConsumeFailed TPS':>18} "
        f"{'#ConsumeFailedMsgsInHour':>25}\n"
    )
    for topic, rates in sorted(info.status_table.items()):
        parts.append(
            f"{topic:<32}  {fixed(rates.pull_rt, 2):>14} {fixed(rates.pull_tps, 2):>14} "
            f"{fixed(rates.consume_rt, 2):>14} {fixed(rates.consume_ok_tps, 2):>14} "
            f"{fixed(rates.consume_failed_tps, 2):>18} {rates.consume_failed_msgs:>25}\n"
        )
    parts.append("\n\n#User Consume Info#\n")
    parts += [f"{name:<40}: {text}\n" for name, text in sorted(info.user_consumer_info.items())]
    if info.jstack is not None:
        parts.append(f"\n\n#Consumer jstack#\n{info.jstack}")
    return "".join(parts)


def _queues_text(info: ConsumerRunningInfo) -> list[str]:
    head = f"{'#Broker Name':<32}  {'#QID':<4}"
    details = f"{head}  {'#ProcessQueueInfo':<20}\n"
    held, popped = info.mq_table, info.mq_pop_table
    parts = [f"\n\n#Consumer Offset#\n{'#Topic':<64}  {head}  {'#Consumer Offset':<20}\n"]
    parts += [f"{_place(one, 32)}  {held[one].commit_offset:<20}\n" for one in in_order(held)]
    parts.append(f"\n\n#Consumer MQ Detail#\n{'#Topic':<64}  {details}")
    parts += [f"{_place(one, 64)}  {_held_text(held[one])}\n" for one in in_order(held)]
    parts.append(f"\n\n#Consumer Pop Detail#\n{'#Topic':<32}  {details}")
    parts += [f"{_place(one, 32)}  {_popped_text(popped[one])}\n" for one in in_order(popped)]
    return parts


def _popped_text(popped: PopProcessQueueInfo) -> str:
    return (
        f"PopProcessQueueInfo [waitAckCount:{popped.wait_ack_count}, "
        f"droped:{shown(popped.droped)}, lastPopTimestamp:{popped.last_pop_timestamp}]"
    )


def _place(queue: MessageQueue, width: int) -> str:
    return f"{queue.topic:<{width}}  {queue.broker_name:<32}  {queue.queue_id:<4}"


def _sorted(subscriptions: Sequence[SubscriptionData]) -> list[SubscriptionData]:
    return sorted(subscriptions, key=lambda wanted: f"{wanted.topic}@{wanted.sub_string}")


def same_subscriptions(infos: Sequence[ConsumerRunningInfo], now_ms: int) -> bool:
    """Tell whether consumers of a group, by their ids, want the same; of young ones nothing is said."""
    first = infos[0]
    started = int(first.properties.get("PROP_CONSUMER_START_TIMESTAMP", now_ms))
    if not first.is_push or now_ms - started <= YOUNG_MS:
        return True
    wanted = [_wanted(info) for info in infos]
    return all(own == wanted[0] for own in wanted)


def _wanted(info: ConsumerRunningInfo) -> list[tuple[str, str, str]]:
    return [(wanted.topic, wanted.sub_string, wanted.expression_type) for wanted in _sorted(info.subscription_set)]


def queue_troubles(client_id: str, info: ConsumerRunningInfo, now_ms: int) -> str:
    """A line for each queue that a push consumer can't lock, or does not get on with."""
    if not info.is_push:
        return ""
    lines: list[str] = []
    for queue in in_order(info.mq_table):
        held = info.mq_table[queue]
        if info.is_ordered and not held.locked:
            late = f"can't lock for a while, {now_ms - held.last_lock_timestamp}ms"
        elif info.is_ordered and held.droped and held.try_unlock_times > 0:
            late = f"unlock {held.try_unlock_times} times, still failed"
        elif not info.is_ordered and held.cached_msg_count and _idle_ms(held, now_ms) > BLOCKED_MS:
            late = f"can't consume for a while, maybe blocked, {_idle_ms(held, now_ms)}ms"
        else:
            continue
        lines.append(f"{client_id} {queue.text} {late}\n")
    return "".join(lines)


def _idle_ms(held: ProcessQueueInfo, now_ms: int) -> int:
    return now_ms - held.last_consume_timestamp
