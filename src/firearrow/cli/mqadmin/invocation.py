"""One run of a command: what its options say, the cluster that it works on, and what it prints."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from firearrow.cli.failures import sentence
from firearrow.cli.mqadmin.commandline import usage
from firearrow.cli.mqadmin.table import Row
from firearrow.client.admin import Admin
from firearrow.client.admin.cluster import addresses_of_cluster, masters_of
from firearrow.clock import Clock
from firearrow.errors import ConfigError

NO_CLUSTER: Final = "[error] Make sure the specified clusterName exists or the name server connected to is correct."
"""What upstream prints, without an end of line, where it goes on with no broker at all."""


class Invocation:
    """A command at work. ``values`` are its options by their names."""

    def __init__(self, row: Row, values: Mapping[str, str | bool], admin: Admin, clock: Clock) -> None:
        self.admin: Final = admin
        self.clock: Final = clock
        self._row = row
        self._values = values

    def has(self, name: str) -> bool:
        """Tell whether an option is given."""
        return name in self._values

    def get(self, name: str) -> str | None:
        """The value of an option without blanks around it; None if it is not given."""
        value = self._values.get(name)
        return value.strip() if isinstance(value, str) else None

    def text(self, name: str) -> str:
        """The value of an option that is needed."""
        value = self.get(name)
        if value is None:
            raise ConfigError(f"option -{name} is missing")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """The whole number that an option gives."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        text = self.text(name)
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"-{name} {text!r} is not a whole number") from None

    def flag(self, name: str, default: bool) -> bool:
        """Tell whether an option says ``true``; any other word is false, as in Java."""
        value = self.get(name)
        return default if value is None else value.lower() == "true"

    def write(self, text: str) -> None:
        """Print a text as it is."""
        sys.stdout.write(text)

    def line(self, text: str = "") -> None:
        """Print a line."""
        sys.stdout.write(f"{text}\n")

    async def pause(self, seconds: float) -> None:
        """Wait until a command goes on; what it has printed is out, also into a pipe."""
        sys.stdout.flush()
        await asyncio.sleep(seconds)

    def file_in(self, name: str) -> bytes | None:
        """What is in the file that an option names; if there is none, it says so."""
        path = Path(self.text(name))
        if path.exists():
            return path.read_bytes()
        self.line(f"the file path {path} does not exists")
        return None

    def usage(self) -> None:
        """Print how the command is used."""
        self.write(usage(self._row))

    def note(self, error: Exception) -> None:
        """Say on standard error what failed while the command goes on."""
        print(f"mqadmin: {sentence(error)}", file=sys.stderr)

    async def masters(self, cluster: str) -> list[str]:
        """The addresses of a cluster's masters; of none there is, it says so and gives none."""
        info = await self.admin.cluster()
        if cluster in info.cluster_addr_table:
            return masters_of(info, cluster)
        self.write(NO_CLUSTER)
        return []

    async def all_brokers(self, cluster: str) -> list[str]:
        """The addresses of a cluster's masters and slaves; otherwise as ``masters``."""
        info = await self.admin.cluster()
        if cluster in info.cluster_addr_table:
            return addresses_of_cluster(info, cluster)
        self.write(NO_CLUSTER)
        return []
