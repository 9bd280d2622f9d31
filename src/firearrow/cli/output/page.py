"""Reports as one HTML file, which loads nothing, runs no script and escapes every text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Final

from firearrow import __version__
from firearrow.cli.output.reports import Bars, Cell, Lines, Report, Table, cut, heading, is_number, shown
from firearrow.errors import naming

CELL_CHARACTERS_MAX: Final = 400
LINE_CHARACTERS: Final = 48  # longer texts are wrapped

# No script is allowed even if an escape were forgotten: any producer can send contents.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"

_STYLE: Final = """
:root { color-scheme: light dark; --paper: #fdfdfb; --ink: #22262b; --faint: #6a727c;
  --rule: #d9dce0; --band: #f3f4f2; --c0: #2f6f9f; --c1: #b5651d; --c2: #3c7f4f; --c3: #8d4a8f;
  --c4: #a13d3d; --c5: #5b6b7a; }
@media (prefers-color-scheme: dark) { :root { --paper: #16191d; --ink: #dfe3e8; --faint: #97a0ab;
  --rule: #353b43; --band: #1e2228; --c0: #6fb1e0; --c1: #e0a264; --c2: #79c08d; --c3: #cf94d1;
  --c4: #e58a8a; --c5: #a9b6c3; } }
body { background: var(--paper); color: var(--ink); margin: 2.5rem auto; max-width: 76rem;
  padding: 0 1.5rem; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 .25rem; }
p, dl { margin: .25rem 0 .75rem; color: var(--faint); }
dl { display: flex; flex-wrap: wrap; gap: .1rem 1.5rem; }
dl div { display: flex; gap: .4rem; } dd { margin: 0; color: var(--ink); overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; }
th { text-align: left; font-weight: 600; color: var(--faint); white-space: nowrap; }
th, td { padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
td { white-space: nowrap; font-variant-numeric: tabular-nums; }
td.w { white-space: normal; overflow-wrap: anywhere; min-width: 20rem; max-width: 32rem; }
th.n, td.n { text-align: right; }
tr:hover td { background: var(--band); }
svg { width: 100%; max-width: 45rem; height: auto; margin: .5rem 0 1rem; display: block; }
svg text { font: 12px system-ui, sans-serif; } .label { fill: var(--ink); }
.value { fill: var(--faint); } .grid { stroke: var(--rule); }
polyline { fill: none; stroke-width: 1.75; stroke-linejoin: round; }
""" + "\n".join(f".s{n} {{ fill: var(--c{n}); }} .l{n} {{ stroke: var(--c{n}); }}" for n in range(6))


def write_page(report: Report, path: Path) -> None:
    """Write a report as a page, and print its path on standard error."""
    with naming(path):
        path.write_text(as_html(report), encoding="utf-8")
    print(f"firearrow: report in {path}", file=sys.stderr)


def as_html(report: Report) -> str:
    """Give a report as a page."""
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(shown('', value))}</dd></div>" for name, value in report.facts.items()
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(report.title)}</h1>\n<dl>{facts}</dl>\n"
        + "\n".join(map(_section, report.tables))
        + f"\n<p>Firearrow {__version__}</p>\n</body>\n</html>\n"
    )


def _section(table: Table) -> str:
    parts = [f"<section>\n<h2>{escape(table.title)}</h2>"]
    if table.note:
        parts.append(f"<p>{escape(table.note)}</p>")
    parts += [chart(table), _table(table) if table.rows else "<p>None.</p>"]
    if table.more:
        parts.append(f"<p>The first {len(table.rows)} rows; --top shows more.</p>")
    return "\n".join(filter(None, [*parts, "</section>"]))


def _table(table: Table) -> str:
    kinds = [_kind(table, name) for name in table.columns]
    head = "".join(f"<th{kind}>{escape(heading(name))}</th>" for kind, name in zip(kinds, table.columns, strict=True))
    rows = "\n".join(
        "<tr>"
        + "".join(_cell(kind, shown(name, cell)) for kind, name, cell in zip(kinds, table.columns, row, strict=True))
        + "</tr>"
        for row in table.rows
    )
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>'


def _cell(kind: str, text: str) -> str:
    if len(text) > LINE_CHARACTERS:
        kind = ' class="w"'
    return f"<td{kind}>{escape(cut(text, CELL_CHARACTERS_MAX))}</td>"


def _kind(table: Table, column: str) -> str:
    return ' class="n"' if is_number(table, column) else ""


# --- Charts as SVG, in the colours of the page (`--ink`, `--faint`, `--c0` ...) ---


WIDTH: Final = 720
ROW: Final = 22
LABEL: Final = 300
VALUE: Final = 110
HEIGHT: Final = 220
LEFT: Final = 80
BOTTOM: Final = 28
TOP: Final = 12
BARS_MAX: Final = 20
SERIES_MAX: Final = 6  # the number of colours
LABEL_CHARACTERS: Final = 34


def chart(table: Table) -> str:
    """Draw the chart of a table; empty text without data."""
    match table.chart:
        case Bars() as bars:
            return _bars(table, bars)
        case Lines() as lines:
            return _lines(table, lines)
        case _:
            return ""


def as_picture(table: Table) -> str:
    """Give the chart of a table as an SVG file, whose colours follow the reader's theme."""
    paper = '<rect width="100%" height="100%" fill="var(--paper)"/>'
    head, _, rest = chart(table).partition(">")
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{_STYLE}</style>{paper}{rest}\n'


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
        return ""  # a single time makes no line
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
