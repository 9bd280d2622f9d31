"""Identity of a client: its address, its id, and the ids that it gives to messages."""

from __future__ import annotations

import os
import socket
from random import Random

from firearrow.clock import Clock
from firearrow.message.ids import create_unique_id, month_start_ms, unique_id_prefix

_MONTH_MS_MIN = 28 * 24 * 3_600_000


def local_ip() -> str:
    """The address under which this machine talks to others; nothing is sent to find that out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address of no machine, by RFC 5737
        except OSError:
            return "127.0.0.1"
        ip: str = probe.getsockname()[0]
        return ip


def client_id(ip: str, instance: str, unit: str = "") -> str:
    """The id under which brokers know a client: ``ip@instance``, and ``@unit`` if there is one."""
    host = f"[{ip}]" if ":" in ip else ip
    return f"{host}@{instance}@{unit}" if unit else f"{host}@{instance}"


def instance_name(chance: Random) -> str:
    """A name that no other client of this machine has, as Java's have it: ``pid#number``."""
    return f"{os.getpid()}#{chance.getrandbits(48)}"


class UniqueIds:
    """Gives ids to messages (``UNIQ_KEY``): no two are the same."""

    def __init__(self, ip: str, clock: Clock, chance: Random) -> None:
        self._prefix = unique_id_prefix(ip, os.getpid(), chance.getrandbits(32))
        self._clock = clock
        self._month_ms = month_start_ms(clock.now_ms())
        self._counter = chance.getrandbits(16)

    def next(self) -> str:
        """Another id."""
        since = self._clock.now_ms() - self._month_ms
        if not 0 <= since < _MONTH_MS_MIN:
            self._month_ms = month_start_ms(self._clock.now_ms())
            since = self._clock.now_ms() - self._month_ms
        self._counter += 1
        return create_unique_id(self._prefix, since, self._counter)
