"""What a change leaves as it is of a topic or a group, and giving brokers back what they had."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from firearrow.client.admin.many import gathered
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import SubscriptionGroupConfig

C = TypeVar("C")
K = TypeVar("K", TopicConfig, SubscriptionGroupConfig)


class Had(msgspec.Struct, Generic[C], frozen=True):
    """What a broker had."""

    broker: str
    config: C


async def given_back(
    had: Sequence[Had[C]],
    ask: Callable[[str], Awaitable[C | None]],
    put: Callable[[str, C, C | None], Awaitable[None]],
    *,
    apply: bool,
) -> list[str]:
    """Give it back (``apply``) or look what there is to do; give a state for each broker.

    ``ask`` tells what a broker has now, ``put`` has it take what it had instead of that.
    """

    async def one(it: Had[C]) -> str:
        now = await ask(it.broker)
        if now == it.config:
            return "the same"
        done = "made" if now is None else "changed"
        if not apply:
            return f"would be {done}"
        await put(it.broker, it.config, now)
        return done if await ask(it.broker) == it.config else "failed"

    return await gathered(had, one)


def changes(now: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Give what makes attributes others: ``+name`` to set one, ``-name`` to remove one."""
    given = {f"+{name}": text for name, text in wanted.items() if now.get(name) != text}
    return given | {f"-{name}": "" for name in now if name not in wanted}


def given_of(**fields: Any) -> dict[str, Any]:
    """Give the fields of a configuration that a user has said something of."""
    return {name: value for name, value in fields.items() if value is not None}


def changed(had: K, given: Mapping[str, Any], attributes: Mapping[str, str]) -> K:
    """Give what brokers are told: what they had, but for what is given; attributes as changes."""
    return replace(had, **given, attributes={f"+{name}": it for name, it in attributes.items()})


def alters(had: K, given: Mapping[str, Any], attributes: Mapping[str, str]) -> bool:
    """Whether what is given differs from what a broker had."""
    return replace(had, **given, attributes={**had.attributes, **attributes}) != had
