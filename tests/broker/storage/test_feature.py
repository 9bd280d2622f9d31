"""A damaged record that a read meets is repaired from a replica, while the broker runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from firearrow.clock import SystemClock
from firearrow.message.model import MessageView
from firearrow.replication import fetching
from tests.broker.replicated import caught_up, ha_address, log_of, replica, slave_of
from tests.broker.serving import Serving, stored, until

CHECKED = {"check_crc_on_read": True}
COUNT = 60


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "SILENCE_SECONDS_MAX", 0.3)


def hurt(root: Path, physical_offset: int) -> None:
    """Change a byte of a log of one file, as a bad disk might; the broker's map shows it."""
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(physical_offset)
        [byte] = file.read(1)
        file.seek(physical_offset)
        file.write(bytes([byte ^ 0x10]))


@asynccontextmanager
async def pair(tmp_path: Path, **of_slave: bool) -> AsyncIterator[tuple[Serving, Serving, list[MessageView]]]:
    """A master, its slave that reads with checks, and the messages of both."""
    clock = SystemClock()
    async with (
        replica(tmp_path / "m", clock, background=True) as master,
        master.caller() as caller,
        slave_of(master, tmp_path / "s", clock, background=True, store={**CHECKED, **of_slave}) as slave,
    ):
        for number in range(COUNT):
            await caller.sent(b"%d " % number * 30)
        await caught_up(slave, master)
        yield master, slave, stored(master)


@pytest.mark.parametrize("position", [4, 100], ids=["head", "body"])
def test_a_slave_has_it_from_its_master(tmp_path: Path, position: int) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (master, slave, sent):
            for number in (0, 20, COUNT - 1):
                hurt(tmp_path / "s", sent[number].physical_offset + position)
            assert log_of(slave) != log_of(master)
            assert len(stored(slave)) == COUNT - 3
            await until(lambda: log_of(slave) == log_of(master))
            assert stored(slave) == sent

    asyncio.run(main())


def test_where_both_are_damaged_nothing_is_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (master, slave, sent):
            for root in ("m", "s"):
                hurt(tmp_path / root, sent[20].physical_offset + 100)
            before = log_of(slave)
            assert len(stored(slave)) == COUNT - 1
            await until(lambda: "damaged record can't be restored from a replica" in caplog.text)
            assert log_of(slave) == before
            assert log_of(master) == before

    asyncio.run(main())
    [record] = [it for it in caplog.records if it.msg == "damaged record can't be restored from a replica"]
    assert vars(record)["reason"].startswith("it is damaged there, too: ")


def test_a_master_has_it_from_the_slave_that_its_configuration_names(tmp_path: Path) -> None:
    async def main() -> None:
        clock = SystemClock()
        async with pair(tmp_path) as (_, _, sent):
            pass
        keys = {"ha_master_address": "127.0.0.1:1"}
        async with replica(tmp_path / "s", clock, role="SLAVE", store=keys, background=True) as slave:
            hurt(tmp_path / "m", sent[30].physical_offset + 100)
            named = {**CHECKED, "heal_from": ha_address(slave)}
            async with replica(tmp_path / "m", clock, store=named, background=True) as master:
                assert len(stored(master)) == COUNT - 1
                await until(lambda: log_of(slave) == log_of(master))
                assert stored(master) == sent

    asyncio.run(main())
