"""Charts as SVG inside a page; colours are the page's (`--ink`, `--faint`, `--c0` ...)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from firearrow.cli.reports import Bars, Cell, Lines, Table, cut, shown

WIDTH: Final = 720
ROW: Final = 22
LABEL: Final = 300
VALUE: Final = 110
HEIGHT: Final = 220
LEFT: Final = 80
BOTTOM: Final = 28
TOP: Final = 12
BARS_MAX: Final = 20
SERIES_MAX: Final = 6  # as many as there are colours
LABEL_CHARACTERS: Final = 34


def chart(table: Table) -> str:
    """Draw a table's chart; nothing where there is nothing to draw."""
    match table.chart:
        case Bars() as bars:
            return _bars(table, bars)
        case Lines() as lines:
            return _lines(table, lines)
        case _:
            return ""


def _bars(table: Table, chart: Bars) -> str:
    labels = [" ".join(filter(None, map(_label, cells))) for cells in
              zip(*(table.points(name) for name in chart.labels), strict=True)]  # fmt: skip
    values = [_value(cell) for cell in table.points(chart.value)]
    pairs = list(zip(labels, values, strict=True))[:BARS_MAX]
    most = max((value for _, value in pairs), default=0)
    if most <= 0:
        return ""
    parts = []
    for at, (label, value) in enumerate(pairs):
        y = at * ROW
        length = max(1, (WIDTH - LABEL - VALUE) * max(value, 0) / most)
        parts.append(
            f'<text class="label" x="{LABEL - 8}" y="{y + 15}" text-anchor="end">'
            f"{escape(cut(label, LABEL_CHARACTERS))}</text>"
            f'<rect class="s0" x="{LABEL}" y="{y + 4}" width="{length:.1f}" '
            f'height="{ROW - 8}" rx="2"/>'
            f'<text class="value" x="{LABEL + length + 6:.1f}" y="{y + 15}">'
            f"{escape(shown(chart.value, _number(value)))}</text>"
        )
    return _svg(len(pairs) * ROW + 4, f"{table.title}: {chart.value}", parts)


def _lines(table: Table, chart: Lines) -> str:
    names = table.points(chart.series) if chart.series else [""] * len(table.points(chart.time))
    series: dict[str, list[tuple[float, float]]] = {}
    for name, time, value in zip(names, table.points(chart.time), table.points(chart.value), strict=True):
        if isinstance(time, datetime):
            series.setdefault(_label(name), []).append((time.timestamp(), _value(value)))
    points = [point for line in series.values() for point in line]
    if len({x for x, _ in points}) < 2:
        return ""  # one time is no course
    kept = sorted(series.items(), key=lambda item: -sum(y for _, y in item[1]))[:SERIES_MAX]
    start, end = min(x for x, _ in points), max(x for x, _ in points)
    most = max(y for _, line in kept for _, y in line) or 1.0
    parts = _axes(start, end, most, chart.value)
    for number, (name, line) in enumerate(kept):
        path = " ".join(f"{_across(x, start, end):.1f},{_up(y, most):.1f}" for x, y in sorted(line))
        parts.append(f'<polyline class="l{number}" points="{path}"/>')
        if name:
            y = HEIGHT + 16 + 18 * number
            parts.append(
                f'<rect class="s{number}" x="{LEFT}" y="{y}" width="12" height="4"/>'
                f'<text class="label" x="{LEFT + 18}" y="{y + 6}">{escape(cut(name, 90))}</text>'
            )
    legend = 18 * len(kept) + 8 if chart.series else 0
    return _svg(HEIGHT + legend, f"{table.title}: {chart.value}", parts)


def _axes(start: float, end: float, most: float, column: str) -> list[str]:
    parts = []
    for part in (0.0, 0.5, 1.0):
        y = _up(part * most, most)
        text = escape(shown(column, _number(part * most)))
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="value" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
        )
    days = end - start > 86_400
    for at, anchor in ((start, "start"), ((start + end) / 2, "middle"), (end, "end")):
        moment = datetime.fromtimestamp(at, UTC)
        text = f"{moment:%m-%d %H:%M}" if days else f"{moment:%H:%M:%S}"
        parts.append(
            f'<text class="value" x="{_across(at, start, end):.1f}" y="{HEIGHT - 6}" '
            f'text-anchor="{anchor}">{text}</text>'
        )
    return parts


def _across(x: float, start: float, end: float) -> float:
    return LEFT + (WIDTH - 10 - LEFT) * (x - start) / (end - start)


def _up(y: float, most: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * max(y, 0) / most


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">' + "".join(parts) + "</svg>"
    )


def _label(cell: Cell) -> str:
    return "" if cell is None else shown("", cell)


def _value(cell: Cell) -> float:
    return float(cell) if isinstance(cell, int | float) else 0.0


def _number(value: float) -> float:
    """Whole numbers are counts, and shown without a fraction."""
    return int(value) if value == int(value) else value
