"""A page is whole, loads nothing, runs nothing and shows every text as text."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from firearrow.cli.output.page import as_html
from firearrow.cli.output.reports import Bars, Lines, Report, Table, visible

VOID = {"meta", "rect", "line", "polyline"}
HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(1)>\"' & \x1b[31m"


class Reading(HTMLParser):
    """What a browser would find: elements, attributes, texts; and whether all is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: dict[str, set[str]] = {}
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(report: Report) -> Reading:
    reading = Reading()
    reading.feed(as_html(report))
    reading.close()
    assert reading.open == []
    return reading


def tables(text: str) -> list[Table]:
    times = [datetime(2026, 11, 21, hour, tzinfo=UTC) for hour in (1, 2, 3)]
    return [
        Table(text, [text, "lag"], [[text, 1], [text * 20, 3]], text, Bars([text], "lag")),
        Table("L", ["time", "p99", "who"], [[time, 5, text] for time in times], text,
              Lines("time", "p99", "who"), more=True),
        Table(text, ["a"], []),
    ]  # fmt: skip


PLAIN = read(Report("R", {"source": "s"}, tables("plain")))


@given(st.text(min_size=1) | st.just(HOSTILE))
def test_no_text_becomes_anything_but_text(text: str) -> None:
    """The elements and attributes are those of a page whose texts are harmless."""
    found = read(Report(text, {"source": text}, tables(text)))
    assert found.tags <= PLAIN.tags
    assert set(found.attributes) <= set(PLAIN.attributes)
    if not any(character.isspace() or character in "&;" for character in visible(text)):
        assert visible(text)[:300] in "".join(found.texts)


def test_nothing_is_loaded_and_no_script_is_allowed() -> None:
    assert not PLAIN.tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert not set(PLAIN.attributes) & {"src", "href", "srcset", "style"}
    assert not [name for name in PLAIN.attributes if name.startswith("on")]
    html = as_html(Report("R", {}, []))
    assert "default-src 'none'" in html
    assert not re.search(r"url\(|@import", html)


def test_both_colour_schemes_name_the_same_colours() -> None:
    lmq, dark = re.findall(r":root \{([^}]*)\}", as_html(Report("R", {}, [])))
    names = re.compile(r"--\w+(?=:)")
    assert set(names.findall(lmq)) == set(names.findall(dark))


def test_there_is_a_chart_for_what_can_be_drawn() -> None:
    assert "svg" in PLAIN.tags
    assert "polyline" in PLAIN.tags
    one = Table("L", ["time", "p99"], [[datetime.now(UTC), 5]], "", Lines("time", "p99"))
    none = Table("B", ["a", "lag"], [["x", 0]], "", Bars(["a"], "lag"))
    assert "svg" not in read(Report("R", {}, [one, none])).tags
