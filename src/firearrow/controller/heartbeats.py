"""Living brokers: each was heard within the timeout that it has announced.

Each controller observes them separately, by request 904; no agreement covers this. A broker is lost when its connection
closes, or when it has been silent for too long.

Source: RocketMQ's ``DefaultBrokerHeartbeatManager``.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from firearrow.clock import Clock
from firearrow.controller.election import Standing
from firearrow.errors import BrokerError
from firearrow.javanumbers import INT_MAX
from firearrow.wire.codes import ResponseCode
from firearrow.wire.headers import BrokerHeartbeat

TIMEOUT_MS: Final = 10_000  # Java: BrokerHeartbeatManager DEFAULT_BROKER_CHANNEL_EXPIRED_TIME
BROKERS_MAX: Final = 100_000  # any client may claim to be a broker; each takes some 500 bytes


class Identity(NamedTuple):
    """Key of a broker."""

    cluster: str
    name: str
    broker_id: int


class _Pulse:
    """Last heartbeat of a broker."""

    __slots__ = ("channel", "heard_at", "standing", "timeout_ms")

    def __init__(self, channel: object) -> None:
        self.channel = channel
        self.heard_at = 0.0
        self.timeout_ms = TIMEOUT_MS
        self.standing = Standing(-1, -1, INT_MAX)


class Heartbeats:
    """The living brokers. A ``channel`` is the connection of a broker's last heartbeat.

    Java: DefaultBrokerHeartbeatManager keeps the first connection. There a broker which has reconnected is lost for a
    moment when the old connection ends.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pulses: dict[Identity, _Pulse] = {}

    def beat(self, header: BrokerHeartbeat, channel: object) -> None:
        """Note a heartbeat; raises BrokerError if there are too many brokers."""
        assert header.broker_id is not None, "a heartbeat without an id is refused before"
        identity = Identity(header.cluster_name, header.broker_name, header.broker_id)
        pulse = self._pulses.get(identity)
        if pulse is None:
            if len(self._pulses) >= BROKERS_MAX:
                raise BrokerError(ResponseCode.SYSTEM_BUSY, "too many brokers live")
            pulse = self._pulses[identity] = _Pulse(channel)
        pulse.channel = channel
        pulse.heard_at = self._clock.monotonic()
        pulse.timeout_ms = _or(header.heartbeat_timeout_millis, TIMEOUT_MS)
        told = Standing(_or(header.epoch, -1), _or(header.max_offset, -1), _or(header.election_priority, INT_MAX))
        # A broker's data never shrink: an older heartbeat may come later.
        epoch, offset = max(pulse.standing[:2], told[:2])
        pulse.standing = Standing(epoch, offset, told.priority)

    def is_alive(self, cluster: str, name: str, broker_id: int) -> bool:
        """Tell whether a broker has sent a heartbeat in time."""
        pulse = self._pulses.get(Identity(cluster, name, broker_id))
        return pulse is not None and not self._is_silent(pulse)

    def counts(self) -> dict[tuple[str, str], int]:
        """Count the living brokers, by cluster and name."""
        alive = (one for one, pulse in self._pulses.items() if not self._is_silent(pulse))
        return Counter((one.cluster, one.name) for one in alive)

    def standing(self, cluster: str, name: str, broker_id: int) -> Standing:
        """Return the standing of a living broker."""
        return self._pulses[Identity(cluster, name, broker_id)].standing

    def expire(self) -> list[tuple[Identity, object]]:
        """Forget brokers that have been silent for too long; return them and their channels."""
        silent = [one for one, pulse in self._pulses.items() if self._is_silent(pulse)]
        return [(one, self._pulses.pop(one).channel) for one in silent]

    def close(self, channel: object) -> list[Identity]:
        """Forget the brokers of a connection that has ended; return them."""
        lost = [one for one, pulse in self._pulses.items() if pulse.channel is channel]
        for one in lost:
            del self._pulses[one]
        return lost

    def _is_silent(self, pulse: _Pulse) -> bool:
        return self._clock.monotonic() - pulse.heard_at > pulse.timeout_ms / 1000


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value
