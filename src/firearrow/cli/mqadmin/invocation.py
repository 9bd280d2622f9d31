"""One run of a command: its options, the administrator of its cluster, and its output."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from firearrow.cli.failures import sentence
from firearrow.cli.mqadmin.commandline import usage
from firearrow.cli.mqadmin.javatext import concurrent_order, text_order
from firearrow.cli.mqadmin.table import Row
from firearrow.client.admin import Admin
from firearrow.client.admin.cluster import addresses_of_cluster, masters_of
from firearrow.clock import Clock
from firearrow.errors import ConfigError, FirearrowError

T = TypeVar("T")

NO_CLUSTER: Final = "[error] Make sure the specified clusterName exists or the name server connected to is correct."
"""Text that RocketMQ prints, without an end of line, before it goes on with no broker at all."""


class Invocation:
    """A running command. ``values`` are its options by their names.

    ``has_failed`` is set where it did nothing, or could not do a part.
    """

    def __init__(self, row: Row, values: Mapping[str, str | bool], admin: Admin, clock: Clock) -> None:
        self.admin: Final = admin
        self.clock: Final = clock
        self.has_failed: bool = False
        self._row = row
        self._values = values

    def has(self, name: str) -> bool:
        """Tell whether the command line has an option."""
        return name in self._values

    def get(self, name: str) -> str | None:
        """Give the value of an option without surrounding blanks; None without the option."""
        value = self._values.get(name)
        return value.strip() if isinstance(value, str) else None

    def text(self, name: str) -> str:
        """Give the value of a mandatory option."""
        value = self.get(name)
        if value is None:
            raise ConfigError(f"option -{name} is missing")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """Give the value of an option that is a whole number."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        text = self.text(name)
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"-{name} {text!r} is not a whole number") from None

    def flag(self, name: str, default: bool) -> bool:
        """Tell whether the value of an option is ``true``; any other word is false, as in Java."""
        value = self.get(name)
        return default if value is None else value.lower() == "true"

    def write(self, text: str) -> None:
        """Print a text as it is."""
        sys.stdout.write(text)

    def line(self, text: str = "") -> None:
        """Print a line."""
        sys.stdout.write(f"{text}\n")

    def fail(self, text: str) -> None:
        """Print why the command does nothing, or less than it should, as it is."""
        self.has_failed = True
        self.write(text)

    def keys(self, config: Mapping[str, str]) -> None:
        """Print the keys and values of a configuration."""
        for key in concurrent_order(config):
            self.line(f"{key:<50}=  {config[key]}")

    def usage(self) -> None:
        """Print the usage of the command, which does nothing."""
        self.fail(usage(self._row))

    def note(self, error: Exception) -> None:
        """Print an error on standard error while the command goes on."""
        self.has_failed = True
        print(f"mqadmin: {sentence(error)}", file=sys.stderr)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """End a block at an error, print the error on standard error, and go on after the block."""
        try:
            yield
        except (OSError, FirearrowError) as error:
            self.note(error)

    async def again(self, show: Callable[[Invocation], Awaitable[None]]) -> None:
        """Show something once; with ``-i`` again after each interval, until stopped."""
        await show(self)
        while self.has("i"):
            await self.pause(self.number("i"))
            await show(self)

    async def pause(self, seconds: float) -> None:
        """Flush the output, which may be a pipe, and wait."""
        sys.stdout.flush()
        await asyncio.sleep(seconds)

    def file_in(self, name: str) -> bytes | None:
        """Read the file that an option names; if it does not exist, print that and give None."""
        path = Path(self.text(name))
        if path.exists():
            return path.read_bytes()
        self.fail(f"the file path {path} does not exists\n")
        return None

    async def masters(self, cluster: str) -> list[str]:
        """List the addresses of a cluster's masters; for an unknown cluster print that and give none."""
        info = await self.admin.cluster()
        if cluster in info.cluster_addr_table:
            return text_order(masters_of(info, cluster))
        self.fail(NO_CLUSTER)
        return []

    async def all_brokers(self, cluster: str) -> list[str]:
        """List the addresses of a cluster's masters and slaves; otherwise as ``masters``."""
        info = await self.admin.cluster()
        if cluster in info.cluster_addr_table:
            return text_order(addresses_of_cluster(info, cluster))
        self.fail(NO_CLUSTER)
        return []

    async def change_brokers(
        self, change: Callable[[str], Awaitable[None]], done: str, *, with_slaves: bool = False
    ) -> bool:
        """Change the broker of ``-b``, or each master of the cluster of ``-c``, and print ``done`` with its address.

        An error of one broker of a cluster does not stop the others. Without both options, prints the usage and gives
        False.
        """
        if address := self.get("b"):
            await change(address)
            self.line(done.format(address))
        elif self.has("c"):
            cluster = self.text("c")
            for address in await (self.all_brokers(cluster) if with_slaves else self.masters(cluster)):
                try:
                    await change(address)
                except (OSError, FirearrowError) as error:
                    self.note(error)
                else:
                    self.line(done.format(address))
        else:
            self.usage()
            return False
        return True


async def or_none(answer: Awaitable[T]) -> T | None:
    """Wait for an answer; None for an error, where RocketMQ also goes on without a word."""
    try:
        return await answer
    except (OSError, FirearrowError):
        return None
