"""``python -m benchmarks.embedded``: how soon a cluster inside a test serves, and what hours cost.

Each number is the median of ``--rounds``, behind the first of the process, which is told by itself.
Goals: ready in 100 ms, the first message within 150 ms of construction, 2,000 retries of two hours
in 1 s.
"""

import argparse
import asyncio
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping

from firearrow.client import Message, Producer, PushConsumer, RetryLater, StartFrom
from firearrow.client.session.portal import LoopThread
from firearrow.message.model import MessageView
from firearrow.message.names import retry_topic
from firearrow.message.record import iter_records
from firearrow.net.client import Client
from firearrow.testing import EmbeddedCluster, VirtualTime
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue

TOPIC, GROUP = "probe", "readers"
RETRIES = 2000
LEVEL_OF_TWO_HOURS = 18
IMPORTS = "import time; t = time.perf_counter(); import firearrow.testing as it; it.EmbeddedCluster"
GOALS_MS = {"ready": 100, "first message": 150, f"{RETRIES} retries of two hours": 1000}

Times = dict[str, float]


def main() -> None:
    """Print a line for each number."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, metavar="N")
    rounds = parser.parse_args().rounds
    logging.disable()  # of a clock that leaps, each idle connection is news
    code = f"{IMPORTS}; print(time.perf_counter() - t)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    print(f"import of firearrow.testing and all that a cluster needs: {float(found.stdout):.3f} s")
    ways: dict[str, Callable[[], Times]] = {
        "in an event loop": lambda: asyncio.run(_in_loop()),
        "in a thread": _in_thread,
        "in virtual time": lambda: _in_virtual_time(_fail_all),
        "in virtual time, by a PushConsumer": lambda: _in_virtual_time(_fail_all_in_a_handler),
    }
    for title, measure in ways.items():
        first, *others = (measure() for _ in range(rounds + 1))
        for name in first:
            median = statistics.median(each[name] for each in others)
            goal = f" (goal: {GOALS_MS[name]} ms)" if name in GOALS_MS else ""
            print(f"{title}, {name}: {median:.1f} ms, first {first[name]:.1f} ms{goal}")


async def _in_loop() -> Times:
    times = [time.perf_counter()]
    async with EmbeddedCluster() as cluster:
        times.append(time.perf_counter())
        client = Client()
        await client.call(cluster.brokers[0].address, RequestCode.SEND_MESSAGE_V2, _message(), b"b")
        times.append(time.perf_counter())
        await client.close()
        before = time.perf_counter()
    return _times(times) | {"stop and verification": _ms(before)}


def _in_thread() -> Times:
    times = [time.perf_counter()]
    with EmbeddedCluster() as cluster:
        times.append(time.perf_counter())
        client, thread = Client(), LoopThread("client")
        thread.run(client.call(cluster.brokers[0].address, RequestCode.SEND_MESSAGE_V2, _message(), b"body"))
        times.append(time.perf_counter())
        thread.close(client.close)
        before = time.perf_counter()
    return _times(times) | {"stop and verification": _ms(before)}


def _times(times: Iterable[float]) -> Times:
    began, ready, sent = times
    return {"ready": (ready - began) * 1000, "first message": (sent - began) * 1000}


def _ms(since: float) -> float:
    return (time.perf_counter() - since) * 1000


def _in_virtual_time(fail_all: Callable[[VirtualTime], Coroutine[object, object, None]]) -> Times:
    before, cpu_before = time.perf_counter(), time.process_time()
    with VirtualTime() as virtual:
        virtual.run(virtual.cluster.create_topic(TOPIC, queues=1))
        virtual.run(virtual.cluster.create_group(GROUP))
        virtual.run(fail_all(virtual))
    cpu_ms = (time.process_time() - cpu_before) * 1000
    return {f"{RETRIES} retries of two hours": _ms(before), "of that, CPU": cpu_ms}


async def _fail_all(virtual: VirtualTime) -> None:
    address, client = virtual.cluster.brokers[0].address, Client()

    async def ask_all(code: int, asks: Iterable[Mapping[str, FieldValue]]) -> None:
        await asyncio.gather(*(client.call(address, code, fields, b"body") for fields in asks))

    await ask_all(RequestCode.SEND_MESSAGE_V2, [_message()] * RETRIES)
    views = await _pulled(client, address, TOPIC)
    await ask_all(RequestCode.CONSUMER_SEND_MSG_BACK, map(_back, views))
    await asyncio.sleep(7201)
    again = await _pulled(client, address, retry_topic(GROUP))
    assert [view.reconsume_times for view in again] == [1] * RETRIES
    await client.close()


async def _fail_all_in_a_handler(virtual: VirtualTime) -> None:
    name_server, clock = virtual.cluster.name_server, virtual.clock
    consumer = PushConsumer(name_server, group=GROUP, clock=clock, start=StartFrom.FIRST)
    times: list[int] = []
    all_again = asyncio.Event()

    @consumer.on(TOPIC, concurrency=64)
    async def fail_once(message: Message) -> None:
        times.append(message.reconsume_times)
        if not message.reconsume_times:
            raise RetryLater(level=LEVEL_OF_TWO_HOURS)
        if len(times) == 2 * RETRIES:
            all_again.set()

    async with Producer(name_server, group="probes", clock=clock) as producer, consumer:
        await asyncio.gather(*(producer.send(TOPIC, b"body") for _ in range(RETRIES)))
        await all_again.wait()
    assert times == [0] * RETRIES + [1] * RETRIES


async def _pulled(client: Client, address: str, topic: str) -> list[MessageView]:
    views: list[MessageView] = []
    while len(views) < RETRIES:
        fields: dict[str, FieldValue] = {
            "consumerGroup": GROUP, "topic": topic, "queueId": 0, "queueOffset": len(views),
            "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
            "subscription": "*", "subVersion": 0, "expressionType": "TAG",
        }  # fmt: skip
        answer = await client.call(address, RequestCode.PULL_MESSAGE, fields)
        views += iter_records(answer.body)
    return views


def _message() -> dict[str, FieldValue]:
    return {
        "a": "probes", "b": TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_795_000_000_000,
        "h": 0, "i": "", "j": 0, "k": False, "m": False,
    }  # fmt: skip


def _back(view: MessageView) -> dict[str, FieldValue]:
    return {
        "offset": view.physical_offset, "group": GROUP, "unitMode": False,
        "delayLevel": LEVEL_OF_TWO_HOURS, "originMsgId": view.offset_message_id,
        "originTopic": view.topic, "maxReconsumeTimes": 16,
    }  # fmt: skip


if __name__ == "__main__":
    main()
