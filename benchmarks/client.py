"""``python -m benchmarks.client``: the Python client beside Java's, on one broker, in one run.

In alternating rounds, each in a process of its own: a producer with 64 sends of 128 bytes under
way, against RocketMQ's benchmark Producer with 64 threads; and a push consumer of a backlog, a new
group each round, against RocketMQ's benchmark Consumer. Goals: at least 0.7 of Java's messages a
second (medians), and an import of ``firearrow.client`` in 150 ms.

``--official PYTHON`` adds a producer of ``rocketmq-python-client``, as far as that interpreter has
it, through RocketMQ's proxy, of which ``--proxy LIB`` are the jars (goal: 5 times its rate).
"""

import argparse
import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import uvloop

from benchmarks import clients, toolchain
from benchmarks.errors import BenchmarkError
from benchmarks.generator import Generator, Load
from benchmarks.process import ServerProcess
from benchmarks.remoting import accepts, until
from benchmarks.servers import ALONE, FIREARROW, ROCKETMQ, Deployment, free_port, java_command, launchers
from benchmarks.workloads import wait_dispatched
from firearrow.client import Message, Producer, PushConsumer, StartFrom

TOPIC, BACKLOG = "sent", "backlog"
IN_FLIGHT = 64
BODY = b"b" * 128
LEAD_SECONDS = 2.0
PROXY, PROXY_MEMORY = "org.apache.rocketmq.proxy.ProxyStartup", ("-Xms1g", "-Xmx1g")
RATIO_MIN, RATIO_OF_OFFICIAL_MIN, IMPORT_MS_MAX = 0.7, 5.0, 150
IMPORTS = (
    "import time; t = time.perf_counter(); from firearrow.client import Producer, PushConsumer; "
    "print(1000 * (time.perf_counter() - t))"
)


def main() -> None:
    """Measure, and print a line for each round and for each goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--seconds", type=float, default=20, help="of each round (default: 20)")
    parser.add_argument("--backlog", type=int, default=8_000_000, metavar="MESSAGES")
    parser.add_argument("--broker", choices=[FIREARROW, ROCKETMQ], default=FIREARROW)
    parser.add_argument("--only", choices=["produce", "consume"], help="one of the two")
    parser.add_argument("--official", metavar="PYTHON", help="an interpreter with its client")
    parser.add_argument("--proxy", metavar="LIB", help="jars of RocketMQ with those of its proxy")
    parser.add_argument("--load", nargs=4, help=argparse.SUPPRESS)  # a round, in its process
    options = parser.parse_args()
    if options.official and not options.proxy:
        parser.error("--official needs --proxy")
    if options.load is not None:
        what, name_server, group, seconds = options.load
        load = _produce if what == "produce" else _consume
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            print(json.dumps(runner.run(load(name_server, group, float(seconds)))))
        return
    tools = toolchain.prepare(rocketmq=True)
    with tempfile.TemporaryDirectory(prefix="client-") as directory:
        launch = launchers(tools)[options.broker]
        with launch(Path(directory) / options.broker, ALONE, {}) as deployment:
            deployment.wait_ready()
            deployment.wait_acknowledged(0.1)
            proxy = 0
            if options.official:
                proxy = _start_proxy(tools, deployment, Path(options.proxy))
            _measure(tools, deployment, options, proxy)


def _measure(tools: toolchain.Tools, deployment: Deployment, options: argparse.Namespace, proxy: int) -> None:
    rounds: dict[str, list[float]] = defaultdict(list)
    seconds: float = options.seconds
    loads: dict[str, Callable[[str], float]] = {}
    if options.only != "consume":
        loads["produce, Python"] = lambda group: _python(deployment, "produce", group, seconds)
        loads["produce, Java"] = lambda _: _java(clients.produce(tools, deployment, TOPIC, IN_FLIGHT, seconds))
        if options.official:
            loads["produce, official Python"] = lambda _: clients.official_python(
                deployment, "send", f"127.0.0.1:{proxy}", TOPIC, IN_FLIGHT, seconds, python=options.official
            )[0]
    if options.only != "produce":
        fill = Load("batch", connections=4, depth=8, topic=BACKLOG)
        found = Generator(tools.generator).measure(fill, deployment, 300, lead_s=0, messages=options.backlog)
        wait_dispatched(deployment)
        print(f"a backlog of {found.messages} messages of 128 bytes", flush=True)
        loads["consume, Python"] = lambda group: _python(deployment, "consume", group, seconds)
        loads["consume, Java"] = lambda group: _java(
            clients.consume(tools, deployment, BACKLOG, f"java_{group}", seconds), most=found.messages / seconds
        )
    for number in range(options.rounds):
        for name, load in loads.items():
            rate = load(f"round_{number}")
            rounds[name].append(rate)
            print(f"{name}: {rate:,.0f} messages/s", flush=True)
    medians = {name: statistics.median(rates) for name, rates in rounds.items()}
    for what in ("produce", "consume"):
        for other, goal in (("Java", RATIO_MIN), ("official Python", RATIO_OF_OFFICIAL_MIN)):
            if f"{what}, {other}" in medians:
                ratio = medians[f"{what}, Python"] / medians[f"{what}, {other}"]
                print(f"{what}: {ratio:.2f} of {other}'s (goal: {goal})")
    with tempfile.TemporaryDirectory() as bytecode:  # which an installed package has
        kept = {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
        first, *found_ms = (float(_run([sys.executable, "-c", IMPORTS], os.environ | kept)) for _ in range(6))
    median = statistics.median(found_ms)
    print(f"import: {median:.0f} ms, first {first:.0f} ms (goal: {IMPORT_MS_MAX} ms)")


def _java(output: str, most: float = math.inf) -> float:
    """The rate of Java's client; with ``most``, what there was to consume in a second."""
    if clients.failures(output):
        raise BenchmarkError(f"Java's client counts failures:\n{output[-500:]}")
    if max(map(float, clients.TPS.findall(output)), default=0) > most:
        raise BenchmarkError("the backlog is too small: it was consumed before the end")
    return clients.last_tps(output)


def _python(deployment: Deployment, what: str, group: str, seconds: float) -> float:
    words = [sys.executable, "-m", "benchmarks.client", "--load"]
    found = json.loads(_run([*words, what, deployment.namesrv, group, str(seconds)]))
    deployment.check()
    print(f"  {found['cpu_us']:.1f} µs of CPU a message in the client's process", flush=True)
    return float(found["rate"])


def _start_proxy(tools: toolchain.Tools, deployment: Deployment, jars: Path) -> int:
    """Start RocketMQ's proxy of the cluster; give its port once it listens."""
    assert tools.java is not None
    home = deployment.directory / "proxy"
    home.mkdir()
    settings = home / "proxy.json"
    port = free_port()
    ports = {"grpcServerPort": port, "remotingListenPort": free_port()}
    settings.write_text(
        json.dumps(ports | {"rocketMQClusterName": "DefaultCluster", "enableTopicMessageTypeCheck": False})
    )
    words = ("-n", deployment.namesrv, "-pm", "cluster", "-pc", settings)
    command = java_command(tools.java, jars, home, PROXY_MEMORY, PROXY, *words)
    environment = {"ROCKETMQ_HOME": str(home), "RMQ_PROXY_HOME": str(home)}
    proxy = ServerProcess.start(command, home / "proxy.log", environment)
    deployment.processes.append(proxy)
    until("a proxy that listens", lambda: accepts(f"127.0.0.1:{port}"), timeout_s=60, check=proxy.check)
    return port


def _run(command: list[str], environment: Mapping[str, str] = os.environ) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    if done.returncode:
        raise BenchmarkError(f"{' '.join(command[:4])}:\n{done.stderr[-2000:]}")
    return done.stdout


# --- a round of the Python client, in its own process ---


async def _produce(name_server: str, group: str, seconds: float) -> dict[str, float]:
    async with Producer(name_server, group=group) as producer:
        sent = 0

        async def send_on() -> None:
            nonlocal sent
            while True:
                await producer.send(TOPIC, BODY)
                sent += 1

        senders = [asyncio.ensure_future(send_on()) for _ in range(IN_FLIGHT)]
        found = await _rate(lambda: sent, seconds)
        for sender in senders:
            sender.cancel()
        ended = await asyncio.gather(*senders, return_exceptions=True)
        failed = [one for one in ended if not isinstance(one, asyncio.CancelledError)]
        assert not failed, failed
    return found


async def _consume(name_server: str, group: str, seconds: float) -> dict[str, float]:
    taken = 0
    consumer = PushConsumer(name_server, group=f"python_{group}", start=StartFrom.FIRST)

    @consumer.on(BACKLOG)
    async def take(message: Message) -> None:
        nonlocal taken
        assert len(message.body) == len(BODY)
        taken += 1

    async with consumer:
        return await _rate(lambda: taken, seconds)


async def _rate(count: Callable[[], int], seconds: float) -> dict[str, float]:
    """What is done in a second once it is warm, and the CPU for each."""
    await asyncio.sleep(LEAD_SECONDS)
    before, began, cpu = count(), time.monotonic(), time.process_time()
    await asyncio.sleep(seconds - LEAD_SECONDS)
    done, took = count() - before, time.monotonic() - began
    if not done:
        raise BenchmarkError("nothing was done: is the backlog too small?")
    return {"rate": done / took, "cpu_us": (time.process_time() - cpu) / done * 1e6}


if __name__ == "__main__":
    main()
