"""Supervisor of several brokers, each in a separate process: it restarts a process that ends.

A broker that ends in order, as by a signal, restarts at once. A broker that fails or is killed restarts after a second,
and after each further failure the delay doubles, up to half a minute. A minute of service resets the delay. A restarted
broker reads the present configuration file and keeps its port. If a broker fails at the first start of all, the others
are stopped.

The processes have no terminal, so Ctrl-C only reaches the supervisor, which stops them in order. If the supervisor is
killed, the end of its pipes stops them.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from firearrow.cli.serving.brokerprocesses import FAILED, BrokerPlan, BrokerProcess, ControlFile
from firearrow.errors import ConfigError, FirearrowError
from firearrow.net.address import host_and_port
from firearrow.net.tasks import Tasks

log = logging.getLogger(__name__)

FIRST_WAIT_SECONDS: Final = 1.0
WAIT_SECONDS_MAX: Final = 30.0
SOUND_SECONDS: Final = 60.0
"""Time of service after which earlier failures do not count."""
_READY: Final = "ready broker="


class DidNotStart(FirearrowError):
    """The process of a broker has ended before it served."""


class Supervisor:
    """Runs the processes of brokers; ``start`` and ``stop`` once each, in one event loop.

    ``again`` gives the present plans of all brokers for a restart. ``log_as`` has the level and
    format of their logs.
    """

    def __init__(
        self, brokers: Sequence[BrokerPlan], again: Callable[[], Sequence[BrokerPlan]], log_as: tuple[str, str]
    ) -> None:
        root = Path(brokers[0].pairs["storePathRootDir"]).parent
        self.log_as = log_as
        self.addresses: dict[str, str] = {}
        self.not_registered_with: list[str] = []
        self._again = again
        self._control = ControlFile(root)
        self._keepers = [_Keeper(one, self) for one in brokers]
        self._tasks = Tasks()

    async def start(self) -> None:
        """Return when all brokers serve. DidNotStart if one can't; then all are stopped."""
        try:
            async with asyncio.TaskGroup() as group:
                for keeper in self._keepers:
                    group.create_task(keeper.start())
        except ExceptionGroup as errors:
            await self.stop()
            raise errors.exceptions[0] from None
        self.addresses = {it.broker.name: it.address for it in self._keepers}
        missing = [address for it in self._keepers for address in it.not_registered_with]
        self.not_registered_with = list(dict.fromkeys(missing))
        for keeper in self._keepers:
            self._tasks.start(keeper.keep(), f"keeper of {keeper.broker.name}")

    async def stop(self) -> None:
        """Stop all brokers in order; return when their processes have ended."""
        await self._tasks.close()
        await asyncio.gather(*(keeper.stop() for keeper in self._keepers))
        self._control.close()

    def changed(self) -> None:
        """Write the present processes to the control file."""
        running = {it.broker.name: it.running for it in self._keepers}
        try:
            self._control.write({name: it for name, it in running.items() if it is not None})
        except OSError as error:
            log.error("processes of brokers can't be noted", extra={"error": error})

    def as_it_is_now(self, broker: BrokerPlan) -> BrokerPlan:
        """Give the plan of a broker by the present configuration; the former plan if that is invalid."""
        try:
            for one in self._again():
                if one.name == broker.name:
                    return one
            raise ConfigError(f"it is of brokers with other names than {broker.name}")
        except (OSError, FirearrowError) as error:
            log.error(
                "configuration can't be used: the broker keeps what it had",
                extra={"broker_name": broker.name, "error": error},
            )
            return broker


class _Keeper:
    """Process of one broker, restarted whenever it ends."""

    def __init__(self, broker: BrokerPlan, supervisor: Supervisor) -> None:
        self.broker = broker
        self.address = ""
        self.not_registered_with: list[str] = []
        self._supervisor = supervisor
        self._process: Process | None = None
        self._serves = False

    @property
    def running(self) -> BrokerProcess | None:
        """Process of the broker, while it serves."""
        if self._process is None or not self._serves:
            return None
        return BrokerProcess(self._process.pid, self.address)

    async def start(self) -> None:
        """Start the process; return when it serves. DidNotStart if it does not."""
        name, pairs = self.broker.name, dict(self.broker.pairs)
        if self.address:  # the first start found a free port, which clients know
            pairs["listenPort"] = str(host_and_port(self.address)[1])
        command = (sys.executable, "-m", "firearrow.cli.serving.brokerprocess", name)
        self._process = process = await asyncio.create_subprocess_exec(
            *command, *self._supervisor.log_as, stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        assert process.stdin is not None, "a pipe by construction"
        assert process.stdout is not None, "a pipe by construction"
        told = msgspec.structs.replace(self.broker, pairs=pairs)
        process.stdin.write(msgspec.json.encode(told) + b"\n")
        line = (await process.stdout.readline()).decode().rstrip("\n")
        if not line.startswith(_READY):
            reason = line.removeprefix(FAILED) or f"its process was {_end(await process.wait())}"
            raise DidNotStart(f"{name}: {reason}")
        self.address, _, missing = line.removeprefix(_READY).partition(" (not registered with ")
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
            fields = {"broker_name": self.broker.name, "pid": self._process.pid}
            log.warning(
                "process of a broker has ended: it is started again",
                extra={**fields, "end": _end(code), "in_seconds": seconds},
            )
            await asyncio.sleep(seconds)
            self.broker = self._supervisor.as_it_is_now(self.broker)
            since = time()
            try:
                await self.start()
            except (OSError, DidNotStart) as error:
                log.error("broker does not start", extra={**fields, "error": error})
            else:
                log.info("broker serves again", extra={"broker_name": self.broker.name, "pid": self._process.pid})

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
