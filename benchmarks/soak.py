"""Hold a broker to its limits for minutes: `python -m benchmarks.soak [--minutes N] …`.

2,000 connections in 500 groups, first idle but for a heartbeat every 30 s, as clients send it, then
with 10,000 pulls that wait: each connection has one for each of its queues, asks again when it is
answered, and allows 15 s. A message a second goes to one queue after another; all pulls of that
queue, one of each group, must be answered with it at once.

It prints a table. Exit codes: 0 all limits are kept; 1 one is broken; 2 something went wrong.
"""

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import process, remoting
from benchmarks.errors import BenchmarkError
from benchmarks.servers import ALONE, Deployment, launch_firearrow

HEART_BEAT = 34
TOPIC = "soak"
HEARTBEAT_S = 30.0
SUSPEND_MS = 15_000
SUSPEND_AND_SUBSCRIPTION = 2 | 4
NOTHING_NEW = 19
SYSTEM_BUSY = 2
SENDS_MAX = 10
CONNECT_AT_ONCE = 100
SETTLE_S = 10.0
MEMORY_FIRST_S = 60.0
LATE_S = 5.0  # a third of a wait: whoever is answered later was not woken
LAST_S = 20.0  # for answers to the last messages
IDLE_CORE_PERCENT_MAX = 3.0
GROWTH_PERCENT_MAX = 5.0
GROWTH_BYTES_MIN = 8 << 20  # less is what an allocator keeps for later
MiB = 1 << 20


class Size(NamedTuple):
    """How many take part; each connection has a pull for each of its queues."""

    connections: int = 2000
    groups: int = 500
    pulls: int = 10_000

    @property
    def queues_of_connection(self) -> int:
        """For how many queues a connection pulls."""
        return self.pulls // self.connections

    @property
    def queues(self) -> int:
        """How many queues the topic has: each group reads all of them."""
        return self.pulls // self.groups


@dataclass
class Deliveries:
    """Which messages were sent to the queues of the topic, and which groups have got them."""

    groups: int
    sent_at: dict[tuple[int, int], float] = field(default_factory=dict)
    delivered: int = 0
    late: int = 0
    slowest_s: float = 0.0

    def sent(self, queue_id: int, queue_offset: int, now_s: float) -> None:
        """Note a message that goes out now."""
        self.sent_at[queue_id, queue_offset] = now_s

    def got(self, queue_id: int, first: int, following: int, now_s: float) -> None:
        """Note that a pull was answered with the messages from an offset to before another."""
        for queue_offset in range(first, following):
            waited_s = now_s - self.sent_at.get((queue_id, queue_offset), now_s)
            self.delivered += 1
            self.late += waited_s > LATE_S
            self.slowest_s = max(self.slowest_s, waited_s)

    @property
    def missing(self) -> int:
        """How many times a message has not come to a group."""
        return len(self.sent_at) * self.groups - self.delivered


@dataclass(frozen=True)
class Measured:
    """What a run has found."""

    idle_cores: float
    waiting_cores: float
    first_bytes: int
    last_bytes: int
    deliveries: Deliveries
    errors: int
    refused: int = 0


class Row(NamedTuple):
    """A line of the table; without a limit it only informs."""

    name: str
    value: str
    limit: str = ""
    is_kept: bool = True


def rows(found: Measured) -> list[Row]:
    """Judge what was found."""
    idle_percent = found.idle_cores * 100
    growth = found.last_bytes - found.first_bytes
    growth_max = max(GROWTH_BYTES_MIN, int(found.first_bytes * GROWTH_PERCENT_MAX / 100))
    deliveries = found.deliveries
    return [
        Row(
            "core used while idle",
            f"{idle_percent:.2f} %",
            f"below {IDLE_CORE_PERCENT_MAX:g} %",
            idle_percent < IDLE_CORE_PERCENT_MAX,
        ),
        Row("core used while pulls wait", f"{found.waiting_cores * 100:.1f} %"),
        Row("memory after the first minute", f"{found.first_bytes / MiB:.1f} MiB"),
        Row(
            "memory that came to it",
            f"{growth / MiB:.1f} MiB",
            f"at most {growth_max / MiB:.1f} MiB",
            growth <= growth_max,
        ),
        Row("messages sent", f"{len(deliveries.sent_at)}", "some", bool(deliveries.sent_at)),
        Row("sends refused, then taken", f"{found.refused}"),
        Row("answers to pulls", f"{deliveries.delivered}"),
        Row("wake-ups lost", f"{deliveries.missing}", "none", deliveries.missing == 0),
        Row(f"wake-ups after {LATE_S:g} s", f"{deliveries.late}", "none", not deliveries.late),
        Row("slowest wake-up", f"{deliveries.slowest_s * 1000:.0f} ms"),
        Row("answers that are errors", f"{found.errors}", "none", not found.errors),
    ]


def table(judged: Iterable[Row]) -> str:
    """Format rows for people."""
    lines = []
    for row in judged:
        verdict = "" if not row.limit else "kept" if row.is_kept else "BROKEN"
        lines.append(f"{row.name:<32}{row.value:>14}   {row.limit:<18}{verdict}".rstrip())
    return "\n".join(lines)


class Client(asyncio.Protocol):
    """One connection of a group, which pulls some queues again and again once it is told to."""

    def __init__(self, soak: "Soak", number: int) -> None:
        self._soak = soak
        size = soak.size
        self._group = f"group-{number % size.groups}"
        self._id = f"client-{number}"
        first = number // size.groups * size.queues_of_connection
        self._next = dict.fromkeys(range(first, first + size.queues_of_connection), 0)
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it unless all is over."""
        self._transport = None
        self._soak.failed("a connection was closed")

    def data_received(self, data: bytes) -> None:
        """Take answers one by one."""
        self._buffer += data
        while len(self._buffer) >= remoting.LENGTHS.size:
            length, _ = remoting.LENGTHS.unpack_from(self._buffer)
            if len(self._buffer) < 4 + length:
                return
            frame, self._buffer = self._buffer[: 4 + length], self._buffer[4 + length :]
            self._take(frame)

    def heartbeat(self) -> None:
        """Say that it is there."""
        subscription = {"topic": TOPIC, "subString": "*", "subVersion": 1}
        group = {
            "groupName": self._group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [subscription],
        }
        body = {"clientID": self._id, "producerDataSet": [], "consumerDataSet": [group]}
        self._ask(HEART_BEAT, {}, self._soak.size.queues, json.dumps(body).encode())

    def begin(self) -> None:
        """Pull from each queue."""
        for queue_id in self._next:
            self._pull(queue_id)

    def _pull(self, queue_id: int) -> None:
        fields = {
            "consumerGroup": self._group,
            "topic": TOPIC,
            "queueId": str(queue_id),
            "queueOffset": str(self._next[queue_id]),
            "maxMsgNums": "32",
            "sysFlag": str(SUSPEND_AND_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(SUSPEND_MS),
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        self._ask(remoting.PULL_MESSAGE, fields, queue_id)

    def _ask(self, code: int, fields: dict[str, str], opaque: int, body: bytes = b"") -> None:
        if self._transport is not None:
            self._transport.write(request(code, fields, opaque, body))

    def _take(self, frame: bytes) -> None:
        _, header_bytes = remoting.LENGTHS.unpack_from(frame)
        at = remoting.LENGTHS.size
        header: dict[str, Any] = json.loads(frame[at : at + header_bytes])
        if not header["flag"] & 1:
            return  # the members of its group have changed
        queue_id, code = header["opaque"], header["code"]
        if queue_id not in self._next:
            if code != remoting.SUCCESS:
                self._soak.failed(f"a heartbeat was answered {code}: {header.get('remark')}")
            return
        if code == remoting.SUCCESS:
            following = int(header["extFields"]["nextBeginOffset"])
            self._soak.got(queue_id, self._next[queue_id], following)
            self._next[queue_id] = following
        elif code != NOTHING_NEW:
            self._soak.failed(f"a pull was answered {code}: {header.get('remark')}")
            return
        if not self._soak.is_over:
            self._pull(queue_id)


def request(code: int, fields: dict[str, str], opaque: int, body: bytes = b"") -> bytes:
    """Make a request frame with a number of its own."""
    header = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": opaque,
              "serializeTypeCurrentRPC": "JSON", "version": remoting.CLIENT_VERSION}  # fmt: skip
    text = json.dumps(header).encode()
    return remoting.LENGTHS.pack(4 + len(text) + len(body), len(text)) + text + body


class Soak:
    """A run against a broker that is there."""

    def __init__(self, side: Deployment, size: Size, say: Callable[[str], None]) -> None:
        self._side = side
        self._broker = side.brokers[0]
        self.size = size
        self.deliveries = Deliveries(size.groups)
        self.errors = 0
        self.refused = 0
        self.is_over = False
        self._say = say
        self._clients: list[Client] = []
        self._all_came = asyncio.Event()

    def failed(self, why: str) -> None:
        """Count an error, and say the first ones."""
        if not self.is_over:
            self.errors += 1
            if self.errors <= 3:
                self._say(why)

    def got(self, queue_id: int, first: int, following: int) -> None:
        """Note that a pull was answered with the messages from an offset to before another."""
        self.deliveries.got(queue_id, first, following, time.monotonic())
        if not self.deliveries.missing:
            self._all_came.set()

    async def run(self, idle_s: float, waiting_s: float) -> Measured:
        """Connect, idle, wait; give what was found."""
        await asyncio.to_thread(self._make_topic)
        await self._connect()
        beating = asyncio.create_task(self._beat())
        await asyncio.sleep(SETTLE_S)
        self._say(f"{len(self._clients)} connections are idle for {idle_s:g} s")
        idle_cores = await self._cores(idle_s)
        for client in self._clients:
            client.begin()
        self._say(f"{self.size.pulls} pulls wait for {waiting_s:g} s")
        sending = asyncio.create_task(self._send())
        first_s = min(MEMORY_FIRST_S, waiting_s / 2)
        await asyncio.sleep(first_s)
        first_bytes = self._side.memory().private_bytes
        waiting_cores = await self._cores(waiting_s - first_s)
        sending.cancel()
        last_bytes = self._side.memory().private_bytes
        self._all_came.clear()
        if self.deliveries.missing:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_came.wait(), LAST_S)
        self.is_over = True
        beating.cancel()
        for task in (sending, beating):
            try:
                await task
            except asyncio.CancelledError:
                continue
        found = first_bytes, last_bytes
        return Measured(idle_cores, waiting_cores, *found, self.deliveries, self.errors, self.refused)

    def _make_topic(self) -> None:
        made = remoting.create_topic(TOPIC, self.size.queues)
        answer = remoting.call(self._broker.address, made)
        if answer.code != remoting.SUCCESS:
            raise BenchmarkError(f"topic {TOPIC} can't be made: {answer.code}")

    async def _connect(self) -> None:
        host, _, port = self._broker.address.rpartition(":")
        loop = asyncio.get_running_loop()
        for first in range(0, self.size.connections, CONNECT_AT_ONCE):
            numbers = range(first, min(first + CONNECT_AT_ONCE, self.size.connections))
            made = [loop.create_connection(partial(Client, self, number), host, int(port)) for number in numbers]
            self._clients += [client for _, client in await asyncio.gather(*made)]

    async def _beat(self) -> None:
        """Have each connection send a heartbeat every 30 s, evenly spread."""
        for client in self._clients:
            client.heartbeat()
        pause_s = HEARTBEAT_S / len(self._clients)
        due = time.monotonic()
        for client in itertools.cycle(self._clients):
            due += pause_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            client.heartbeat()

    async def _cores(self, seconds: float) -> float:
        before, began = process.cpu_seconds(self._side.pids), time.monotonic()
        await asyncio.sleep(seconds)
        self._side.check()
        return (process.cpu_seconds(self._side.pids) - before) / (time.monotonic() - began)

    async def _send(self) -> None:
        """Send a message a second, to one queue after another."""
        for number in itertools.count():
            await asyncio.sleep(1.0)
            queue_offset, queue_id = divmod(number, self.size.queues)
            self.deliveries.sent(queue_id, queue_offset, time.monotonic())
            await asyncio.to_thread(self._send_one, queue_id)

    def _send_one(self, queue_id: int) -> None:
        now_ms = time.time_ns() // 1_000_000
        properties = f"UNIQ_KEY\x017F000001{now_ms:024X}\x02"
        values = ("soak", TOPIC, remoting.TEMPLATE_TOPIC, "4", str(queue_id), "0", str(now_ms))
        fields = dict(zip("abcdefg", values, strict=True))
        fields |= {"h": "0", "i": properties, "j": "0", "k": "false", "m": "false"}
        sent = request(remoting.SEND_MESSAGE_V2, fields, 1, b"x" * 128)
        for _ in range(SENDS_MAX):
            answer = remoting.call(self._broker.address, sent, timeout_s=30)
            if answer.code == remoting.SUCCESS:
                return
            if answer.code != SYSTEM_BUSY:
                break
            self.refused += 1  # whoever sends tries again
        raise BenchmarkError(f"a message was refused with {answer.code}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description="Hold a broker to its limits for minutes."
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="with pulls that wait (10)")
    parser.add_argument("--idle-seconds", type=float, default=60.0, help="without pulls (60)")
    parser.add_argument("--part", type=int, default=1, help="with that part of all numbers (1)")
    return parser.parse_args(arguments)


def main() -> int:
    """Run; see the module for the exit codes."""
    arguments = parse()
    full = Size()
    size = Size(*(number // arguments.part for number in full))

    def say(text: str) -> None:
        print(text, flush=True)

    try:
        process.allow_files(2 * size.connections + 1000)
        with tempfile.TemporaryDirectory() as directory, launch_firearrow(Path(directory) / "side", ALONE, {}) as side:
            side.wait_ready()
            soak = Soak(side, size, say)
            found = asyncio.run(soak.run(arguments.idle_seconds, arguments.minutes * 60))
    except (BenchmarkError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    judged = rows(found)
    print(table(judged))
    return 0 if all(row.is_kept for row in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
