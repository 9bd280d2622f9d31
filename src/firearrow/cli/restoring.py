"""What a change leaves as it is of a topic or a group, and giving brokers back what they had."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from firearrow.client.admin.calls import concurrently
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import SubscriptionGroupConfig

C = TypeVar("C")
K = TypeVar("K", TopicConfig, SubscriptionGroupConfig)


class Had(msgspec.Struct, Generic[C], frozen=True):
    """What a broker had."""

    broker: str
    config: C


async def given_back(
    had: Sequence[Had[K]],
    ask: Callable[[str], Awaitable[K | None]],
    make: Callable[[str, K], Awaitable[None]],
    *,
    apply: bool,
) -> list[str]:
    """Give it back (``apply``) or look what there is to do; give a state for each broker.

    ``ask`` gives the config that a broker has now, ``make`` sends it another, with changes of attributes.
    """

    async def one(it: Had[K]) -> str:
        now = await ask(it.broker)
        if now == it.config:
            return "the same"
        done = "made" if now is None else "changed"
        if not apply:
            return f"would be {done}"
        attributes = _changes(now.attributes if now else {}, it.config.attributes)
        await make(it.broker, replace(it.config, attributes=attributes))
        return done if await ask(it.broker) == it.config else "failed"

    return await concurrently(had, one)


def _changes(now: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
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
    """Tell whether what is given differs from what a broker had."""
    return replace(had, **given, attributes={**had.attributes, **attributes}) != had
