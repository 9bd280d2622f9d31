"""Asking about many things at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE: Final = 16  # requests under way: enough to hide their way, few for any server


async def concurrently(items: Iterable[T], ask: Callable[[T], Awaitable[R]]) -> list[R]:
    """Ask about each of some things, a few at once; give the answers in their order."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> R:
        async with room:
            return await ask(item)

    return await asyncio.gather(*map(one, items))
