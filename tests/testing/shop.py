"""The application of the examples in docs/testing.md: it sends orders, and reminds of them."""

import asyncio
from datetime import timedelta

from firearrow.client.session.answers import read_body
from firearrow.errors import NotFound
from firearrow.message.record import iter_records
from firearrow.net.client import Client
from firearrow.wire.bodies import Route
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue


def place_order(name_server: str, topic: str, number: int) -> None:
    """Send an order; OSError if that can't be done."""
    properties = f"KEYS\x01o-{number}\x02"
    asyncio.run(_send(name_server, topic, f"order {number}", properties))


async def remind(name_server: str, text: str, after: timedelta = timedelta()) -> None:
    """Send a reminder that is to come later."""
    delay_ms = int(after.total_seconds() * 1000)
    properties = f"TIMER_DELAY_MS\x01{delay_ms}\x02" if delay_ms else ""
    await _send(name_server, "reminders", text, properties)


async def reminders(name_server: str) -> list[str]:
    """All reminders that have come."""
    fields: dict[str, FieldValue] = {
        "consumerGroup": "readers", "topic": "reminders", "queueId": 0, "queueOffset": 0,
        "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
        "subscription": "*", "subVersion": 0, "expressionType": "TAG",
    }  # fmt: skip
    client = Client()
    try:
        broker = await _broker(client, name_server, "reminders")
        answer = await client.call(broker, RequestCode.PULL_MESSAGE, fields)
    except NotFound:
        return []
    finally:
        await client.close()
    return [view.body.decode() for view in iter_records(answer.body)]


async def _send(name_server: str, topic: str, text: str, properties: str) -> None:
    fields: dict[str, FieldValue] = {
        "a": "shop", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_795_000_000_000,
        "h": 0, "i": properties, "j": 0, "k": False, "m": False,
    }  # fmt: skip
    client = Client()
    try:
        broker = await _broker(client, name_server, topic)
        await client.call(broker, RequestCode.SEND_MESSAGE_V2, fields, text.encode())
    except NotFound as error:
        raise ConnectionError(f"topic {topic} has no broker: {error}") from None
    finally:
        await client.close()


async def _broker(client: Client, name_server: str, topic: str) -> str:
    fields: dict[str, FieldValue] = {"topic": topic, "acceptStandardJsonOnly": True}
    answer = await client.call(name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
    return read_body(answer, Route, "route").broker_datas[0].address
