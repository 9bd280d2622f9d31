"""Disks of brokers: forecasts of growth and retention, in words."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from firearrow.cli.cluster.disks import Disk, disk_from, outlook, store_config
from firearrow.client.blocking import Producer
from firearrow.client.diagnosis.clusterfacts import BrokerFacts
from firearrow.client.diagnosis.findings import Level
from firearrow.clock import HOUR_MS
from tests.cli.shell import Shell, shop

GIB = 1 << 30


def disk(hours: float, log_gib: float, used: float, free_gib: float, keys: dict[str, str] | None = None) -> Disk:
    """Disk of 100 GiB whose log has existed for some hours."""
    config = store_config(keys or {})
    return Disk("a", "a:1", config, int(log_gib * GIB), 0, 100 * GIB, free_gib * GIB, used, 1, int(hours * HOUR_MS) + 1)


@pytest.mark.parametrize(
    ("of", "level", "part"),
    [
        (disk(10, 1, 0.1, 90), Level.OK, "keeps its log below 10.6 GiB, and the disk below 20%"),
        (disk(10, 10, 0.5, 50), Level.WARNING, "In 1 d 1 h, 75% are used"),
        (disk(10, 10, 0.5, 50), Level.WARNING, "in 1 d 11 h, 85%: the oldest files are then deleted before their time"),
        (disk(1, 10, 0.8, 20, {"cleanFileForciblyEnable": "false"}), Level.CRITICAL, "in 1 h, 90%: sends are then"),
        (disk(1, 10, 0.8, 20), Level.WARNING, "Already, 75% are used"),
        (disk(0.001, 1, 0.1, 90), Level.OK, "too few messages"),
        (disk(10, 1, 0.1, 90)._replace(refused="the disk is full"), Level.CRITICAL, "refuses writes"),
        (Disk("a", "a:1", reason="does not answer: gone"), Level.UNKNOWN, "gone"),
    ],
)
def test_the_disk_is_foretold(of: Disk, level: Level, part: str) -> None:
    assert any(it.level is level and part in it.evidence for it in outlook(of)), outlook(of)


ALL_HOURS = ";".join(map(str, range(24)))
"""Value of deleteWhen with which it is always time."""


def with_last(of: Disk, age_hours: float | None, **changed: Any) -> Disk:
    """A disk whose oldest file ends with a message of this age, and whose log begins with the second GiB."""
    last_ms = None if age_hours is None else of.now_ms - int(age_hours * HOUR_MS)
    end = GIB + (of.log_bytes or 0)
    return of._replace(log_end=end, dispatched=end, last_ms=last_ms)._replace(**changed)


def old(hours: float, age_hours: float | None, delete_when: str = ALL_HOURS, **changed: Any) -> Disk:
    """A log of 10 GiB that began some hours ago, whose oldest file ends with a message of this age."""
    return with_last(disk(hours, 10, 0.1, 90, {"deleteWhen": delete_when}), age_hours, **changed)


@pytest.mark.parametrize(
    ("of", "level", "part"),
    [
        (with_last(disk(100, 0.5, 0.1, 90), None), Level.OK, "the last one always stays"),
        (old(73, 71), Level.OK, "its last message is 71.0 h old, fileReservedTime keeps it for 72 h"),
        (old(73, 72.5), Level.OK, "deletes its oldest file now: its last message is 3 d"),
        (old(200, 97), Level.WARNING, "deletes its oldest file now: its last message is 4 d 1 h old"),
        (old(73, 72.5, dispatched=GIB), Level.OK, "not wholly on the disk and in the queues yet"),
        (old(73, 72.5, used=0.86), Level.OK, "deletes its oldest file now"),
        (old(73, 1, used=0.9), Level.OK, "deletes its oldest file now: its last message is 1 h old"),
        (
            old(73, None, untold="code 1"),
            Level.OK,
            "does not tell the age of its oldest file: code 1. Files are deleted",
        ),
        (
            with_last(disk(73, 10, 0.1, 90, {"unconsumedPolicy": "keep", "deleteWhen": ALL_HOURS}), 73),
            Level.OK,
            "unless a group has not consumed it",
        ),
        (
            with_last(disk(30, 0, 0.1, 90, {"fileReservedTime": "24", "deleteWhen": "03;15"}), None),
            Level.OK,
            "at 03, 15 o'clock",
        ),
    ],
)
def test_why_the_oldest_file_stays(of: Disk, level: Level, part: str) -> None:
    last = outlook(of)[-1]
    assert (last.level, part in last.evidence) == (level, True), last


def test_files_stay_until_the_hour() -> None:
    of = old(73, 72.5)
    hour = datetime.fromtimestamp(of.now_ms / 1000, UTC).astimezone().hour
    later = (hour + 1) % 24
    evidence = outlook(old(73, 72.5, str(later)))[-1].evidence
    assert f"in the hours deleteWhen={later} (it is {hour:02d})" in evidence
    assert "more than 75 % of the disk are used (10%)" in evidence


def test_the_age_of_the_oldest_file_is_that_of_the_message_behind_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with shop(monkeypatch, config={"mappedFileSizeCommitLog": 64 << 10}) as cluster:
        shell = Shell(cluster, capsys)
        assert "the last one always stays" in shell.rows("broker", "retention")[-1]["evidence"]
        with Producer(cluster.name_server, group="shop") as producer:
            for _ in range(2):
                producer.send("orders", Random(1).randbytes(60_000))
        assert (
            "its last message is 0.0 h old, fileReservedTime keeps" in shell.rows("broker", "retention")[-1]["evidence"]
        )


def test_answers_of_any_broker_are_read() -> None:
    counted = {"commitLogDirCapacity": "Total : much", "commitLogMaxOffset": "x", "earliestMessageTimeStamp": "-1"}
    of = disk_from(BrokerFacts("C", "a", 0, "a:1", counted), store_config({"deleteWhen": "at night"}), 5)
    assert (of.total_bytes, of.log_bytes, of.oldest_ms, of.bytes_per_hour) == (None, None, None, None)
    assert of.config.delete_when == "04"


def test_disks_are_shown(shell: Shell) -> None:
    [row] = shell.rows("broker", "disk")
    assert row["bytesInLog"] > 600
    assert row["bytesInQueues"] == 6 * 20
    assert row["keptHours"] == 72
    rows = shell.rows("broker", "retention")
    assert [it["rule"] for it in rows] == ["growth", "kept"]
