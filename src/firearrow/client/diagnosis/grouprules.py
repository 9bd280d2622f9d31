"""Reasons why a group does not consume: each rule is a function of the group's facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from firearrow.client.diagnosis.findings import Finding, Level, counted
from firearrow.client.diagnosis.groupfacts import IDLE_MS, GroupClient, GroupFacts, InspectedMessage
from firearrow.wire.bodies import PERM_READ
from firearrow.wire.client_bodies import (
    BROADCASTING,
    CLUSTERING,
    MemberChange,
    MessageQueue,
    ProcessQueueInfo,
    SubscriptionData,
)
from firearrow.wire.codes import version_name

OFTEN: Final = 3  # failures that make a message a poison message
RECENT_MS: Final = 60 * 60 * 1000  # older failures do not count
SOON_MS: Final = 10 * 60 * 1000
MANY: Final = 10  # messages that were redelivered in that time
POISON_MAX: Final = 5  # poison messages that are named
SLOW_MS: Final = 200.0  # per message, in the handler
LEAVES_MIN: Final = 3  # clients that must leave in that time for a finding
STORIES_MAX: Final = 5  # clients that are described
WAIT: Final = ("message waits", "messages wait")
POP_WAITS: Final = ("pop waits", "pops wait")

THRESHOLDS: Final = (
    f"Thresholds: a client is idle after {IDLE_MS // 1000} s without a pull, a handler is slow from {SLOW_MS:.0f} ms a "
    f"message, a message is poison after {OFTEN} failures, {MANY} retries in {SOON_MS // 60_000} min are many, "
    f"{LEAVES_MIN} clients that leave in that time make rebalances a finding; failures older than "
    f"{RECENT_MS // 3_600_000} h do not count."
)

Rule = Callable[[GroupFacts], Iterator[Finding]]


def unknown_group(facts: GroupFacts) -> Iterator[Finding]:
    """No broker, or not every broker, knows the group."""
    if facts.unknown_on and not facts.clients and not facts.members_untold:
        where = ", ".join(facts.unknown_on)
        level = Level.WARNING if facts.configs else Level.CRITICAL
        cure = f"Check its name, or create it: `firearrow group create {facts.group}`."
        yield Finding("unknown-group", level, facts.group, f"not known to {where}", cure)


def offline(facts: GroupFacts) -> Iterator[Finding]:
    """No client is connected, according to the brokers."""
    if facts.clients or not facts.configs or facts.members_untold:
        return
    waiting = sum(place.offsets.lag for place in facts.places.values())
    if facts.pops_waiting:
        evidence = f"{counted(facts.pops_waiting, *POP_WAITS)} for messages, and no client is registered"
        cure = "Its clients send brokers no heartbeats. A proxy of RocketMQ pops like that, but none is connected here."
        if facts.proxies:
            cure = f"Brokers do not know clients behind RocketMQ's proxy: ask {' or '.join(facts.proxies)} for them."
        yield Finding("offline", Level.OK, facts.group, evidence, cure)
    else:
        yield Finding(
            "offline",
            Level.CRITICAL,
            facts.group,
            f"no client is connected; {counted(waiting, *WAIT)}",
            "Start a consumer of this group, and check its name servers and namespace.",
        )


def disabled(facts: GroupFacts) -> Iterator[Finding]:
    """The group must not consume."""
    for broker, config in facts.configs.items():
        if not config.consume_enable:
            evidence = f"consumeEnable=false on {broker}"
            cure = f"Enable it: `firearrow group create {facts.group} --enabled`."
            yield Finding("disabled", Level.CRITICAL, facts.group, evidence, cure)
        if not config.consume_broadcast_enable and BROADCASTING in facts.models:
            evidence = f"it broadcasts, and consumeBroadcastEnable=false on {broker}"
            cure = f"Allow it (`firearrow group create {facts.group} --broadcast`), or use clustering."
            yield Finding("disabled", Level.CRITICAL, facts.group, evidence, cure)
    for broker, topic in facts.forbidden:
        if topic in facts.topics:
            evidence = f"it is forbidden to read the topic on {broker}"
            yield Finding("disabled", Level.CRITICAL, topic, evidence, "Allow it (request 353).")


def no_topic(facts: GroupFacts) -> Iterator[Finding]:
    """A topic does not exist, or no client subscribes to it or polls its queues."""
    wanted = _subscriptions(facts) | {queue.topic for queue in facts.owners()}
    for topic in facts.topics:
        if facts.routes.get(topic) is None:
            cure = "Check its name and the namespace, or create it."
            yield Finding("no-topic", Level.CRITICAL, topic, "no broker has registered it", cure)
        elif facts.clients and topic not in wanted and any(one.info for one in facts.clients):
            evidence = f"{counted(len(facts.clients), 'client does', 'clients do')} not subscribe to it"
            cure = "Subscribe to it, or delete the offsets of the group if it is not needed any more."
            level = Level.WARNING if facts.lag(topic) or not wanted else Level.OK
            yield Finding("no-topic", level, topic, evidence, cure)


def no_permission(facts: GroupFacts) -> Iterator[Finding]:
    """A topic is not readable."""
    for topic, route in facts.routes.items():
        for data in route.queue_datas if route else ():
            if not data.perm & PERM_READ:
                evidence = f"perm={data.perm} on {data.broker_name} makes the topic unreadable"
                cure = f"`firearrow mqadmin updateTopicPerm -t {topic} -p 6`, or brokerPermission."
                yield Finding("no-permission", Level.CRITICAL, topic, evidence, cure)


def duplicate_ids(facts: GroupFacts) -> Iterator[Finding]:
    """Several clients have the same id."""
    for client in facts.clients:
        for broker, connections in client.connections.items():
            if len(connections) > 1:
                addresses = ", ".join(sorted(one.client_addr for one in connections))
                yield Finding(
                    "duplicate-ids",
                    Level.CRITICAL,
                    client.client_id,
                    f"is the id of {len(connections)} clients on {broker}: {addresses}",
                    "Queues are divided by id: give each process a unique instance name "
                    "(in containers, addresses and process numbers repeat).",
                )
                break


def unlike_subscriptions(facts: GroupFacts) -> Iterator[Finding]:
    """Members have different subscriptions, and the broker keeps the last one."""
    by_wish: dict[tuple[tuple[str, str, str], ...], list[str]] = {}
    for client in facts.clients:
        if client.info is not None:
            wish = tuple(sorted(map(_wish, client.info.subscription_set)))
            by_wish.setdefault(wish, []).append(client.client_id)
    if len(by_wish) < 2:
        return
    first, *others = by_wish
    for wish in others:
        here, there = sorted({*first} - {*wish}), sorted({*wish} - {*first})
        yield Finding(
            "unlike-subscriptions",
            Level.CRITICAL,
            facts.group,
            f"{by_wish[first][0]} wants {_text(here)}, {by_wish[wish][0]} wants {_text(there)}",
            "All members of a group must subscribe to the same topics with the same expressions. "
            "Use separate groups for different subscriptions.",
        )


def mixed_models(facts: GroupFacts) -> Iterator[Finding]:
    """Some members broadcast, others share the queues."""
    if {BROADCASTING, CLUSTERING} <= facts.models:
        evidence = "some members broadcast, others share the queues"
        cure = "Use one group for each of the two."
        yield Finding("mixed-models", Level.CRITICAL, facts.group, evidence, cure)


def no_queue(facts: GroupFacts) -> Iterator[Finding]:
    """There are more clients than queues, so some clients have none."""
    if BROADCASTING in facts.models:
        return
    for topic in facts.topics:
        there = [one for one in facts.clients if one.info and topic in _topics_of(one)]
        without = [one.client_id for one in there if not _has_queue(one, topic)]
        queues = _readable(facts, topic)
        sharing = f"{counted(len(there), 'client shares', 'clients share')} {counted(queues, 'queue')}"
        if without and len(there) > queues:
            yield Finding(
                "no-queue",
                Level.WARNING,
                topic,
                f"{sharing}, so {counted(len(without), 'client has', 'clients have')} none: {', '.join(without)}",
                f"Give the topic more queues ({len(there)} or more), or consume by POP.",
            )
        elif without and queues:
            yield Finding(
                "no-queue",
                Level.WARNING,
                topic,
                f"no queue is assigned to {', '.join(without)}, though {sharing}",
                "A rebalance may be running: look again in 20 s. If it lasts, see the client's log.",
            )


def rebalances(facts: GroupFacts) -> Iterator[Finding]:
    """Members leave and join repeatedly, and each time all members rebalance.

    Only Firearrow's brokers report the members.
    """
    recent = {
        broker: [one for one in changes if facts.now_ms - one.at <= SOON_MS]
        for broker, changes in facts.changes.items()
    }
    broker, changes = max(recent.items(), key=lambda it: len(it[1]), default=("", []))
    if sum(not one.joined for one in changes) < LEAVES_MIN:
        return
    last = {one.client_id: one for one in changes}
    told = sorted(last, key=lambda it: (-_changes_of(it, changes), -last[it].at, it))
    texts = [_story(facts, it, changes, last[it]) for it in told[:STORIES_MAX]]
    if len(told) > STORIES_MAX:
        texts.append(f"and {counted(len(told) - STORIES_MAX, 'more client')}")
    yield Finding(
        "rebalances",
        Level.WARNING,
        facts.group,
        f"in the last {SOON_MS // 60_000} min its members changed {len(changes)} times on {broker}: {'; '.join(texts)}",
        "After each change all members rebalance, and some messages are delivered twice. Find "
        "out why they leave: restarts, a process that hangs, lost connections. A "
        "rollout looks like this, too.",
    )


def _changes_of(client_id: str, changes: Sequence[MemberChange]) -> int:
    return sum(one.client_id == client_id for one in changes)


def _story(facts: GroupFacts, client_id: str, changes: Sequence[MemberChange], last: MemberChange) -> str:
    joined = sum(one.client_id == client_id and one.joined for one in changes)
    left = _changes_of(client_id, changes) - joined
    parts = [f"{verb} {count}x" for verb, count in (("joined", joined), ("left", left)) if count]
    ago = max(0, facts.now_ms - last.at) // 1000
    return f"{client_id} {' and '.join(parts)}, {'joined' if last.joined else 'left'} {ago} s ago"


def unowned_queues(facts: GroupFacts) -> Iterator[Finding]:
    """No client has a queue, or two clients have it."""
    if BROADCASTING in facts.models or not facts.clients:
        return
    if not all(one.info for one in facts.clients) or any(one.info and one.info.mq_pop_table for one in facts.clients):
        return  # a client without a report may have the queue
    owners = facts.owners()
    for queue, place in facts.places.items():
        if queue.topic not in _subscriptions(facts):
            continue
        if place.offsets.lag and queue not in owners:
            yield Finding(
                "unowned-queue",
                Level.CRITICAL,
                _name(queue),
                f"{counted(place.offsets.lag, *WAIT)}, and no client has the queue",
                "A rebalance may be running: look again in 20 s. If it lasts, a client that the brokers "
                "still list may be dead, or members use different strategies.",
            )
        elif len(owners.get(queue, ())) > 1:
            yield Finding(
                "unowned-queue",
                Level.WARNING,
                _name(queue),
                f"several clients have it: {', '.join(owners[queue])}",
                "Messages are delivered twice. Let all members use the same strategy and the same brokers.",
            )


def held_locks(facts: GroupFacts) -> Iterator[Finding]:
    """A client waits for the lock of a queue that another client holds, or held when it died."""
    for client in facts.clients:
        for queue, held in _held(client):
            if client.info and client.info.is_ordered and not held.locked and not held.droped:
                ago = _ago(facts, held.last_lock_timestamp)
                yield Finding(
                    "held-lock",
                    Level.CRITICAL,
                    _name(queue),
                    f"{client.client_id} consumes in order and has no lock of it{ago}",
                    "The lock of a dead client ends after 60 s. If it lasts, another "
                    "client holds it: look for one with the same group elsewhere.",
                )


def stuck_messages(facts: GroupFacts) -> Iterator[Finding]:
    """A message is in a handler or is retried, and no later message is committed."""
    for client in facts.clients:
        for queue, held in _held(client):
            head = facts.heads.get(queue)
            if not held.cached_msg_count or (client.info and client.info.is_paused):
                continue
            if head and held.last_consume_timestamp > 0:
                # the queue may have been empty for long before this message
                since_ms = max(held.last_consume_timestamp, head.stored_ms)
                waits_ms = facts.now_ms - since_ms
                if waits_ms > IDLE_MS:
                    what = "its handler does not end, or fails each time"
                    if client.info and not client.info.is_push:
                        what = "the application does not poll it"
                    why = f"has been in hand for {waits_ms // 1000} s: {what}"
                    yield _stuck(client, queue, held, head, why)
            elif client.info and client.info.is_ordered and _fails(client, queue.topic):
                yield _stuck(client, queue, held, head, "fails each time, and the queue waits")


def _stuck(
    client: GroupClient, queue: MessageQueue, held: ProcessQueueInfo, head: InspectedMessage | None, why: str
) -> Finding:
    first = held.first_in_hand
    which = "" if head is None else f" ({_message(head)})"
    return Finding(
        "stuck-message",
        Level.CRITICAL,
        _name(queue),
        f"the message at offset {first}{which} {why}; {client.client_id} has {held.cached_msg_count:,} in hand",
        "See what the client does (`firearrow mqadmin consumerStatus -s`), and fix its handler. "
        f"To skip the message, reset the queue to offset {first + 1}.",
    )


def _fails(client: GroupClient, topic: str) -> bool:
    status = client.info.status_table.get(topic) if client.info else None
    return status is not None and status.consume_failed_tps > 0 and status.consume_ok_tps == 0


def _message(seen: InspectedMessage) -> str:
    return seen.message_id + (f", keys {' '.join(seen.keys)}" if seen.keys else "")


def poison_messages(facts: GroupFacts) -> Iterator[Finding]:
    """Messages fail repeatedly."""
    often: dict[str, InspectedMessage] = {}
    for seen in sorted(facts.retries, key=lambda one: one.times):
        if seen.times >= OFTEN and facts.now_ms - seen.stored_ms < RECENT_MS:
            often[seen.message_id] = seen
    for seen in sorted(often.values(), key=lambda one: -one.times)[:POISON_MAX]:
        ago = max(0, facts.now_ms - seen.stored_ms) // 1000
        yield Finding(
            "poison-message",
            Level.WARNING,
            seen.topic,
            f"message {_message(seen)} has failed {seen.times} times, the last time {ago} s ago",
            "See the log of the consumer for the reason; the message becomes a dead letter after retryMaxTimes.",
        )


def many_retries(facts: GroupFacts) -> Iterator[Finding]:
    """Many messages fail, so the retry topic grows."""
    times = [seen.stored_ms for seen in facts.retries if facts.now_ms - seen.stored_ms < SOON_MS]
    if len(times) >= MANY:
        yield Finding(
            "many-retries",
            Level.WARNING,
            facts.group,
            f"{len(times)} or more messages were redelivered in the last {(facts.now_ms - min(times)) // 1000} s",
            "See the log of the consumer: a service that its handler needs may be down.",
        )


def dead_letters(facts: GroupFacts) -> Iterator[Finding]:
    """Messages became dead letters."""
    if facts.dead:
        evidence = counted(facts.dead, "message became a dead letter", "messages became dead letters")
        cure = f"They are in %DLQ%{facts.group}: fix the reason of the failures, and send them again."
        yield Finding("dead-letters", Level.WARNING, facts.group, evidence, cure)


def lost_places(facts: GroupFacts) -> Iterator[Finding]:
    """The group's offset is outside of the queue."""
    for queue, place in facts.places.items():
        at, least, most = (place.offsets.consumer_offset, place.ends.min_offset, place.ends.max_offset)
        if 0 <= at < least and place.offsets.last_timestamp:
            gone = counted(least - at, "message is", "messages are")
            evidence = f"offset {at} is before the first message, {least}: {gone} deleted"
            cure = "They were deleted before they were consumed. Keep messages for longer."
            yield Finding("lost-place", Level.WARNING, _name(queue), evidence, cure)
        elif at > most:
            evidence = f"offset {at} is beyond the last message, {most - 1}"
            cure = "The queue has started again from a lower offset, so messages are skipped: reset the offset."
            yield Finding("lost-place", Level.CRITICAL, _name(queue), evidence, cure)


def not_pulling(facts: GroupFacts) -> Iterator[Finding]:
    """A client has a queue with messages and does not pull them."""
    for client in facts.clients:
        if client.info and client.info.is_paused:
            cure = "Resume it in the application."
            yield Finding("paused", Level.CRITICAL, client.client_id, "says it is paused", cure)
            continue
        for queue, held in _held(client):
            idle_ms = facts.now_ms - held.last_pull_timestamp
            place = facts.places.get(queue)
            if place and place.offsets.lag and held.last_pull_timestamp > 0 and idle_ms > IDLE_MS:
                yield Finding(
                    "not-pulling",
                    Level.CRITICAL,
                    _name(queue),
                    f"{client.client_id} has not pulled for {idle_ms // 1000} s, "
                    f"{counted(held.cached_msg_count, 'message')} in hand, {counted(place.offsets.lag, *WAIT)}",
                    "It is paused, has reached its own limits, or has lost the broker.",
                )


def silent_clients(facts: GroupFacts) -> Iterator[Finding]:
    """A client is connected and does not answer."""
    for client in facts.clients:
        if client.info is None:
            addresses = {one.client_addr for all_ in client.connections.values() for one in all_}
            evidence = f"gives no report ({', '.join(sorted(addresses))}): {client.error}"
            cure = "POP consumers do not answer, nor do some pull consumers; any other silent client may hang."
            yield Finding("silent-client", Level.WARNING, client.client_id, evidence, cure)


def slow_handlers(facts: GroupFacts) -> Iterator[Finding]:
    """Handlers are so slow that the lag grows."""
    for client in facts.clients:
        for topic, status in client.info.status_table.items() if client.info else ():
            if status.consume_rt >= SLOW_MS and facts.lag(topic):
                yield Finding(
                    "slow-handler",
                    Level.WARNING,
                    client.client_id,
                    f"takes {status.consume_rt:,.0f} ms for a message of {topic}, "
                    f"{status.consume_ok_tps:.1f}/s, and {counted(facts.lag(topic), *WAIT)}",
                    "Make the handler faster, raise its concurrency, or start more clients.",
                )


def unlike_versions(facts: GroupFacts) -> Iterator[Finding]:
    """Members have different versions or languages."""
    kinds: dict[str, str] = {}
    for client in facts.clients:
        first = next(iter(client.connections.values()))[0]
        kinds.setdefault(f"{first.language} {version_name(first.version)}", client.client_id)
    if len(kinds) > 1:
        evidence = ", ".join(f"{kind} ({one})" for kind, one in sorted(kinds.items()))
        cure = "That is fine while all of them divide queues by the same strategy."
        yield Finding("unlike-versions", Level.OK, facts.group, evidence, cure)


def access(facts: GroupFacts) -> Iterator[Finding]:
    """The user who asks must not see the group."""
    if facts.refused:
        cure = f"Allow this user to look: `firearrow acl allow USER Group:{facts.group} --action get`."
        yield Finding("access", Level.WARNING, facts.group, f"no permission: {'; '.join(facts.refused)}", cure)


def untold(facts: GroupFacts) -> Iterator[Finding]:
    """Requests that no server answered."""
    for text in facts.untold:
        yield Finding("asked", Level.UNKNOWN, facts.group, text)


RULES: Final[Sequence[Rule]] = (
    unknown_group,
    offline,
    disabled,
    no_topic,
    no_permission,
    duplicate_ids,
    unlike_subscriptions,
    mixed_models,
    no_queue,
    rebalances,
    unowned_queues,
    held_locks,
    stuck_messages,
    poison_messages,
    many_retries,
    dead_letters,
    lost_places,
    not_pulling,
    silent_clients,
    slow_handlers,
    unlike_versions,
    access,
    untold,
)


def findings(facts: GroupFacts) -> list[Finding]:
    """Findings of all rules."""
    return [one for rule in RULES for one in rule(facts)]


def _subscriptions(facts: GroupFacts) -> set[str]:
    told = {topic for one in facts.clients if one.info for topic in _topics_of(one)}
    return told | {topic for one in facts.connections.values() for topic in one.subscription_table}


def _topics_of(client: GroupClient) -> set[str]:
    return {one.topic for one in client.info.subscription_set} if client.info else set()


def _wish(wanted: SubscriptionData) -> tuple[str, str, str]:
    return wanted.topic, wanted.sub_string, wanted.expression_type


def _text(wishes: list[tuple[str, str, str]]) -> str:
    return ", ".join(f"{topic} [{text}]" for topic, text, _ in wishes) or "nothing else"


def _held(client: GroupClient) -> list[tuple[MessageQueue, ProcessQueueInfo]]:
    return list(client.info.mq_table.items()) if client.info else []


def _has_queue(client: GroupClient, topic: str) -> bool:
    if client.info is None:
        return True
    queues = [*client.info.mq_table, *client.info.mq_pop_table]
    return any(queue.topic == topic for queue in queues)


def _readable(facts: GroupFacts, topic: str) -> int:
    route = facts.routes.get(topic)
    return sum(data.read_queue_nums for data in (route.queue_datas if route else ()) if data.perm & PERM_READ)


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def _ago(facts: GroupFacts, at_ms: int) -> str:
    return f", for {(facts.now_ms - at_ms) // 1000} s" if at_ms > 0 else ""
