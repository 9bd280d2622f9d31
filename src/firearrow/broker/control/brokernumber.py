"""The number that the controller gives a broker under its name, and the file that keeps it.

A broker of a new store asks for the next free number, and notes it together with a *check code* in
``brokerIdentity-temp``. Then it applies for it. Taken in the meantime: it asks again. Granted: the
number goes into ``brokerIdentity``, and the note is removed. If the broker ends in between, it
applies once more with the same code, by which the controller knows it. All files are one line of
UTF-8 without a line feed:

========================= ==================================================
file                      content
========================= ==================================================
``brokerIdentity``        ``cluster#broker name#number``
``brokerIdentity-temp``   the same, then ``#code``; a code is ``host:port;ms``
========================= ==================================================

Worked example: ``DefaultCluster#broker-a#2``, and before that
``DefaultCluster#broker-a#2#10.0.0.1:10911;1795000000000``.

Source: upstream ``BrokerMetadata``, ``TempBrokerMetadata``, ``ReplicasManager#register``.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from firearrow.errors import ConfigError
from firearrow.files import read_newest, replace_atomically, sync_directory


class Numbered(NamedTuple):
    """A number of a broker name; ``code`` is there as long as it is not granted."""

    cluster_name: str
    broker_name: str
    broker_id: int
    code: str = ""

    def encode(self) -> bytes:
        """Give the bytes of the file."""
        return "#".join(str(part) for part in self if part != "").encode()


def parse(data: bytes) -> Numbered:
    """Read the bytes of a file; ValueError for anything else."""
    cluster_name, broker_name, broker_id, *code = data.decode().strip().split("#")
    if len(code) > 1:
        raise ValueError(f"{len(code) + 3} parts between #, there are four at most")
    return Numbered(cluster_name, broker_name, int(broker_id), *code)


class NumberFile:
    """The two files of a store."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._applied_path = path.with_name(path.name + "-temp")

    def load(self, cluster_name: str, broker_name: str) -> Numbered | None:
        """Give the number that was granted, else the one that was applied for, else None.

        Raises ConfigError where the store is that of another broker name.
        """
        for path in (self._path, self._applied_path):
            found = read_newest(path, parse)
            if found is None:
                continue
            known = found.value
            if (known.cluster_name, known.broker_name) != (cluster_name, broker_name):
                raise ConfigError(
                    f"{path} is of broker {known.broker_name} in cluster {known.cluster_name}; "
                    f"brokerName is {broker_name}, brokerClusterName is {cluster_name}"
                )
            return known
        return None

    def apply(self, number: Numbered) -> None:
        """Note what is applied for; it is on the disk on return."""
        assert number.code, "a number that is applied for has a code"
        replace_atomically(self._applied_path, number.encode(), backup=False)

    def give_up(self) -> None:
        """Forget what was applied for."""
        self._applied_path.unlink(missing_ok=True)
        sync_directory(self._applied_path.parent)

    def grant(self, number: Numbered) -> None:
        """Keep a number that was granted; it is on the disk on return."""
        replace_atomically(self._path, number._replace(code="").encode(), backup=False)
        self._applied_path.unlink(missing_ok=True)
        sync_directory(self._path.parent)
