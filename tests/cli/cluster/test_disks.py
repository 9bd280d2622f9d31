"""Disks of brokers: forecasts of growth and retention, in words."""

from __future__ import annotations

import pytest

from firearrow.cli.cluster.disks import Disk, disk_from, outlook, store_config
from firearrow.client.diagnosis.clusterfacts import BrokerFacts
from firearrow.client.diagnosis.findings import Level
from firearrow.clock import HOUR_MS
from tests.cli.shell import Shell

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


@pytest.mark.parametrize(
    ("of", "level", "part"),
    [
        (disk(100, 0.5, 0.1, 90), Level.OK, "the last one always stays"),
        (disk(71, 10, 0.1, 90), Level.OK, "so no file may be deleted yet"),
        (disk(73, 10, 0.1, 90), Level.OK, "its file is due"),
        (disk(200, 10, 0.1, 90), Level.WARNING, "its file is due"),
        (disk(73, 10, 0.1, 90, {"unconsumedPolicy": "keep"}), Level.OK, "unless a group has not consumed them"),
        (disk(30, 10, 0.1, 90, {"fileReservedTime": "24", "deleteWhen": "03;15"}), Level.OK, "at 03, 15 o'clock"),
    ],
)
def test_why_the_oldest_file_stays(of: Disk, level: Level, part: str) -> None:
    last = outlook(of)[-1]
    assert (last.level, part in last.evidence) == (level, True), last


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
