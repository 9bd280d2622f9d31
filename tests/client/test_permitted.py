"""Clients without permission: they get an error at once, which names the missing right."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from firearrow.client import Credentials, Message, PullConsumer, PushConsumer, SimpleConsumer
from firearrow.client.admin import Admin
from firearrow.client.diagnosis import groupfacts, grouprules
from firearrow.clock import SystemClock
from firearrow.errors import NotPermitted
from firearrow.testing import EmbeddedCluster
from firearrow.testing.settings import Value
from firearrow.wire.admin_bodies import AuthUserInfo
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import SubscriptionGroupConfig

ROOT, SHOP = Credentials("root", "secret of root"), Credentials("shop", "secret of shop")
PROTECTED: dict[str, Value] = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": json.dumps({"username": "root", "password": "secret of root"}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": "root", "secretKey": "secret of root"}),
}


@asynccontextmanager
async def protected() -> AsyncIterator[EmbeddedCluster]:
    """A broker with a topic, a group, and a user that may do nothing."""
    async with EmbeddedCluster(config=PROTECTED) as cluster:
        async with Admin.of([cluster.name_server], ROOT) as admin:
            address = cluster.brokers[0].address
            await admin.topics.create(address, TopicConfig("orders", 1, 1))
            await admin.groups.create(address, SubscriptionGroupConfig("g"))
            await admin.auth.create_user(address, AuthUserInfo("shop", "secret of shop"))
        yield cluster


async def take(_: Message) -> None:
    """Consume a message."""


def test_a_consumer_that_may_not_consume_does_not_start() -> None:
    async def main() -> None:
        async with protected() as cluster:
            server = cluster.name_server
            push = PushConsumer(server, group="g", credentials=SHOP)
            push.subscribe("orders", take)
            with pytest.raises(NotPermitted, match="User:shop has no permission to access"):
                await push.start()
            simple = SimpleConsumer(server, group="g", topics=["orders"], credentials=SHOP)
            with pytest.raises(NotPermitted, match="User:shop has no permission to access"):
                await simple.start()
            async with PullConsumer(server, group="g", credentials=SHOP) as pull:
                with pytest.raises(NotPermitted, match="User:shop has no permission to access"):
                    await pull.subscribe("orders")

    asyncio.run(main())


def test_the_doctor_concludes_nothing_from_what_it_may_not_see() -> None:
    async def main() -> None:
        async with protected() as cluster, Admin.of([cluster.name_server], SHOP) as admin:
            facts = await groupfacts.collect(admin, "g", SystemClock().now_ms())
            found = grouprules.findings(facts)
            [missing] = found
            assert (missing.rule, missing.level.name) == ("access", "WARNING")
            assert "User:shop has no permission" in missing.evidence

    asyncio.run(main())
