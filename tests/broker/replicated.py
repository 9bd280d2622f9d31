"""A master and a slave in one loop, with a name server or without, and what their logs hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from firearrow.broker.config import BrokerConfig
from firearrow.broker.core import Broker
from firearrow.clock import Clock
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import HaStatus
from tests.broker.serving import Caller, Serving, until
from tests.store.stores import small_config


@asynccontextmanager
async def replica(
    root: Path,
    clock: Clock,
    *,
    role: str = "ASYNC_MASTER",
    port: int = 0,
    background: bool = False,
    store: Mapping[str, Any] | None = None,
    **config: Any,
) -> AsyncIterator[Serving]:
    """A broker with a role; it is stopped in the end."""
    settings = BrokerConfig(
        broker_name=config.pop("broker_name", "broker-a"),
        broker_cluster_name="C",
        broker_id=1 if role == "SLAVE" else 0,
        broker_fast_failure_enable=False,
        **config,
    )
    kept = small_config(root, broker_role=role, **(store or {}))
    broker = Broker(settings, kept, clock, background=background)
    bound = await broker.start("127.0.0.1", port)
    try:
        yield Serving(broker, bound)
    finally:
        await broker.stop()


def ha_address(master: Serving) -> str:
    """Where a master takes slaves."""
    return f"127.0.0.1:{master.broker.settings.store.ha_listen_port}"


@asynccontextmanager
async def slave_of(
    master: Serving, root: Path, clock: Clock, *, store: Mapping[str, Any] | None = None, **rest: Any
) -> AsyncIterator[Serving]:
    """A slave of a master that it knows by its configuration."""
    keys = {"ha_master_address": ha_address(master), **(store or {})}
    async with replica(root, clock, role="SLAVE", store=keys, **rest) as slave:
        yield slave


def log_of(served: Serving) -> tuple[int, bytes]:
    """Where a broker's log begins, and its bytes."""
    log = served.broker.store.log
    data = b"".join(bytes(segment.map) for segment in log.segments.files)
    return log.start_offset, data[: log.end_offset - log.start_offset]


async def caught_up(slave: Serving, master: Serving) -> None:
    """Wait until a slave has and has dispatched all that its master has, and compare the logs."""
    store = slave.broker.store
    await until(lambda: store.log_end_offset == master.broker.store.log_end_offset)
    await slave.dispatched()
    start, theirs = log_of(slave)
    first, ours = log_of(master)
    assert theirs == ours[start - first :]


async def ha_status(caller: Caller) -> HaStatus:
    """What 907 is answered."""
    answer = await caller.call(907, {})
    assert answer.code == 0
    return fastjson.decode(answer.body, HaStatus)
