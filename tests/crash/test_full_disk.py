"""A broker on a disk that really fills up: a small file system of memory, mounted for it alone."""

import asyncio
import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from firearrow.wire.command import request
from tests.broker.serving import pull_fields, send_fields
from tests.crash.victim import bodies_of_queue, serving
from tests.net.talker import Talker, talking

DISK_BYTES = 24 << 20
BALLAST_BYTES = 8 << 20
BODY_BYTES = 20_000
TOPICS = 8
TRIES_MAX = 2000
# A mount namespace of its own: nobody else sees the disk, and it goes with the process.
MOUNT = f"""
mount -t tmpfs -o size={DISK_BYTES} tmpfs "$0" && head -c {BALLAST_BYTES} /dev/zero > "$0/ballast"
exec "$@"
"""


def own_mounts() -> tuple[str, ...]:
    """The command that gives another its own mounts: as an ordinary user, or else as root."""
    ways = ("--user", "--map-root-user", "--mount"), ("--mount",)
    for way in ways:
        tried = subprocess.run(["unshare", *way, "true"], capture_output=True, check=False)
        if tried.returncode == 0:
            return "unshare", *way
    raise AssertionError(f"no way to mount a small disk here: {tried.stderr.decode()}")


async def send(talker: Talker, number: int) -> int:
    """Send a message that names itself; give the code of the answer."""
    body = b"%d " % number + bytes(BODY_BYTES)
    talker.ask(request(310, send_fields("T", 0), body, opaque=number + 1))
    return (await talker.answer()).code


async def fill(port: int, disk: Path) -> None:
    """Send until the disk is full, make room, send on: what was answered with 0 is there."""
    taken: list[int] = []
    async with talking(port) as talker:
        numbers = itertools.count()
        for number in itertools.islice(numbers, TRIES_MAX):
            code = await send(talker, number)
            if code != 0:
                assert code == 14
                break
            taken.append(number)
        assert 200 < len(taken) < TRIES_MAX
        assert await send(talker, next(numbers)) == 14
        assert await numbers_in_queue(talker) == taken
        (disk / "ballast").unlink()
        for number in itertools.islice(numbers, TRIES_MAX):
            code = await send(talker, number)
            if code == 0:
                taken.append(number)
                break
            assert code == 14
            await asyncio.sleep(0.05)  # the broker asks the disk again once in a while
        assert await send(talker, next(numbers)) == 0
        assert (await numbers_in_queue(talker))[:-1] == taken


async def numbers_in_queue(talker: Talker) -> list[int]:
    bodies = await bodies_of_queue(talker, 0, 0)
    assert all(len(body) > BODY_BYTES for body in bodies)
    return [int(body.split(b" ", 1)[0]) for body in bodies]


@pytest.mark.parametrize("look_ms", [600_000, 100], ids=["refused by the disk", "by its ratio"])
def test_a_full_disk_costs_nothing_that_was_taken(tmp_path: Path, look_ms: int) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    within = *own_mounts(), "sh", "-c", MOUNT, str(disk)
    settings = f"cleanResourceInterval={look_ms}", "cleanFileForciblyEnable=false"
    with serving(disk / "store", *settings, within=within) as (process, port):
        asyncio.run(fill(port, Path(f"/proc/{process.pid}/root{disk}")))
        process.terminate()
        assert process.wait(30) == 0


async def make_topics(port: int) -> dict[str, int]:
    """Make topics by sends and groups by heartbeats on a full disk; gives the answers' codes."""
    codes: dict[str, int] = {}
    async with talking(port) as talker:
        for number in itertools.islice(itertools.count(), TRIES_MAX):
            if await send(talker, number) != 0:
                break
        for number in range(TOPICS):
            fields = send_fields(topic := f"new-{number}", 0)
            talker.ask(request(310, fields, b"first", opaque=number + 1))
            codes[topic] = (await talker.answer()).code
    return codes


async def pulled(port: int, topic: str) -> int:
    async with talking(port) as talker:
        talker.ask(request(11, pull_fields(0, topic=topic), opaque=1))
        return (await talker.answer()).code


def test_a_topic_that_was_acknowledged_on_a_full_disk_outlives_a_kill(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    within = *own_mounts(), "sh", "-c", MOUNT, str(disk)
    settings = "cleanResourceInterval=600000", "cleanFileForciblyEnable=false"
    copy = tmp_path / "copy"
    with serving(disk / "store", *settings, within=within) as (process, port):
        inside = Path(f"/proc/{process.pid}/root{disk}")
        codes = asyncio.run(make_topics(port))
        shutil.copytree(inside / "store", copy)
        process.kill()
        process.wait()
    with serving(copy, *settings) as (process, port):
        taken = [topic for topic, code in codes.items() if code == 0]
        assert [asyncio.run(pulled(port, topic)) for topic in taken] == [0] * len(taken)
        assert set(codes.values()) <= {0, 14}, codes
        process.terminate()
        assert process.wait(30) == 0
