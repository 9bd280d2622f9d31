"""One table, three forms, and colours only where they are wanted."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from firearrow.cli.output.listing import Output
from firearrow.cli.output.reports import Table
from firearrow.cli.output.screen import as_list
from firearrow.cli.parameters import WrongOptions
from tests.cli.shell import Terminal

TABLE = Table(
    "Lag",
    ("group", "lag", "lagSeconds", "storedAt", "isOnline"),
    [["billing", 1200, 75, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), True], ['say "x", \x1b', 0, None, None, False]],
)


def test_people_get_columns_with_units() -> None:
    assert as_list(TABLE).splitlines() == [
        "group            lag    lag time  stored at             is online",
        "billing        1,200  1 min 15 s  2026-01-02 03:04:05Z  yes",
        'say "x", \\x1b      0           -  -                     no',
    ]


def test_scripts_get_values_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    Output(json=True).show(TABLE)
    first, second = json.loads(capsys.readouterr().out)
    assert first == {
        "group": "billing",
        "lag": 1200,
        "lagSeconds": 75,
        "storedAt": "2026-01-02T03:04:05+00:00",
        "isOnline": True,
    }
    assert second["group"] == 'say "x", \x1b'
    Output(csv=True).show(TABLE)
    assert capsys.readouterr().out.splitlines() == [
        "group,lag,lagSeconds,storedAt,isOnline",
        "billing,1200,75,2026-01-02T03:04:05+00:00,true",
        '"say ""x"", \x1b",0,,,false',
    ]


def test_nothing_is_said_in_each_form(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = Table("Lag", ("group", "lag"), [], note="No group consumes.")
    for output in (Output(), Output(json=True), Output(csv=True)):
        output.show(nothing)
    assert capsys.readouterr().out == "group  lag\n(none)\nNo group consumes.\n[]\ngroup,lag\n"


def test_rows_without_end_come_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    for output in (Output(), Output(json=True), Output(csv=True)):
        output.show_row(("a", "b"), [1, None], "a line", first=True)
        output.show_row(("a", "b"), [2, "x"], "another", first=False)
    assert capsys.readouterr().out.splitlines() == [
        "a line", "another", '{"a": 1, "b": null}', '{"a": 2, "b": "x"}', "a,b", "1,", "2,x",
    ]  # fmt: skip


def test_one_form_at_a_time() -> None:
    with pytest.raises(WrongOptions, match="--table: not allowed with argument --csv"):
        Output(csv=True, table=True).check()
    with pytest.raises(WrongOptions, match="--format: not allowed with argument --output"):
        Output(output="json", format="{a}").check()


MESSAGES = Table(
    "Messages",
    ("messageId", "keys", "body", "bodyIsBase64", "properties"),
    [["A", None, '{"id": [1, "é", null]}', False, {"region": "eu"}], ["B", "k", "/wA=", True, {}]],
)


@pytest.mark.parametrize(
    ("output", "printed"),
    [
        (Output(output="body"), b'{"id": [1, "\xc3\xa9", null]}\n\xff\x00\n'),
        (Output(format="{id}[{key}]\\t{properties.region}{{"), b"A[]\teu{{\nB[k]\t{{\n"),
        (Output(format="{properties} {bodyIsBase64}"), b'{"region": "eu"} false\n{} true\n'),
        (Output(output="jsonl"), None),
        (Output(output="csv"), b"messageId,keys,body,bodyIsBase64,properties\n"),
    ],
)
def test_messages_have_more_forms(output: Output, printed: bytes | None, capfdbinary: Any) -> None:
    output.show(MESSAGES)
    found = capfdbinary.readouterr().out
    if printed is None:
        first, second = map(json.loads, found.splitlines())
        assert (first["properties"], second["properties"]) == ({"region": "eu"}, {})
    else:
        assert found.startswith(printed)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (Output(output="body"), "these rows have no bodies"),
        (Output(format="{lga}"), "no column {lga}; there are group"),
    ],
)
def test_a_form_that_a_table_does_not_have_is_refused(output: Output, reason: str) -> None:
    with pytest.raises(WrongOptions, match=reason):
        output.show(TABLE)


def test_a_narrow_terminal_gets_the_first_columns_and_hears_of_the_rest() -> None:
    lines = as_list(TABLE, 40).splitlines()
    assert lines[0] == "group            lag    lag time"
    assert lines[3:] == ["(in --json and in a wider window: stored", "at, is online)"]


def test_a_body_is_readable_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [*MESSAGES.rows, ["C", None, "no JSON \x1b[2J", False, {}], ["D", None, "[no JSON", False, {}]]
    for no_color, value in (("1", "    1,"), ("", "    \x1b[36m1\x1b[0m,")):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setenv("NO_COLOR", no_color)
        Output(output="body").show(MESSAGES.changed(rows=rows))
        lines = terminal.getvalue().splitlines()
        assert value in lines
        assert lines[-3:] == ["/wA=", "no JSON \\x1b[2J", "[no JSON"]


@pytest.mark.parametrize(("no_color", "painted"), [("", True), ("1", False)])
def test_only_a_terminal_is_coloured_and_only_if_it_wants_to_be(
    no_color: str, painted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("COLUMNS", "100")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    Output().show(Table("", ("check", "state"), [["disk", "critical"], ["lag", "ok"]]))
    head, critical, fine = terminal.getvalue().splitlines()
    assert fine == "lag    ok"
    assert (head, critical) == (
        ("\x1b[1mcheck  state\x1b[0m", "\x1b[31mdisk   critical\x1b[0m")
        if painted
        else ("check  state", "disk   critical")
    )
