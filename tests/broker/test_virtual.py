"""A whole broker with its clients in virtual time: what it does by time, and who is told of it.

Minutes take milliseconds, and nothing is a matter of luck.
"""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from firearrow.broker.core import Broker
from firearrow.broker.events import MembersChanged
from firearrow.message.hosts import Host, pack_host
from firearrow.message.record import iter_records
from firearrow.net.server import ConnectionClosed
from firearrow.store import MessagesArrived
from firearrow.testing.loop import START_MS
from firearrow.wire.command import FieldValue
from tests.broker.serving import SUBSCRIPTION, SUSPEND, Caller, Serving, in_virtual_time, pull_fields, seconds

LONG_SECONDS = 600
WAITING: dict[str, FieldValue] = {
    "sysFlag": SUBSCRIPTION | SUSPEND, "suspendTimeoutMillis": LONG_SECONDS * 1000
}  # fmt: skip
PATIENT: dict[str, Any] = {"server_channel_max_idle_time_seconds": 36_000}


def heartbeat(client_id: str, group: str = "g") -> bytes:
    subscription = {"topic": "T", "subString": "*", "subVersion": 1}
    data = {"groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "subscriptionDataSet": [subscription]}  # fmt: skip
    body = {"clientID": client_id, "producerDataSet": [], "consumerDataSet": [data]}
    return json.dumps(body).encode()


# --- long polls ---


def test_a_long_poll_ends_when_its_time_is_over(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent()
        await served.dispatched()
        began = seconds()
        answer = await caller.pull(1, **WAITING)
        assert answer.code == 19
        assert LONG_SECONDS <= seconds() - began <= LONG_SECONDS + 1

    in_virtual_time(tmp_path, main, **PATIENT)


def test_a_message_ends_a_long_poll_within_milliseconds(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent()
        await served.dispatched()
        async with served.caller() as other:
            other.tell(11, pull_fields(1, **WAITING))
            await asyncio.sleep(LONG_SECONDS / 2)
            sent_at = seconds()
            await caller.sent(b"wanted")
            answer = await other.talker.answer()
            assert [view.body for view in iter_records(answer.body)] == [b"wanted"]
            assert seconds() - sent_at < 0.01

    in_virtual_time(tmp_path, main, **PATIENT)


def test_messages_gather_while_nobody_waits_and_less_so_while_somebody_does(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        steps: list[float] = []
        served.broker.events.listen(MessagesArrived, lambda _: steps.append(seconds()))
        for waits in (False, True):
            async with served.caller() as other:
                if waits:
                    other.tell(11, pull_fields(0, **WAITING, queueId=3))
                    await served.holding(1)
                await asyncio.sleep(1)
                steps.clear()
                for _ in range(50):
                    await caller.sent()
                    await asyncio.sleep(0.01)
                # each by itself; or at once, then every 20 ms, so that some share one
                assert len(steps) == 50 if waits else 16 <= len(steps) <= 26

    in_virtual_time(tmp_path, main, **PATIENT)


# --- what expires ---


def test_a_client_that_falls_silent_is_closed_and_its_group_told(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        closed: list[str] = []
        changed: list[str] = []
        listen = served.broker.events.listen
        listen(ConnectionClosed, lambda happened: closed.append(happened.peer.address))
        listen(MembersChanged, lambda happened: changed.append(happened.group))
        async with served.caller() as silent, served.caller() as lively:
            await silent.call(34, {}, heartbeat("silent"))
            for _ in range(6):  # with 30 s between them
                await lively.call(34, {}, heartbeat("lively"))
                members = await lively.call(38, {"consumerGroup": "g"})
                if b"silent" not in members.body:
                    break
                await asyncio.sleep(30)
            assert 120 <= seconds() <= 150
            assert closed == [silent.talker.address]
            assert changed == ["g", "g", "g"]
            assert json.loads(members.body)["consumerIdList"] == ["lively"]

    in_virtual_time(tmp_path, main, **PATIENT)


def test_a_connection_that_says_nothing_is_closed(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        async with served.caller() as idle:
            assert await idle.talker.end() == b""
            assert 120 <= seconds() <= 140

    in_virtual_time(tmp_path, main)


def test_a_lock_lapses_unless_it_is_renewed(tmp_path: Path) -> None:
    queue = {"topic": "T", "brokerName": "broker-a", "queueId": 0}

    async def main(served: Serving, caller: Caller) -> None:
        async def locked(client_id: str) -> bool:
            body = {"consumerGroup": "g", "clientId": client_id, "mqSet": [queue]}
            answer = await caller.call(41, {}, json.dumps(body).encode())
            return bool(json.loads(answer.body)["lockOKMQSet"])

        assert await locked("a")
        for _ in range(10):  # for ten minutes, as clients do
            await asyncio.sleep(50)
            assert await locked("a")
            assert not await locked("b")
        await asyncio.sleep(59)
        assert not await locked("b")
        await asyncio.sleep(1)
        assert await locked("b")
        await asyncio.sleep(3 * 60)
        assert served.broker.locks._leases == {}

    in_virtual_time(tmp_path, main, **PATIENT)


# --- retention ---


def test_files_whose_time_is_over_go_by_themselves(tmp_path: Path) -> None:
    """At an hour of deleteWhen, once they are older than fileReservedTime."""
    begins = datetime.fromtimestamp(START_MS / 1000, tz=UTC).astimezone()
    store = {
        "file_reserved_time": 1,
        "delete_when": f"{(begins.hour + 2) % 24:02}",
        "flush_interval_commit_log": 60_000,
        "flush_interval_consume_queue": 60_000,
    }

    async def main(served: Serving, caller: Caller) -> None:
        for _ in range(6):
            await caller.sent(bytes(20_000))
        await served.dispatched()
        first = tmp_path / "commitlog" / f"{0:020d}"
        assert first.exists()
        await asyncio.sleep((60 - begins.minute + 59) * 60)
        assert first.exists()
        await asyncio.sleep(3 * 60)
        assert not first.exists()
        assert served.broker.store.log_start_offset > 0
        assert served.broker.store.min_queue_offset("T", 0) > 0

    in_virtual_time(tmp_path, main, store=store, server_channel_max_idle_time_seconds=10**6)


def test_state_is_on_the_disk_soon(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"

    async def main(served: Serving, caller: Caller) -> None:
        await caller.sent(topic="New")
        await asyncio.sleep(1.1)
        assert "New" in json.loads(path.read_bytes())["topicConfigTable"]

    in_virtual_time(tmp_path, main)


def test_a_send_that_waits_for_the_disk_is_answered(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for number in range(5):
            await caller.sent(b"%d" % number)
        assert seconds() < 0.1
        assert served.broker.troubles == {}

    in_virtual_time(tmp_path, main, store={"flush_disk_type": "SYNC_FLUSH"})


# --- the doors fit ---


class Echo:
    """Puts a message into ``Echoed`` for each that arrives in T, a minute later.

    All that a service of a broker needs: an event to listen to, a scheduler, and the door.
    """

    def __init__(self, broker: Broker) -> None:
        self._store = broker.store
        self._clock = broker._clock
        self._loop = asyncio.get_running_loop()
        self._host = pack_host(Host("127.0.0.1", 0))
        self.safe: list[bool] = []
        broker.events.listen(MessagesArrived, self._arrived)

    def _arrived(self, arrived: MessagesArrived) -> None:
        for topic, queue_id, first, end in arrived:
            if topic == "T":
                self._loop.call_later(60, self._put, queue_id, first, end)

    def _put(self, queue_id: int, first: int, end: int) -> None:
        found = self._store.get("T", queue_id, first, end - first)
        for view in iter_records(found.records):
            now_ms = self._clock.now_ms()
            queue = self._store.queue("Echoed", 0)
            self._store.put(queue, view.body, b"TAGS\x01echo\x02", 0, 0, now_ms, self._host, now_ms, 0)
            self._store.when_safe(self._store.log_end_offset, self.safe.append)


def test_a_service_puts_a_message_when_another_arrives(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        echo = Echo(served.broker)
        await caller.sent(topic="Echoed", queue_id=1)  # makes the topic
        await served.dispatched()
        async with served.caller() as waiting:
            waiting.tell(11, pull_fields(0, topic="Echoed", **WAITING))
            await served.holding(1)
            await caller.sent(b"said")
            answer = await waiting.talker.answer()
            [view] = iter_records(answer.body)
            assert (view.body, view.properties["TAGS"]) == (b"said", "echo")
            assert 60 <= seconds() <= 61
            await asyncio.sleep(1)
            assert echo.safe == [True]
            assert served.broker.stats.put_sum()[0] == 3

    in_virtual_time(tmp_path, main, **PATIENT)
