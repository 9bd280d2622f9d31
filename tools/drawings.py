"""Draw the diagrams of the documentation: `python -m tools.drawings`.

A diagram is a grid of boxes with arrows between them. The pictures `docs/pictures/NAME.svg` have a background of their
own, so they are legible on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

PICTURES: Final = Path(__file__).parent.parent / "docs" / "pictures"
COLUMN: Final = 210
ROW: Final = 104
BOX_WIDTH: Final = 150
BOX_HEIGHT: Final = 54
MARGIN: Final = 26
LINE: Final = 17
_STYLE: Final = """
text{font:13px system-ui,'Segoe UI',Roboto,'Noto Sans',sans-serif;fill:#1d2126}
.name{font-weight:650}.soft{fill:#5b636d;font-size:12px}
.paper{fill:#fcfcfb;stroke:#e3e3de}.box{fill:#fff;stroke:#8a929b}.store{fill:#fdeee6;stroke:#b83a08}
.lost{fill:#fce8e8;stroke:#b01e1e;stroke-dasharray:5 4}.way{fill:none;stroke:#2f6f9f;stroke-width:1.6}
.later{stroke-dasharray:5 4}.tip{fill:#2f6f9f}.label{paint-order:stroke;stroke:#fcfcfb;stroke-width:5px}
""".strip()
_TIP: Final = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path class="tip" d="M0 0L8 4L0 8z"/></marker>'
)


class Box(NamedTuple):
    """A box at a column and a row, which may be fractions. ``kind`` is ``box``, ``store`` or ``lost``."""

    column: float
    row: float
    name: str
    more: str = ""
    kind: str = "box"


class Arrow(NamedTuple):
    """An arrow between two boxes by their names. ``later`` is dashed; ``shift`` moves a parallel one aside."""

    start: str
    end: str
    label: str = ""
    later: bool = False
    shift: float = 0


class Diagram(NamedTuple):
    """Boxes and arrows, with a description for those who can't see them."""

    text: str
    boxes: Sequence[Box]
    arrows: Sequence[Arrow]


DIAGRAMS: Final[Mapping[str, Diagram]] = {
    "topology": Diagram(
        "Producers and consumers ask a name server for the route, and talk to brokers directly",
        [
            Box(0, 0.5, "Producer"),
            Box(1.2, 0, "Name server", "knows the brokers"),
            Box(1.2, 1, "Broker a", "queues 0 to 3", "store"),
            Box(1.2, 2, "Broker b", "queues 0 to 3", "store"),
            Box(2.4, 0.5, "Consumer 1", "group billing"),
            Box(2.4, 1.5, "Consumer 2", "group billing"),
        ],
        [
            Arrow("Producer", "Name server", "route", later=True),
            Arrow("Producer", "Broker a", "send"),
            Arrow("Producer", "Broker b", "send"),
            Arrow("Consumer 1", "Name server", "route", later=True),
            Arrow("Broker a", "Consumer 1", "messages"),
            Arrow("Broker b", "Consumer 2", "messages"),
        ],
    ),
    "retries": Diagram(
        "A message that fails goes to its group's retry topic, comes back after a delay, and ends as a dead letter",
        [
            Box(0, 0, "Topic orders", "stored once", "store"),
            Box(1.3, 0, "Consumer", "group billing"),
            Box(2.6, 0, "Done", "the offset moves on"),
            Box(1.3, 1.1, "%RETRY%billing", "10 s, 30 s … 2 h", "store"),
            Box(2.6, 1.1, "%DLQ%billing", "stays for inspection", "store"),
        ],
        [
            Arrow("Topic orders", "Consumer", "deliver"),
            Arrow("Consumer", "Done", "success"),
            Arrow("Consumer", "%RETRY%billing", "failure", shift=-24),
            Arrow("%RETRY%billing", "Consumer", "again, when it is due", later=True, shift=-24),
            Arrow("%RETRY%billing", "%DLQ%billing", "after 16 retries"),
        ],
    ),
    "failover": Diagram(
        "Three controllers watch the master of a broker; when it is lost, they elect a replica that has all messages",
        [
            Box(0, 0, "Controllers", "three, by Raft"),
            Box(1.35, 0, "Lost master", "heartbeats end", "lost"),
            Box(1.35, 1.1, "New master", "was in sync", "store"),
            Box(2.7, 1.1, "Slave", "follows the new one", "store"),
            Box(0, 1.1, "Producer", "its send is tried again"),
        ],
        [
            Arrow("Lost master", "Controllers", "heartbeats", later=True),
            Arrow("Controllers", "New master", "elected"),
            Arrow("Lost master", "New master", "had copied all that it acknowledged", later=True),
            Arrow("Producer", "New master", "send"),
            Arrow("New master", "Slave", "copies"),
        ],
    ),
    "pipeline": Diagram(
        "Spark reads store files, archives and live brokers as tables, writes archives and typed tables, and sends",
        [
            Box(0, 0, "Store files", "of a broker, or a copy", "store"),
            Box(0, 1, "Brokers", "live, as a consumer", "store"),
            Box(1.35, 0.5, "Spark", "format('rocketmq')"),
            Box(2.7, 0, "Archive", "Delta or Iceberg", "store"),
            Box(2.7, 1, "Typed tables", "a topic each", "store"),
            Box(1.35, 1.6, "Reports", "lag, dead letters …"),
        ],
        [
            Arrow("Store files", "Spark", "no load on the broker"),
            Arrow("Brokers", "Spark", "read, stream, send", shift=9),
            Arrow("Spark", "Brokers", "", later=True, shift=9),
            Arrow("Spark", "Archive", "each message once"),
            Arrow("Spark", "Typed tables", "fresh in a minute"),
            Arrow("Spark", "Reports"),
        ],
    ),
}


def as_svg(diagram: Diagram) -> str:
    """Give a diagram as a picture."""
    places = {box.name: (MARGIN + box.column * COLUMN, MARGIN + box.row * ROW) for box in diagram.boxes}
    width = round(max(x for x, _ in places.values()) + BOX_WIDTH + MARGIN)
    height = round(max(y for _, y in places.values()) + BOX_HEIGHT + MARGIN)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
        f"<title>{escape(diagram.text)}</title>",
        f"<style>{_STYLE}</style>",
        _TIP,
        f'<rect class="paper" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="10"/>',
        *(line for arrow in diagram.arrows for line in _arrow(arrow, places)),
        *(line for box in diagram.boxes for line in _box(box, *places[box.name])),
        *(_label(arrow, places) for arrow in diagram.arrows if arrow.label),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _box(box: Box, x: float, y: float) -> Iterator[str]:
    middle = x + BOX_WIDTH / 2
    yield f'<rect class="{box.kind}" x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="7"/>'
    first = y + BOX_HEIGHT / 2 + (-3 if box.more else 5)
    yield f'<text class="name" x="{middle:g}" y="{first:g}" text-anchor="middle">{escape(box.name)}</text>'
    if box.more:
        yield f'<text class="soft" x="{middle:g}" y="{first + LINE:g}" text-anchor="middle">{escape(box.more)}</text>'


def _ends(arrow: Arrow, places: Mapping[str, tuple[float, float]]) -> tuple[float, float, float, float]:
    """Give where an arrow leaves its first box and reaches the other: at sides that face each other."""
    (ax, ay), (bx, by) = places[arrow.start], places[arrow.end]
    if abs(bx - ax) >= BOX_WIDTH:
        is_right = bx > ax
        y1, y2 = ay + BOX_HEIGHT / 2 + arrow.shift, by + BOX_HEIGHT / 2 + arrow.shift
        return ax + BOX_WIDTH * is_right, y1, bx + BOX_WIDTH * (not is_right), y2
    is_below = by > ay
    shift = arrow.shift if is_below else -arrow.shift
    x1, x2 = ax + BOX_WIDTH / 2 + shift, bx + BOX_WIDTH / 2 + shift
    return x1, ay + BOX_HEIGHT * is_below, x2, by + BOX_HEIGHT * (not is_below)


def _arrow(arrow: Arrow, places: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    x1, y1, x2, y2 = _ends(arrow, places)
    kind = "way later" if arrow.later else "way"
    yield f'<path class="{kind}" d="M{x1:g} {y1:g}L{x2:g} {y2:g}" marker-end="url(#tip)"/>'


def _label(arrow: Arrow, places: Mapping[str, tuple[float, float]]) -> str:
    x1, y1, x2, y2 = _ends(arrow, places)
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    side = "middle"
    if x1 == x2 and arrow.shift:
        side, x = ("end", x - 8) if x1 < places[arrow.start][0] + BOX_WIDTH / 2 else ("start", x + 8)
    return f'<text class="soft label" x="{x:g}" y="{y + 4:g}" text-anchor="{side}">{escape(arrow.label)}</text>'


def main() -> None:
    """Write all pictures."""
    for name, diagram in DIAGRAMS.items():
        (PICTURES / f"{name}.svg").write_text(as_svg(diagram), encoding="utf-8")


if __name__ == "__main__":
    main()
