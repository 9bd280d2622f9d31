"""Pops that are noted in RocksDB, for tests."""

from __future__ import annotations

from typing import Any, Final

from firearrow.broker.pop.kvstore import KvRecord, record_of
from firearrow.wire.command import Command
from tests.broker.serving import Caller, Serving

KV: Final[dict[str, Any]] = {"pop_consumer_kv_service_init": True, "pop_consumer_kv_service_enable": True}


def records_in(served: Serving) -> list[KvRecord]:
    """All records, in their order."""
    store = served.broker.popping.database
    assert store is not None
    return [record_of(*row) for row in store.some(b"", 10_000) if store.get(row[0]) is not None]


async def sent(served: Serving, caller: Caller, count: int) -> None:
    """Send messages 0 to n-1 to queue 0."""
    for number in range(count):
        await caller.sent(b"%d" % number)
    await served.dispatched()


async def set_keys(caller: Caller, **pairs: str) -> Command[Any]:
    """Change the configuration."""
    body = "\n".join(f"{key}={value}" for key, value in pairs.items())
    return await caller.call(25, {}, body.encode())


async def switch(caller: Caller, *, on: bool) -> None:
    """Have pops noted in the database, or not."""
    answer = await set_keys(caller, popConsumerKVServiceEnable=str(on).lower())
    assert answer.code == 0
