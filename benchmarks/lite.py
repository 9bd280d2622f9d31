"""``python -m benchmarks.lite``: lite topics by the thousand and by the million, in RocksDB.

At each scale, 10^3 to ``--most``: how many lite topics come to be in a second (by a message each),
how long a pop that waits takes to get a message of one of its client's some thousand lite topics,
alone and as one of a hundred clients with a thousand each, to which a thousand messages a second
are sent; how long those of another topic wait while a group with a wildcard is told of all that
there are, and what an administrator's look takes and holds up. In the end, the broker's memory, and
how long a stop, a start behind it, and a start behind ``kill -9`` take.

``--rocketmq`` measures the original in place of it, but for what goes through all lite topics and
the restarts.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from benchmarks import toolchain
from benchmarks.admin import NOTIFY, ask_all, probe
from benchmarks.process import memory
from benchmarks.remoting import SUCCESS, Answer, Line, decode, encode, one_message, records_of
from benchmarks.servers import ALONE, ROCKETMQ, Deployment, launchers

PARENT, GROUP, CROWD, EVERYTHING = "lites", "some", "crowd", "all"
CLIENTS, EACH, RATE, SECONDS = 100, 1000, 1000, 10
BEHIND = 2  # an OffsetOption: behind the last message
SUBSCRIBED = 2000
ROUNDS = 400
IN_FLIGHT = 256
NOTHING = 210
CLIENT = "bench-1"
KEYS = {
    "storeType": "defaultRocksDB", "enableLmq": "true", "enableMultiDispatch": "true",
    "brokerFastFailureEnable": "false", "maxLiteSubscriptionCount": "200000",
    "maxLmqConsumeQueueNum": "2000000", "enableLiteEventMode": "true",
}  # fmt: skip


class Broker:
    """A broker on a store; a context that kills it."""

    def __init__(self, store: Path, keys: Iterable[str]) -> None:
        options = [part for key in keys for part in ("--set", key)]
        command = [sys.executable, "-m", "firearrow", "serve", "--store", str(store),
                   "--namesrv-port", "0", "--broker-port", "0", *options]  # fmt: skip
        start = time.perf_counter()
        with (store.parent / "log").open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()
        self.started_s = time.perf_counter() - start
        self.address = dict(word.split("=", 1) for word in words if "=" in word)["broker"]

    def private_mib(self) -> float:
        """How much memory is the process's own."""
        return memory([self._process.pid]).private_bytes / (1 << 20)

    def end(self, number: int) -> float:
        """End it by a signal; give the seconds until it is gone."""
        start = time.perf_counter()
        self._process.send_signal(number)
        self._process.wait()
        return time.perf_counter() - start

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()


class Original:
    """RocketMQ's broker, which goes on as long as the deployment does."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.address = deployment.brokers[0].address

    def private_mib(self) -> float:
        """How much memory is the processes' own."""
        return self._deployment.memory().private_bytes / (1 << 20)


def lite_name(number: int) -> str:
    """Name a lite topic."""
    return f"lite-{number * 2654435761 % (1 << 32):08x}"


def lite_message(number: int) -> bytes:
    """Make the request that sends a message to a lite topic."""
    request = one_message("", PARENT)
    plain, lite = b"\\u0002WAIT\\u0001true", f"\\u0002__LITE_TOPIC\\u0001{lite_name(number)}"
    assert plain in request
    made = request.replace(plain, lite.encode())
    grown = len(made) - len(request)
    total, header = (int.from_bytes(made[at : at + 4], "big") + grown for at in (0, 4))
    return total.to_bytes(4, "big") + header.to_bytes(4, "big") + made[8:]


def change(action: str, group: str, client: str, numbers: Iterable[int], **more: object) -> bytes:
    """Make the request by which a client subscribes."""
    entry = {
        "action": action, "clientId": client, "group": group, "topic": PARENT, "version": 1,
        "liteTopicSet": [lite_name(number) for number in numbers], **more,
    }  # fmt: skip
    return encode(200071, {}, json.dumps({"subscriptionSet": [entry]}).encode())


def pop(group: str, client: str, poll_ms: int) -> bytes:
    """Make a pop."""
    fields = {
        "clientId": client, "consumerGroup": group, "topic": PARENT, "maxMsgNum": "32",
        "invisibleTime": "600000", "pollTime": str(poll_ms),
        "bornTime": str(time.time_ns() // 1_000_000),
    }  # fmt: skip
    return encode(200070, fields)


def acks(group: str, answer: Answer) -> Iterator[bytes]:
    """Acknowledge what was popped."""
    pop_ms, invisible_ms = answer.fields["popTime"], answer.fields["invisibleTime"]
    for record in records_of(answer.body):
        lite = value_of(record, b"__LITE_TOPIC")
        offset = value_of(record, b"INNER_MULTI_QUEUE_OFFSET")
        fields = {
            "consumerGroup": group, "topic": PARENT, "queueId": "0", "offset": offset,
            "liteTopic": lite, "extraInfo": f"0 {pop_ms} {invisible_ms} 999 0 b 0 {offset}",
        }  # fmt: skip
        yield encode(200051, fields)


def value_of(record: bytes, name: bytes) -> str:
    """Find a property of a stored message."""
    return record.split(name + b"\x01", 1)[1].split(b"\x02", 1)[0].decode()


def prepare(address: str) -> None:
    """Make the parent and the groups."""
    fields = {
        "topic": PARENT, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        "attributes": "+message.type=LITE",
    }  # fmt: skip
    with Line(address, 60) as line:
        assert line.ask(encode(17, fields)).code == SUCCESS
        wildcard = {"+lite.sub.wildcard": "true"}
        for group, more in ((GROUP, {}), (CROWD, {}), (EVERYTHING, wildcard)):
            body = {"groupName": group, "attributes": {"+lite.bind.topic": PARENT, **more}}
            assert line.ask(encode(200, {}, json.dumps(body).encode())).code == SUCCESS


def drain(line: Line, group: str, client: str) -> int:
    """Consume all that is ready; give how much that was."""
    count = 0
    while (answer := line.ask(pop(group, client, 0))).code != NOTHING:
        assert answer.code == SUCCESS, answer
        for ack in acks(group, answer):
            assert line.ask(ack).code == SUCCESS
            count += 1
    return count


async def wake(address: str, numbers: list[int]) -> list[float]:
    """Have a pop wait, send, and take the time until it is answered, again and again; in ms."""
    host, _, port = address.rpartition(":")
    times = []
    reader, writer = await asyncio.open_connection(host, int(port))
    with Line(address, 60) as line, Line(address, 60) as other:
        for number in numbers:
            writer.write(pop(GROUP, CLIENT, 20_000))
            await writer.drain()
            await asyncio.sleep(0.01)
            start = time.perf_counter()
            assert other.ask(lite_message(number)).code == SUCCESS
            answer = await answer_of(reader)
            times.append((time.perf_counter() - start) * 1000)
            for ack in acks(GROUP, answer):
                assert line.ask(ack).code == SUCCESS
    writer.close()
    await writer.wait_closed()
    return sorted(times)


class Crowd:
    """A hundred clients that wait; when messages were sent that did not come yet."""

    def __init__(self, address: str, count: int) -> None:
        self._host, _, self._port = address.rpartition(":")
        self._numbers = [
            [(client * EACH + number) % count for number in range(min(EACH, count))] for client in range(CLIENTS)
        ]
        self._sent: dict[str, float] = {}
        self.times: list[float] = []

    async def run(self) -> None:
        """Subscribe and wait, with so many messages a second for some seconds."""
        ready = [asyncio.Event() for _ in self._numbers]
        async with asyncio.TaskGroup() as tasks:
            consumers = [
                tasks.create_task(self._consume(f"crowd-{number}", numbers, ready[number]))
                for number, numbers in enumerate(self._numbers)
            ]
            for each in ready:
                await each.wait()
            await asyncio.sleep(1)
            await self._send()
            await asyncio.sleep(1)
            for consumer in consumers:
                consumer.cancel()

    async def _send(self) -> None:
        reader, writer = await asyncio.open_connection(self._host, int(self._port))
        numbers = list({number for numbers in self._numbers for number in numbers})
        random.Random(1).shuffle(numbers)
        start = time.perf_counter()
        for sent in range(RATE * SECONDS):
            await asyncio.sleep(max(0.0, start + sent / RATE - time.perf_counter()))
            number = numbers[sent % len(numbers)]
            self._sent[lite_name(number)] = time.perf_counter()
            writer.write(lite_message(number))
            assert (await answer_of(reader)).code == SUCCESS
        writer.close()

    async def _consume(self, client: str, numbers: list[int], ready: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection(self._host, int(self._port))
        for at in range(0, len(numbers), 100):
            option = {"type": "POLICY", "value": BEHIND}
            some = numbers[at : at + 100]
            action = "PARTIAL_ADD" if at else "COMPLETE_ADD"  # in place of those of the last scale
            writer.write(change(action, CROWD, client, some, offsetOption=option))
            assert (await answer_of(reader)).code == SUCCESS
        ready.set()
        while True:
            writer.write(pop(CROWD, client, 20_000))
            answer = await answer_of(reader)
            now = time.perf_counter()
            if answer.code == NOTHING:
                continue
            done = list(acks(CROWD, answer))
            for record in records_of(answer.body):
                sent = self._sent.pop(value_of(record, b"__LITE_TOPIC"), None)
                if sent is not None:
                    self.times.append((now - sent) * 1000)
            writer.write(b"".join(done))
            for _ in done:
                assert (await answer_of(reader)).code == SUCCESS

    @property
    def lost(self) -> int:
        """How many messages did not come."""
        return len(self._sent)


async def answer_of(reader: asyncio.StreamReader) -> Answer:
    """Read an answer."""
    while True:
        prefix = await reader.readexactly(4)
        answer = decode(prefix + await reader.readexactly(int.from_bytes(prefix, "big")))
        if answer.code != NOTIFY:
            return answer


def report(what: str, value: str) -> None:
    """Print a line of results."""
    print(f"    {what:52} {value}", flush=True)


def scale(broker: Broker | Original, before: int, count: int) -> None:
    """Measure at a number of lite topics."""
    print(f"{count:,} lite topics")
    start = time.perf_counter()
    asyncio.run(ask_all(broker.address, map(lite_message, range(before, count)), IN_FLIGHT))
    seconds = time.perf_counter() - start
    report("new lite topics a second", f"{(count - before) / seconds:,.0f}")
    chosen = random.Random(count).sample(range(count), min(SUBSCRIBED, count))
    with Line(broker.address, 120) as line:
        some_of_them(broker.address, line, chosen)
        all_at_once(broker.address, count)
        if isinstance(broker, Broker):
            all_of_them(broker.address, line)
    report("memory of the broker, MiB", f"{broker.private_mib():,.0f}")


def some_of_them(address: str, line: Line, chosen: list[int]) -> None:
    """Subscribe to some, consume them, and wait for more."""
    start = time.perf_counter()
    assert line.ask(change("COMPLETE_ADD", GROUP, CLIENT, chosen)).code == SUCCESS
    report(f"to subscribe to {len(chosen):,}, ms", f"{(time.perf_counter() - start) * 1000:,.1f}")
    start = time.perf_counter()
    consumed = drain(line, GROUP, CLIENT)
    seconds = time.perf_counter() - start
    report(f"pops and acknowledgements of {consumed:,}, a second", f"{consumed / seconds:,.0f}")
    times = asyncio.run(wake(address, [chosen[at % len(chosen)] for at in range(ROUNDS)]))
    report("a pop that waits is answered: median, p99, longest ms", in_words(times))


def all_at_once(address: str, count: int) -> None:
    """Have many clients wait at once."""
    crowd = Crowd(address, count)
    asyncio.run(crowd.run())
    times = sorted(crowd.times)
    report(f"{CLIENTS} clients, {RATE}/s: median, p99, longest ms", in_words(times))
    report("messages that came within a second; that did not", f"{len(times):,}  {crowd.lost:,}")


def in_words(times: list[float]) -> str:
    """Give median, 99th percentile and the longest of sorted times."""
    return f"{times[len(times) // 2]:.2f}  {times[len(times) * 99 // 100]:.2f}  {times[-1]:.1f}"


def all_of_them(address: str, line: Line) -> None:
    """Ask what goes through all lite topics, while another one sends."""
    ours, theirs = multiprocessing.Pipe()
    sender = multiprocessing.Process(target=probe, args=(address, theirs), daemon=True)
    sender.start()
    requests = {
        "nothing": b"",
        "a wildcard begins": change("COMPLETE_ADD", EVERYTHING, "w", ()),
        "200074": encode(200074, {}),
        "200075": encode(200075, {"topic": PARENT}),
        "200078": encode(200078, {"group": GROUP, "topK": "10"}),
    }
    for what, request in requests.items():
        ours.send("now")
        ours.recv()
        start = time.perf_counter()
        if request:
            assert line.ask(request).code == SUCCESS
        else:
            time.sleep(1)
        ms = (time.perf_counter() - start) * 1000
        ours.send("now")
        longest, _ = ours.recv()
        report(f"{what}: ms, longest wait of a sender", f"{ms:,.1f}  {longest:.1f}")
    ours.send("end")
    sender.join()
    start = time.perf_counter()
    taken = sum(line.ask(pop(EVERYTHING, "w", 0)).code == SUCCESS for _ in range(100))
    seconds = time.perf_counter() - start
    report("pops of 32 with a wildcard, a second", f"{taken / seconds:,.0f}")
    assert line.ask(change("COMPLETE_REMOVE", EVERYTHING, "w", ())).code == SUCCESS


def scales(broker: Broker | Original, most: int) -> None:
    """Measure at each scale."""
    prepare(broker.address)
    os.nice(5)
    before, count = 0, 1000
    while count <= most:
        scale(broker, before, count)
        before, count = count, count * 10


def main() -> None:
    """Go through the scales, then restart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=1_000_000, help="lite topics")
    parser.add_argument("--rocketmq", action="store_true", help="measure the original")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE for the broker")
    args = parser.parse_args()
    keys = [*(f"{key}={value}" for key, value in KEYS.items()), *args.set]
    with tempfile.TemporaryDirectory() as directory:
        if args.rocketmq:
            tools = toolchain.prepare(rocketmq=True)
            given = dict(key.split("=", 1) for key in keys)
            with launchers(tools)[ROCKETMQ](Path(directory, "run"), ALONE, given) as deployment:
                deployment.wait_ready()
                scales(Original(deployment), args.most)
            return
        store = Path(directory, "store")
        with Broker(store, keys) as broker:
            scales(broker, args.most)
            print("restart")
            report("stop, s", f"{broker.end(signal.SIGTERM):.1f}")
        with Broker(store, keys) as broker:
            report("start, s", f"{broker.started_s:.1f}")
            report("memory then, MiB", f"{broker.private_mib():,.0f}")
            broker.end(signal.SIGKILL)
        with Broker(store, keys) as broker:
            report("start behind a kill, s", f"{broker.started_s:.1f}")


if __name__ == "__main__":
    main()
