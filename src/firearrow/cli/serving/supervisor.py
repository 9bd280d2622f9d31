"""Supervisor of several servers, each in a separate process: it restarts a process that ends.

The servers are the brokers of one command, or the workers of a proxy, which share its port. A server that ends in
order, as by a signal, restarts at once. A server that fails or is killed restarts after a second, and after each
further failure the delay doubles, up to half a minute. A minute of service resets the delay. A restarted server reads
the present configuration file and keeps its port. If a server fails at the first start of all, the others are stopped.

The processes have no terminal, so Ctrl-C only reaches the supervisor, which stops them in order. If the supervisor is
killed, the end of its pipes stops them.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from firearrow.cli.serving.brokerprocesses import FAILED, BrokerPlan, BrokerProcess, ControlFile, ProcessPlan
from firearrow.errors import ConfigError, FirearrowError
from firearrow.logs import Log
from firearrow.net.address import host_and_port
from firearrow.net.tasks import Tasks

log: Final = Log(__name__)

FIRST_WAIT_SECONDS: Final = 1.0
WAIT_SECONDS_MAX: Final = 30.0
SOUND_SECONDS: Final = 60.0
"""Time of service after which earlier failures do not count."""


class DidNotStart(FirearrowError):
    """The process of a server has ended before it served."""


class _Kind(NamedTuple):
    """Servers that a supervisor runs: their noun, their name in log lines, and their processes."""

    noun: str
    field: str
    module: str
    ready: str
    """Beginning of the line of a process that serves; the address follows."""
    port_key: str


_BROKER: Final = _Kind("broker", "broker_name", "firearrow.cli.serving.brokerprocess", "ready broker=", "listenPort")
_WORKER: Final = _Kind("worker", "worker", "firearrow.cli.serving.workerprocess", "ready grpc=", "grpcServerPort")

Again = Callable[[], Sequence[ProcessPlan]]


class _Supervisor:
    """Runs processes; ``start`` and ``stop`` once each, in one event loop.

    ``again`` gives the present plans of all for a restart. ``log_as`` has the level and format of their logs.
    """

    def __init__(self, kind: _Kind, plans: Sequence[ProcessPlan], again: Again, log_as: tuple[str, str]) -> None:
        self.kind: Final = kind
        self.log_as = log_as
        self._again = again
        self._keepers = [_Keeper(one, self) for one in plans]
        self._tasks = Tasks()

    async def start(self) -> None:
        """Return when all servers serve. DidNotStart if one can't; then all are stopped."""
        try:
            await self._start_all()
        except ExceptionGroup as errors:
            await self.stop()
            raise errors.exceptions[0] from None
        for keeper in self._keepers:
            self._tasks.start(keeper.keep(), f"keeper of {keeper.plan.name}")

    async def _start_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for keeper in self._keepers:
                group.create_task(keeper.start())

    async def stop(self) -> None:
        """Stop all servers in order; return when their processes have ended."""
        await self._tasks.close()
        await asyncio.gather(*(keeper.stop() for keeper in self._keepers))

    def changed(self) -> None:
        """Note that a process has begun or ended."""

    def as_it_is_now(self, plan: ProcessPlan) -> ProcessPlan:
        """Give the plan of a server by the present configuration; the former plan if that is invalid."""
        try:
            for one in self._again():
                if one.name == plan.name:
                    return one
            raise ConfigError(f"it is of {self.kind.noun}s with other names than {plan.name}")
        except (OSError, FirearrowError) as error:
            log.error(
                "configuration can't be used: the server keeps what it had",
                extra={self.kind.field: plan.name, "error": error},
            )
            return plan


class Supervisor(_Supervisor):
    """Runs the processes of brokers, and notes them in the control file of their common directory."""

    def __init__(self, brokers: Sequence[BrokerPlan], again: Again, log_as: tuple[str, str]) -> None:
        super().__init__(_BROKER, brokers, again, log_as)
        self.addresses: dict[str, str] = {}
        self.not_registered_with: list[str] = []
        self._control = ControlFile(Path(brokers[0].pairs["storePathRootDir"]).parent)

    async def start(self) -> None:
        """Return when all brokers serve. DidNotStart if one can't; then all are stopped."""
        await super().start()
        self.addresses = {it.plan.name: it.address for it in self._keepers}
        missing = [address for it in self._keepers for address in it.not_registered_with]
        self.not_registered_with = list(dict.fromkeys(missing))

    async def stop(self) -> None:
        """Stop all brokers in order; return when their processes have ended."""
        await super().stop()
        self._control.close()

    def changed(self) -> None:
        """Write the present processes to the control file."""
        running = {it.plan.name: it.running for it in self._keepers}
        try:
            self._control.write({name: it for name, it in running.items() if it is not None})
        except OSError as error:
            log.error("processes of brokers can't be noted", extra={"error": error})


class WorkerSupervisor(_Supervisor):
    """Runs the workers of a proxy at one port; the first worker finds a free one if the port is 0."""

    def __init__(self, workers: Sequence[ProcessPlan], again: Again, log_as: tuple[str, str]) -> None:
        super().__init__(_WORKER, workers, again, log_as)
        self.address: str = ""
        self.remoting: str | None = None

    async def _start_all(self) -> None:
        first, *others = self._keepers
        async with asyncio.TaskGroup() as group:
            await group.create_task(first.start())
            self.address = first.address
            self.remoting = first.others.removeprefix("remoting=") or None
            for keeper in others:
                keeper.address = first.address
                group.create_task(keeper.start())


class _Keeper:
    """Process of one server, restarted whenever it ends."""

    def __init__(self, plan: ProcessPlan, supervisor: _Supervisor) -> None:
        self.plan = plan
        self.address = ""
        self.others = ""
        """Further addresses with their names, as in the line of the process."""
        self.not_registered_with: list[str] = []
        self._supervisor = supervisor
        self._process: Process | None = None
        self._serves = False

    @property
    def running(self) -> BrokerProcess | None:
        """Process of the server, while it serves."""
        if self._process is None or not self._serves:
            return None
        return BrokerProcess(self._process.pid, self.address)

    async def start(self) -> None:
        """Start the process; return when it serves. DidNotStart if it does not."""
        kind, name, pairs = self._supervisor.kind, self.plan.name, dict(self.plan.pairs)
        if self.address:  # the first start found a free port, which clients know
            pairs[kind.port_key] = str(host_and_port(self.address)[1])
        command = (sys.executable, "-m", kind.module, name)
        self._process = process = await asyncio.create_subprocess_exec(
            *command, *self._supervisor.log_as, stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        assert process.stdin is not None, "a pipe by construction"
        assert process.stdout is not None, "a pipe by construction"
        told = msgspec.structs.replace(self.plan, pairs=pairs)
        process.stdin.write(msgspec.json.encode(told) + b"\n")
        line = (await process.stdout.readline()).decode().rstrip("\n")
        if not line.startswith(kind.ready):
            reason = line.removeprefix(FAILED) or f"its process was {_end(await process.wait())}"
            raise DidNotStart(f"{name}: {reason}")
        addresses, _, missing = line.removeprefix(kind.ready).partition(" (not registered with ")
        self.address, _, self.others = addresses.partition(" ")
        self.not_registered_with = missing.removesuffix(")").split(", ") if missing else []
        self._serves = True
        self._supervisor.changed()

    async def keep(self) -> None:
        """Start the process again whenever it ends."""
        time = asyncio.get_running_loop().time
        failures, since = 0, time()
        while True:
            assert self._process is not None, "the process was started"
            code = await self._process.wait()
            has_failed = bool(code) or not self._serves
            self._serves = False
            self._supervisor.changed()
            if time() - since > SOUND_SECONDS:
                failures = 0
            seconds = wait_seconds(failures) if has_failed else 0.0
            failures = failures + 1 if has_failed else 0
            kind = self._supervisor.kind
            fields = {kind.field: self.plan.name, "pid": self._process.pid}
            log.warning(
                "process of a server has ended: it is started again",
                extra={**fields, "end": _end(code), "in_seconds": seconds},
            )
            await asyncio.sleep(seconds)
            self.plan = self._supervisor.as_it_is_now(self.plan)
            since = time()
            try:
                await self.start()
            except (OSError, DidNotStart) as error:
                log.error("server does not start", extra={**fields, "error": error})
            else:
                log.info("server serves again", extra={kind.field: self.plan.name, "pid": self._process.pid})

    async def stop(self) -> None:
        """End the process in order, if it runs."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
        await process.wait()
        if process.stdin is not None:
            process.stdin.close()


def wait_seconds(failures: int) -> float:
    """Delay of a restart after a number of failures."""
    doublings = min(failures, 10)  # a thousand failures would overflow a float
    return min(FIRST_WAIT_SECONDS * (1 << doublings), WAIT_SECONDS_MAX)


def _end(code: int) -> str:
    return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
