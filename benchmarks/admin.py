"""``python -m benchmarks.admin``: how long others wait while a broker is administrated at scale.

One process sends a message after the other to a topic of its own, and notes how long each takes.
Meanwhile this one creates topics, groups, queues and offsets in thousands, and asks for lists of
them. For each kind of request: how many a second, and the longest that the sender had to wait.

This process steps back for the other two (nice): the wait is to be for the broker, not for one of
two cores that three processes share. The first line is what waits are like without any request.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.remoting import LENGTHS, SUCCESS, Line, create_topic, decode, encode, one_message

COUNT = 10_000
QUEUES = 4096
IN_FLIGHT = 64
HEARTBEAT_GROUPS = 1000
NOTIFY = 40  # the broker tells that a group has another member


def probe(address: str, pipe: Connection) -> None:
    """Send all the time; a word on the pipe has the longest and the median answer time told."""
    times: list[float] = []
    with Line(address, 120) as line:
        while True:
            if pipe.poll():
                if pipe.recv() == "end":
                    return
                times.sort()
                pipe.send((times[-1], times[len(times) // 2]) if times else (0.0, 0.0))
                times = []
            start = time.perf_counter()
            line.ask(one_message("", "probe"))
            times.append((time.perf_counter() - start) * 1000)


async def ask_all(address: str, requests: Iterator[bytes], in_flight: int) -> int:
    """Send requests over one connection, so many at a time; give the number of answers."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 26)
    answered = 0
    while block := [request for _, request in zip(range(in_flight), requests, strict=False)]:
        writer.write(b"".join(block))
        left = len(block)
        while left:
            prefix = await reader.readexactly(4)
            frame = prefix + await reader.readexactly(LENGTHS.unpack(prefix * 2)[0])
            answer = decode(frame)
            if answer.code == NOTIFY:
                continue
            left -= 1
            assert answer.code == SUCCESS, (answer.code, frame[:300])
            answered += 1
    writer.close()
    await writer.wait_closed()
    return answered


def group(name: str) -> bytes:
    """Make the request that creates a group."""
    return encode(200, {}, json.dumps({"groupName": name}).encode())


def heartbeat(first: int) -> bytes:
    """Make a heartbeat that announces many new groups."""
    groups = [
        {"groupName": f"beat-{number}", "consumeType": "CONSUME_PASSIVELY",
         "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
         "subscriptionDataSet": [], "unitMode": False}
        for number in range(first, first + HEARTBEAT_GROUPS)
    ]  # fmt: skip
    body = {"clientID": "bench", "producerDataSet": [], "consumerDataSet": groups}
    return encode(34, {}, json.dumps(body).encode())


def commit(number: int) -> bytes:
    """Make the request that commits an offset."""
    fields = {"consumerGroup": f"group-{number}", "topic": f"made-{number}", "queueId": "0"}
    return encode(15, {**fields, "commitOffset": "1"})


def kinds(count: int, queues: int) -> dict[str, Iterator[bytes]]:
    """Give the requests of each kind."""
    return {
        "idle for a second": iter(()),
        "17: create topics": (create_topic(f"made-{n}", 4) for n in range(count)),
        "310: topics by sends": (one_message("", f"auto-{n}") for n in range(count)),
        "200: create groups": (group(f"group-{n}") for n in range(count)),
        "34: heartbeats of 1,000 new groups": map(heartbeat, range(0, 3000, HEARTBEAT_GROUPS)),
        "15: commit offsets": map(commit, range(count)),
        "10: first messages of queues": (
            one_message("", f"made-{n // 4}").replace(b'"e": "0"', b'"e": "%d"' % (n % 4)) for n in range(queues)
        ),
        "21: list topics": (encode(21, {}) for _ in range(5)),
        "201: list groups": (encode(201, {}) for _ in range(5)),
        "215: delete topics": (encode(215, {"topic": f"auto-{n}"}) for n in range(100)),
    }


def run(address: str, namesrv: str, args: argparse.Namespace) -> None:
    """Measure each kind and print a line."""
    ours, theirs = multiprocessing.Pipe()
    sender = multiprocessing.Process(target=probe, args=(address, theirs), daemon=True)
    sender.start()
    os.nice(10)
    print(f"{'requests':40} {'number':>7} {'a second':>9} {'longest ms':>11} {'median ms':>10}")
    for name, requests in kinds(args.count, args.queues).items():
        measure(name, address, requests, ours)
    lists = (encode(206, {}) for _ in range(5))
    measure("name server, 206: list topics", namesrv, lists, ours)
    ours.send("end")
    sender.join()


def measure(name: str, address: str, requests: Iterator[bytes], pipe: Connection) -> None:
    """Send the requests of a kind, and ask the sender how it fared."""
    pipe.send("now")
    pipe.recv()
    start = time.perf_counter()
    number = asyncio.run(ask_all(address, requests, IN_FLIGHT))
    seconds = time.perf_counter() - start
    time.sleep(1.2)  # what is written afterwards counts too
    pipe.send("now")
    longest, median = pipe.recv()
    rate = number / seconds
    print(f"{name:40} {number:7} {rate:9.0f} {longest:11.1f} {median:10.2f}", flush=True)


def main() -> None:
    """Start a broker and measure it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="topics and groups")
    parser.add_argument("--queues", type=int, default=QUEUES, help="new queues that get a message")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE for the broker")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        options = [part for pair in args.set for part in ("--set", pair)]
        command = [sys.executable, "-m", "firearrow", "serve", "--store", f"{directory}/store",
                   "--namesrv-port", "0", "--broker-port", "0", *options]  # fmt: skip
        with (
            Path(directory, "log").open("w") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
        ):
            try:
                assert process.stdout is not None
                words = process.stdout.readline().split()
                places = dict(word.split("=", 1) for word in words if "=" in word)
                run(places["broker"], places["namesrv"], args)
            finally:
                process.kill()


if __name__ == "__main__":
    main()
