"""How fast a Python is on this machine.

    python tools/python_speed.py              prints the nanoseconds that it takes for a message
    python tools/python_speed.py PYTHON...    prints the first, or one that is clearly faster

How a Python was built makes more of a difference than its version: Debian's 3.11 does this, and
most of what a broker does, in little more than half the time of a 3.13 that `pyenv` has built as a
shared library without optimisation.
"""

import struct
import subprocess
import sys
import timeit
from pathlib import Path

MESSAGES = 20_000
TRIES = 3
ROUNDS = 6
CLEARLY = 0.85
UNIT = struct.Struct(">qiq")


class Message:
    """As simple as an object can be."""

    __slots__ = ("offset", "queue_id", "topic")

    def __init__(self, topic: str, queue_id: int, offset: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset

    def queue(self) -> tuple[str, int]:
        return self.topic, self.queue_id


def handle_messages() -> None:
    """Do in pure Python what servers do all day: make objects, call, count, pack and unpack."""
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


def choice(pythons: list[str]) -> str:
    """Choose the first of some interpreters, or one that takes less than 85 % of its time."""
    by_file: dict[Path, str] = {}
    for python in pythons:
        by_file.setdefault(Path(python).resolve(), python)
    different = list(by_file.values())
    least = dict.fromkeys(different, sys.maxsize)
    for _ in range(ROUNDS):  # by turns, as a machine may be slower for some seconds
        for python in different:
            least[python] = min(least[python], int(printed([python, __file__])))
    best = different[0]
    for python in different[1:]:
        if least[python] < CLEARLY * least[best] and can_make_venv(python):
            best = python
    return best


def printed(command: list[str]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


def can_make_venv(python: str) -> bool:
    """Whether an interpreter has what Debian has in a package of its own, ``python3-venv``."""
    command = [python, "-c", "import ensurepip"]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


if __name__ == "__main__":
    print(choice(sys.argv[1:]) if sys.argv[1:] else python_message_ns())
