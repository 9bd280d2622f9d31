"""Run the servers of a plan until a signal, and stop them in the opposite order.

Standard output gets one line, when every server answers and the broker is registered:

    ready namesrv=127.0.0.1:9876 broker=127.0.0.1:10911 grpc=127.0.0.1:8081

Several brokers appear with their names:

    ready namesrv=127.0.0.1:9876 broker-a=127.0.0.1:10911 broker-b=127.0.0.1:10921 grpc=127.0.0.1:8081

Name servers without the registration are named at the end; the broker goes on trying:

    ready broker=127.0.0.1:10911 grpc=127.0.0.1:8081 (not registered with 10.0.0.1:9876)

Everything else goes to standard error.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import platform
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from firearrow import __version__
from firearrow.cli.serving.brokerprocesses import CHANGES, BrokerPlan, ProcessPlan, registering_with, with_name_server
from firearrow.cli.serving.consoleprocess import PORT, ConsoleProcess
from firearrow.cli.serving.options import ServeOptions, ServerOptions
from firearrow.cli.serving.settings import ServerPlan, reachable
from firearrow.cli.serving.standardinput import call_at_end
from firearrow.clock import Clock, SystemClock
from firearrow.errors import CannotListen, ConfigError, FirearrowError
from firearrow.logs import Log
from firearrow.machine import slow_build
from firearrow.net.address import endpoint, host_and_port

if TYPE_CHECKING:
    from firearrow.broker.config import BrokerConfig
    from firearrow.broker.core import Broker
    from firearrow.controller.config import ControllerConfig
    from firearrow.namesrv.config import NamesrvConfig
    from firearrow.proxy.clusterproxy import ClusterProxy
    from firearrow.proxy.config import ProxyConfig

ROCKETMQ_VERSION = "5.5.0"
# A collection looks at what was made since the last one of its kind, 0.25 µs and more for each
# object: at 2,000, every second time at 4,000 and what was freed of older things meanwhile, hardly
# ever at all. With five times as many, every fifth time, the event loop stood still for 12 to 30 ms
# while topics were made by thousands; with Python's own ten for 160 ms.
GC_THRESHOLDS = 2_000, 2, 10_000
# How long a thread that formats a file may keep the interpreter from the event loop, which gives it
# up at each system call. Python's own 5 ms make requests wait for that, several times each.
SWITCH_SECONDS = 0.0005
LARGEST_BLOCK_BYTES = 4 * 1024 * 1024
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

log: Final = Log(__name__)


class CannotServe(FirearrowError):
    """A server could not be started."""


class Served(msgspec.Struct):
    """Addresses of the servers, filled in as they start."""

    namesrv: str | None = None
    controller: str | None = None
    broker: str | None = None
    grpc: str | None = None
    remoting: str | None = None
    """Port of a proxy for remoting clients."""
    console: str | None = None
    """Address of the console for a browser; it is not in the line for clients."""
    brokers: dict[str, str] = {}
    not_registered_with: list[str] = []

    def ready_line(self) -> str:
        """Give the line with the addresses for clients."""
        words = ["ready", *(f"{name}={at}" for name, at in self.named().items())]
        if self.not_registered_with:
            words.append(f"(not registered with {', '.join(self.not_registered_with)})")
        return " ".join(words)

    def named(self) -> dict[str, str]:
        """Give the address of each server by its name."""
        named = {"namesrv": self.namesrv, "controller": self.controller, "broker": self.broker}
        last = {"grpc": self.grpc, "remoting": self.remoting}
        return {name: at for name, at in {**named, **self.brokers, **last}.items() if at}


def run(
    plan: ServerPlan,
    options: ServerOptions | None = None,
    *,
    banner_as_log: bool = False,
    until_stdin_closes: bool = False,
) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP, and with ``until_stdin_closes`` until the end of standard input.

    Give the exit code. The plan of a restarted broker is made again from ``options``.

    Raises `FirearrowError`, with one sentence on the reason, if a server cannot be started.
    """
    # Users of Java send `kill -QUIT` for a thread dump: it must not end the process.
    faulthandler.register(signal.SIGQUIT, all_threads=True)
    _allow_files()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(plan, options, banner_as_log, until_stdin_closes))
    return 0


def _allow_files() -> None:
    """Raise the limit of file descriptors to the hard limit, as Java does (`MaxFDLimit`)."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _settle_memory() -> None:
    """Exclude the objects of the start from garbage collection.

    Modules and tables stay for good, and requests make no cycles. A collection every few hundred objects would cost
    time and pauses, and find nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    # glibc hands memory at the top of the heap back to the kernel when there is more than twice the
    # largest block that was freed so far. Dispatch needs some MiB again and again: without this it
    # gets them page by page each time, for a quarter of its time.
    bytes(LARGEST_BLOCK_BYTES)


async def _serve(
    plan: ServerPlan, options: ServerOptions | None, banner_as_log: bool, until_stdin_closes: bool
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    if until_stdin_closes:
        call_at_end(loop, stop.set)
    stopping = _stop_signals()
    for number in stopping:
        loop.add_signal_handler(number, stop.set)
    for note in plan.notes:
        log.warning(
            "key of the configuration has no effect", extra={"key": note.key, "kind": note.effect, "note": note.text}
        )
    async with AsyncExitStack() as stack:
        served = await _start(plan, options, SystemClock(), stack)
        _settle_memory()
        sys.setswitchinterval(SWITCH_SECONDS)
        _announce(plan, served, banner_as_log)
        await stop.wait()
        log.info("stopping")
    log.info("stopped")
    for number in stopping:  # a second signal must not disturb the stop
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


def _stop_signals() -> list[signal.Signals]:
    """Signals that stop a server; under nohup, not the loss of a terminal, as for a JVM."""
    ignores_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [it for it in STOP_SIGNALS if it is not signal.SIGHUP or not ignores_hangup]


async def _start(plan: ServerPlan, options: ServerOptions | None, clock: Clock, stack: AsyncExitStack) -> Served:
    served = Served()
    if plan.namesrv is not None:
        served.namesrv = await _start_name_server(plan.namesrv, clock, stack)
    if plan.controller is not None:
        served.controller = await _start_controller(plan.controller, clock, stack)
    if plan.broker is not None:
        broker = _registering_with(served.namesrv, plan.broker)
        server = await _start_broker(broker, plan, clock, stack)
        served.broker, served.not_registered_with = server.address, server.not_registered_with
        served.grpc = await _start_grpc(server, plan, clock, stack)
    if plan.workers:
        assert options is not None, "the supervisor asks for configurations again"
        served.grpc, served.remoting = await _start_workers(plan, options, stack)
    elif plan.cluster_proxy is not None:
        proxy, served.grpc = await _start_proxy(plan.cluster_proxy, clock, stack, shares_port=plan.is_worker)
        served.remoting = await _serve_remoting(proxy, plan)
    if plan.brokers:
        assert options is not None, "the supervisor asks for configurations again"
        assert served.namesrv is not None, "their name server runs here"
        await _start_brokers(plan, options, served, clock, stack)
    if isinstance(options, ServeOptions) and served.namesrv is not None and options.wants_console:
        served.console = _start_console(options, served.namesrv, stack)
    return served


def _start_console(options: ServeOptions, name_server: str, stack: AsyncExitStack) -> str | None:
    """Listen for browsers; a port that nobody asked for may be another program's, which is only logged."""
    console = ConsoleProcess(name_server)
    try:
        address = console.start(PORT if options.console_port is None else options.console_port)
    except (CannotListen, ConfigError) as error:
        if options.console_port is not None:
            raise CannotServe(str(error)) from error
        log.info("console is not served", extra={"reason": error})
        return None
    stack.push_async_callback(console.stop)
    return address


async def _start_brokers(
    plan: ServerPlan, options: ServerOptions, served: Served, clock: Clock, stack: AsyncExitStack
) -> None:
    from firearrow.cli.serving.supervisor import Supervisor

    namesrv = served.namesrv or ""
    root = Path(plan.brokers[0].pairs["storePathRootDir"]).parent
    file = options.file.absolute() if options.file else root / CHANGES

    def again() -> list[BrokerPlan]:
        now = options.changed(file=file if file.exists() else options.file)
        return with_name_server(ServerPlan.from_options(now).brokers, namesrv, file)

    log_as = options.log_level, options.log_format
    with _explained("the brokers", "", 0):
        supervisor = Supervisor(with_name_server(plan.brokers, namesrv, file), again, log_as)
        (root / CHANGES).unlink(missing_ok=True)  # of an earlier run
        await supervisor.start()
    stack.push_async_callback(supervisor.stop)
    served.brokers = supervisor.addresses
    served.not_registered_with = supervisor.not_registered_with
    if plan.proxy is not None:  # one for all, since a broker's own port would have its own queues only
        config = msgspec.structs.replace(plan.proxy, namesrv_addr=namesrv)

        async def start() -> str:
            return (await _start_proxy(config, clock, stack, shares_port=False))[1]

        served.grpc = await _if_possible(plan, start)


async def _start_workers(plan: ServerPlan, options: ServerOptions, stack: AsyncExitStack) -> tuple[str, str | None]:
    from firearrow.cli.serving.supervisor import WorkerSupervisor
    from firearrow.net.listening import listen

    config = plan.cluster_proxy
    assert config is not None, "workers have a proxy"

    async def probe(port: int) -> str:
        """Look for another program at a port, which the workers would share with anybody who shares it."""
        with _explained("the proxy", config.bind_address, port):
            (await listen(asyncio.Protocol, config.bind_address, port)).close()
        return endpoint(config.bind_address, port)

    await probe(config.grpc_server_port)
    serves_remoting = bool(config.remoting_listen_port) and await _remoting_if_possible(
        plan, lambda: probe(config.remoting_listen_port)
    )
    keys = {} if serves_remoting else {"remotingListenPort": "0"}

    def workers() -> list[ProcessPlan]:
        found = ServerPlan.from_options(options).workers
        return [msgspec.structs.replace(it, pairs={**it.pairs, **keys}) for it in found]

    supervisor = WorkerSupervisor(workers(), workers, (options.log_level, options.log_format))
    with _explained("the proxy", config.bind_address, config.grpc_server_port):
        await supervisor.start()
    stack.push_async_callback(supervisor.stop)
    return supervisor.address, supervisor.remoting


async def _start_proxy(
    config: ProxyConfig, clock: Clock, stack: AsyncExitStack, *, shares_port: bool
) -> tuple[ClusterProxy, str]:
    from firearrow.proxy.clusterproxy import ClusterProxy

    host = config.local_serve_addr or reachable(config.bind_address)
    proxy = ClusterProxy(config, host, clock)
    with _explained("the proxy", config.bind_address, config.grpc_server_port):
        port = await proxy.start(shares_port=shares_port)
    stack.push_async_callback(proxy.stop)
    return proxy, endpoint(host, port)


async def _serve_remoting(proxy: ClusterProxy, plan: ServerPlan) -> str | None:
    """Serve remoting clients at a proxy; give the address, or None if that is not possible. Workers would have a free
    port each.
    """
    config = plan.cluster_proxy
    assert config is not None, "the plan of a proxy"
    if plan.is_worker and not config.remoting_listen_port:
        return None

    async def start() -> str:
        with _explained("the proxy", config.bind_address, config.remoting_listen_port):
            return endpoint(*await proxy.serve_remoting(shares_port=plan.is_worker))

    return await _remoting_if_possible(plan, start)


async def _remoting_if_possible(plan: ServerPlan, start: Callable[[], Awaitable[str]]) -> str | None:
    """Serve remoting clients; a port that nobody asked for may be another program's, which is only logged."""
    try:
        return await start()
    except CannotServe as error:
        if plan.is_remoting_port_given:
            raise
        log.warning("remoting clients are not served", extra={"error": error})
        return None


async def _start_name_server(config: NamesrvConfig, clock: Clock, stack: AsyncExitStack) -> str:
    from firearrow.namesrv.app import NameServer

    server = NameServer(config, clock)
    with _explained("the name server", config.bind_address, config.listen_port):
        port = await server.start(config.bind_address, config.listen_port)
    stack.push_async_callback(server.stop)
    return endpoint(reachable(config.bind_address), port)


async def _start_controller(config: ControllerConfig, clock: Clock, stack: AsyncExitStack) -> str:
    from firearrow.controller.app import Controller

    address = config.members()[config.controller_d_leger_self_id]
    with _explained("the controller", config.bind_address, host_and_port(address)[1]):
        server = Controller(config, clock)
        await server.start()
    stack.push_async_callback(server.stop)
    return address


async def _start_broker(config: BrokerConfig, plan: ServerPlan, clock: Clock, stack: AsyncExitStack) -> Broker:
    from firearrow.broker.control.controlled import broker_of

    assert plan.store is not None, "a broker has a store"
    server = broker_of(config, plan.store, clock, plan.broker_file)
    with _explained("the broker", config.bind_address, config.listen_port):
        await server.start(config.bind_address, config.listen_port)
    stack.push_async_callback(server.stop)
    return server


async def _start_grpc(server: Broker, plan: ServerPlan, clock: Clock, stack: AsyncExitStack) -> str | None:
    """Serve gRPC clients beside the broker's own; give the address, None if that is not wanted or not possible."""
    config = plan.proxy
    if config is None:
        return None

    async def start() -> str:
        from firearrow.proxy.local import LocalProxy

        proxy = LocalProxy(server, config, clock)
        bind = server.config.bind_address
        with _explained("the gRPC port", bind, config.grpc_server_port):
            port = await proxy.start(bind)
        stack.push_async_callback(proxy.stop)
        return endpoint(host_and_port(server.address)[0], port)

    return await _if_possible(plan, start)


async def _if_possible(plan: ServerPlan, start: Callable[[], Awaitable[str]]) -> str | None:
    """Serve gRPC; give its address, or None if it is not possible.

    A port that nobody asked for may be another program's, and protobuf may be missing: both are only logged.
    """
    try:
        return await start()
    except (CannotServe, ConfigError) as error:
        if plan.is_grpc_port_given:
            raise
        log.warning("gRPC is not served", extra={"error": error})
        return None


def _registering_with(namesrv: str | None, config: BrokerConfig) -> BrokerConfig:
    """Put the embedded name server, if any, first among the name servers of the broker."""
    addresses = registering_with(namesrv, config.namesrv_addr)
    return msgspec.structs.replace(config, namesrv_addr=addresses)


@contextmanager
def _explained(server: str, host: str, port: int) -> Iterator[None]:
    try:
        yield
    except CannotListen as error:
        where = error.filename or endpoint(host, port)  # perhaps the port for metrics
        raise CannotServe(f"{server} cannot listen on {where}: {error.strerror}") from error
    except OSError as error:
        what = f"use {error.filename}" if error.filename else "start"
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise CannotServe(f"{server} cannot {what}: {reason}") from error


def _announce(plan: ServerPlan, served: Served, as_log: bool) -> None:
    facts = served.named()
    if plan.store is not None:
        facts["store"] = plan.store.store_path_root_dir
        facts["flush"] = plan.store.loss_window
    if served.console is not None:
        facts["console"] = served.console
    python = f"{platform.python_implementation()} {platform.python_version()}"
    if slow := slow_build():
        facts["python"] = f"{slow}: it may take twice the CPU of another one (docs/start.md)"
    if as_log:
        log.info("serving", extra={"python": python, **facts, "version": __version__})
    else:
        lines = [f"firearrow {__version__} (RocketMQ {ROCKETMQ_VERSION})"]
        lines += [f"  pid {os.getpid()}, {python}, {asyncio.get_running_loop().__module__}"]
        lines += [f"  {name:11}{fact}" for name, fact in facts.items()]
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()
    with suppress(BrokenPipeError):  # the waiting process is gone, clients are not
        print(served.ready_line(), flush=True)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # uvloop does not exist for this platform
        return asyncio.new_event_loop
    return uvloop.new_event_loop
