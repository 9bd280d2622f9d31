"""Picture of a message's way: places of its parts in an SVG, from the table of the way."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from firearrow.cli.output.reports import Table, cut, shown

LANE: Final = 46
TOP: Final = 34
FIRST_X: Final = 70
WIDTH_MIN: Final = 1000
STEP_X: Final = 170
DOTS_MAX: Final = 5
"""Stations of one group that are drawn: the last ones."""


class Dot(NamedTuple):
    """A station: its place, kind, title above and time below."""

    x: int
    y: int
    kind: str
    title: str
    below: str


class Lane(NamedTuple):
    """Way in one group, with the path that leads to it."""

    y: int
    name: str
    path: str
    dots: list[Dot]
    left_out: int


class Picture(NamedTuple):
    """Picture: the stations before the groups, and a lane for each group."""

    width: int
    height: int
    y: int
    dots: list[Dot]
    lanes: list[Lane]


def picture(table: Table) -> Picture:
    """Give the picture of a way."""
    rows = table.objects()
    times = table.values("at")
    trunk: list[tuple[int, dict[str, object]]] = []
    groups: dict[str, list[tuple[int, dict[str, object]]]] = {}
    for number, row in enumerate(rows):
        if row["step"] in ("sent", "stored", "delayed"):
            trunk.append((number, row))
        else:
            groups.setdefault(str(row["group"]), []).append((number, row))
    height = TOP + LANE * max(len(groups), 1) + 24
    middle = TOP + LANE * max(len(groups), 1) // 2
    dots = [
        Dot(FIRST_X + STEP_X * at, middle, _kind(row), _title(row), _time(times[number]))
        for at, (number, row) in enumerate(trunk)
    ]
    end = dots[-1].x
    lanes = [
        _lane(name, several, times, end, middle, TOP + LANE * at + LANE // 2)
        for at, (name, several) in enumerate(groups.items())
    ]
    most = max((len(lane.dots) for lane in lanes), default=0)
    return Picture(max(end + 240 + 130 * most, WIDTH_MIN), height, middle, dots, lanes)


def _lane(
    name: str, several: list[tuple[int, dict[str, object]]], times: Sequence[object], end: int, middle: int, y: int
) -> Lane:
    kept = several[-DOTS_MAX:]
    dots = [
        Dot(end + 250 + 130 * at, y, _kind(row), _title(row), _time(times[number]))
        for at, (number, row) in enumerate(kept)
    ]
    path = f"M{end} {middle} C{end + 60} {middle} {end + 50} {y} {end + 100} {y} H{dots[-1].x}"
    return Lane(y, cut(name, 18), path, dots, len(several) - len(kept))


def _kind(row: dict[str, object]) -> str:
    return str(row["state"])


def _title(row: dict[str, object]) -> str:
    if row["step"] == "end":
        return {"good": "consumed", "bad": "given up", "warn": "not done", "plain": "no offset"}[str(row["state"])]
    if row["step"] == "sent" and row["group"]:
        return cut(f"sent by {row['group']}", 22)
    if row["step"] == "tried":
        return "consumed" if row["state"] == "good" else "failed"
    return {"retry": "stored for a retry", "dead": "dead letter", "delayed": "delayed until"}.get(
        str(row["step"]), str(row["step"])
    )


def _time(at: object) -> str:
    return shown("", at)[11:] if isinstance(at, datetime) else ""
