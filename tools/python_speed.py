"""Measure the speed of a Python on this machine: print the nanoseconds that one message takes.

The build of a Python makes more of a difference than its version. Debian's 3.11 does this, and most of a
broker's work, in little more than half the time of a 3.13 that `pyenv` has built as a shared library without
optimisation.
"""

import struct
import timeit

MESSAGES = 20_000
TRIES = 3
UNIT = struct.Struct(">qiq")


class Message:
    """Object as simple as possible."""

    __slots__ = ("offset", "queue_id", "topic")

    def __init__(self, topic: str, queue_id: int, offset: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset

    def queue(self) -> tuple[str, int]:
        return self.topic, self.queue_id


def handle_messages() -> None:
    """Do in pure Python the daily work of a server: make objects, call, count, pack and unpack."""
    counts: dict[tuple[str, int], int] = {}
    for offset in range(MESSAGES):
        message = Message(f"topic{offset % 7}", offset % 4, offset)
        queue = message.queue()
        counts[queue] = counts.get(queue, 0) + 1
        unit = UNIT.pack(offset, message.queue_id, message.offset)
        if UNIT.unpack(unit)[0] != offset:
            raise AssertionError("what is packed is unpacked")


def python_message_ns() -> int:
    """Measure the nanoseconds that one of these messages takes at best; needs 0.1 s."""
    return round(min(timeit.repeat(handle_messages, number=1, repeat=TRIES)) / MESSAGES * 1e9)


if __name__ == "__main__":
    print(python_message_ns())
