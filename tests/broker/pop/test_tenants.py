"""Groups whose retry topics of the first form have the same name, with access control on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from firearrow.wire.signature import Credentials
from tests.broker.popping import INVISIBLE_MS, popped
from tests.broker.serving import Caller, Serving, in_virtual_time, pull_fields
from tests.broker.signing import AUTHORIZED, ROOT, Signer, signing

AGAIN_SECONDS = INVISIBLE_MS / 1000 + 5
SHARED = "%RETRY%pg_rt_x"
LONG, SHORT = ("pg_rt", "x"), ("pg", "rt_x")  # of both it is %RETRY%pg_rt_x
TEXT = "TAGS\x01A\x02UNIQ_KEY\x01U\x02n\x011\x02"


async def _bodies(caller: Caller, who: tuple[str, str], **changed: Any) -> list[bytes]:
    group, topic = who
    found = await popped(caller, consumerGroup=group, topic=topic, **changed)
    return [view.body for view, _ in found]


async def _tenant(root: Signer, who: tuple[str, str]) -> Credentials:
    """A user that may consume one topic for one group."""
    group, topic = who
    user = await root.user(f"user-of-{group}")
    await root.allow(user.access_key, (f"Topic:{topic}", ["Sub"]), (f"Group:{group}", ["Sub"]))
    return user


async def _failing(served: Serving, caller: Caller) -> None:
    """Have both groups pop a message of theirs that they do not acknowledge."""
    for who in (LONG, SHORT):
        await caller.sent(f"of {who[0]}".encode(), topic=who[1], i=TEXT)
        await served.dispatched()
        assert await _bodies(caller, who) == [f"of {who[0]}".encode()]


def test_what_came_back_of_one_is_not_given_to_another(tmp_path: Path) -> None:
    """Nor pulled by a group of that name: it is where the name says whose it is."""

    async def main(served: Serving, _: Caller) -> None:
        async with signing(served, ROOT) as root:
            await _failing(served, root)
            await asyncio.sleep(AGAIN_SECONDS)
            for who in (SHORT, LONG):
                async with signing(served, await _tenant(root, who)) as tenant:
                    assert await _bodies(tenant, who) == [f"of {who[0]}".encode()]
            namesake = await root.user("namesake")
            await root.allow("namesake", ("Group:pg_rt_x", ["Sub"]))
            async with signing(served, namesake) as signer:
                fields = pull_fields(topic=SHARED, consumerGroup="pg_rt_x")
                assert (await signer.call(11, fields)).code == 17  # there is no such topic

    in_virtual_time(tmp_path, main, **AUTHORIZED)


OTHERS: Mapping[str, Any] = {"all": {}, "by tags": {"exp": "A"}, "by SQL92": {"exp": "n = 1", "expType": "SQL92"}}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_there_from_before_is_told_apart(tmp_path: Path, name: str) -> None:
    """As is what a group of that name failed to consume without popping it."""

    async def before(served: Serving, caller: Caller) -> None:
        await _failing(served, caller)
        await asyncio.sleep(AGAIN_SECONDS)
        await caller.sent(b"of pg_rt_x", topic=SHARED, i=TEXT)
        await served.dispatched()
        assert served.broker.store.max_queue_offset(SHARED, 0) == 3

    async def after(served: Serving, _: Caller) -> None:
        async with signing(served, ROOT) as root:
            for who in (SHORT, LONG):
                async with signing(served, await _tenant(root, who)) as tenant:
                    found = await _bodies(tenant, who, **OTHERS[name])
                    found += await _bodies(tenant, who, **OTHERS[name])
                    assert found == [f"of {who[0]}".encode()]
                    other = {"exp": "B"} if name == "by tags" else {"exp": "n = 2"}
                    assert await _bodies(tenant, who, **(OTHERS[name] | other)) == []

    in_virtual_time(tmp_path, before)
    in_virtual_time(tmp_path, after, **AUTHORIZED)


def test_a_retry_topic_that_nobody_shares_is_read_whole(tmp_path: Path) -> None:
    """Also what does not say whose it is."""

    async def before(served: Serving, caller: Caller) -> None:
        await caller.sent(b"of x", topic="x", i=TEXT)
        assert await _bodies(caller, LONG) == [b"of x"]
        await caller.sent(b"unsaid", topic=SHARED, i=TEXT)
        await served.dispatched()
        assert (await caller.call(207, {"groupName": "pg_rt_x"})).code == 0  # the send made it

    async def after(served: Serving, _: Caller) -> None:
        async with signing(served, ROOT) as root:
            assert await _bodies(root, LONG) == [b"unsaid"]

    in_virtual_time(tmp_path, before)
    in_virtual_time(tmp_path, after, **AUTHORIZED)
