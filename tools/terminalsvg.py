"""Terminals as an animated SVG: output appears when a program printed it, and commands letter by letter.

The picture has a background of its own, so it is legible on light and dark pages. Where nothing may move
(``prefers-reduced-motion``), and where CSS has no effect, it shows the end of the recording.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

FONT: Final = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
CHAR_WIDTH: Final = 8.4  # of a font of 14 units
LINE_HEIGHT: Final = 19
MARGIN: Final = 14
TITLE_HEIGHT: Final = 26
GAP: Final = 10
END_SECONDS: Final = 8.0  # the last picture stays, before all begins again
_COLOURS: Final = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "36": "#79c0ff"}
_STYLES: Final = {"1": "font-weight:700", "2": "fill:#9198a1"} | {code: f"fill:{it}" for code, it in _COLOURS.items()}
_TOKEN: Final = re.compile(r"\x1b\[([\d;]*)m|\r\n|([^\x1b\r\n])")
_STYLE: Final = f"""
text{{font:14px {FONT};fill:#e6edf3;white-space:pre}}
.screen{{fill:#0d1117;stroke:#3d444d}}
.title{{fill:#9198a1;font-size:12px}}
.cover{{fill:#0d1117;opacity:0;transform-box:fill-box;transform-origin:100% 0}}
""".strip()


@dataclass(slots=True)
class Line:
    """A line of a terminal: characters with their styles, and when they appeared."""

    appeared: float
    characters: list[tuple[str, str]] = field(default_factory=list)
    typed: tuple[int, float, float] | None = None
    """Of a command: the column at which it begins, when its typing began, and how long it took."""

    @property
    def text(self) -> str:
        """Return the line without styles."""
        return "".join(character for character, _ in self.characters).rstrip()


class Pane:
    """A terminal that never scrolls: lines beyond its height are an error."""

    def __init__(self, title: str, columns: int, lines: int) -> None:
        self.title = title
        self.columns = columns
        self.lines = lines
        self.content = [Line(0.0)]
        self._style = ""

    def type(self, command: str, start: float, seconds: float) -> None:
        """Note that the command that will be echoed is typed from ``start`` on, for these seconds."""
        line = self.content[-1]
        line.typed = (len(line.characters), start, seconds)
        if len(line.characters) + len(command) >= self.columns:
            raise ValueError(f"the command is wider than the terminal: {command}")

    def feed(self, text: str, now: float) -> None:
        """Take output that appeared at this time."""
        at = 0
        for token in _TOKEN.finditer(text):
            if token.start() != at:
                break
            at = token.end()
            if token[2]:
                self._put(token[2], now)
            elif token[1] is None:
                self.content.append(Line(now))
            else:
                self._style = _STYLES.get(token[1], "")
        if at != len(text):
            raise ValueError(f"a terminal that only prints lines can't show {text[at : at + 20]!r}")

    def _put(self, character: str, now: float) -> None:
        if len(self.content[-1].characters) == self.columns:
            self.content.append(Line(now))
        if len(self.content) > self.lines:
            raise ValueError(f"{self.title!r} needs more than {self.lines} lines")
        line = self.content[-1]
        if not line.characters:
            line.appeared = now
        line.characters.append((character, self._style))


def as_svg(panes: Sequence[Pane]) -> str:
    """Draw terminals one below the other."""
    width = round(panes[0].columns * CHAR_WIDTH + 2 * MARGIN)
    seconds = END_SECONDS + max(line.appeared for pane in panes for line in pane.content)
    rules: list[str] = []
    parts: list[str] = []
    top = 0.0
    for number, pane in enumerate(panes):
        parts += _pane(pane, number, top, width, rules, seconds)
        top += _height(pane) + GAP
    style = "\n".join([_STYLE, "@media (prefers-reduced-motion:no-preference){", *rules, "}"])
    size = f'viewBox="-1 -1 {width + 2} {top - GAP + 2:g}" width="{width + 2}" height="{top - GAP + 2:g}"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<style>\n{style}\n</style>\n{body}\n</svg>\n'


def _height(pane: Pane) -> float:
    return TITLE_HEIGHT + pane.lines * LINE_HEIGHT + MARGIN


def _pane(pane: Pane, number: int, top: float, width: int, rules: list[str], seconds: float) -> Iterator[str]:
    height = _height(pane)
    yield f'<svg y="{top:g}" width="{width}" height="{height:g}">'
    yield f'<rect class="screen" x=".5" y=".5" width="{width - 1}" height="{height - 1:g}" rx="6"/>'
    yield f'<text class="title" x="{MARGIN}" y="17">{escape(pane.title)}</text>'
    for at, line in enumerate(pane.content):
        if line.text:
            name = f"l{number}-{at}"
            yield from _line(line, name, TITLE_HEIGHT + (at + 1) * LINE_HEIGHT - 5)
            rules += _rules(line, name, seconds)
    yield "</svg>"


def _line(line: Line, name: str, baseline: float) -> Iterator[str]:
    length = len(line.text)
    spans = "".join(_spans(line.characters[:length]))
    fixed = f'textLength="{length * CHAR_WIDTH:g}" lengthAdjust="spacingAndGlyphs"'
    yield f'<text id="{name}" x="{MARGIN}" y="{baseline:g}" {fixed} xml:space="preserve">{spans}</text>'
    if line.typed:
        column = line.typed[0]
        left, columns = MARGIN + column * CHAR_WIDTH, length - column
        box = f'x="{left:g}" y="{baseline - LINE_HEIGHT + 5:g}" width="{columns * CHAR_WIDTH:g}" height="{LINE_HEIGHT}"'
        yield f'<rect id="{name}c" class="cover" {box}/>'


def _spans(characters: Sequence[tuple[str, str]]) -> Iterator[str]:
    at = 0
    while at < len(characters):
        style = characters[at][1]
        end = at
        while end < len(characters) and characters[end][1] == style:
            end += 1
        text = escape("".join(character for character, _ in characters[at:end]), quote=False)
        yield f'<tspan style="{style}">{text}</tspan>' if style else text
        at = end


def _rules(line: Line, name: str, seconds: float) -> Iterator[str]:
    """Animations of a line: it appears, and the cover of a command shrinks letter by letter."""
    appears = 100 * line.appeared / seconds
    if appears > 0:
        yield f"#{name}{{animation:{name} {seconds:.2f}s step-end infinite}}"
        yield f"@keyframes {name}{{0%{{opacity:0}}{appears:.2f}%,to{{opacity:1}}}}"
    if line.typed:
        column, start, took = line.typed
        letters = len(line.text) - column
        begins, ends = 100 * start / seconds, 100 * (start + took) / seconds
        yield f"#{name}c{{animation:{name}c {seconds:.2f}s linear infinite}}"
        typing = f"animation-timing-function:steps({letters})"
        yield (
            f"@keyframes {name}c{{0%,{begins:.2f}%{{opacity:1;transform:none;{typing}}}"
            f"{ends:.2f}%{{opacity:1;transform:scaleX(0)}}to{{opacity:0;transform:scaleX(0)}}}}"
        )
