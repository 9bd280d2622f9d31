"""The documentation has every command."""

from __future__ import annotations

from pathlib import Path

from firearrow.cli.mqadmin.table import ROWS, Option

DOCS = Path(__file__).parent.parent.parent.parent / "docs"


def test_every_command_is_documented() -> None:
    text = (DOCS / "mqadmin.md").read_text(encoding="utf-8")
    assert [row.name for row in ROWS if f"`{row.name}`" not in text] == []


def test_options_are_read_from_their_text() -> None:
    [kinds] = [row for row in ROWS if row.name == "clusterRT"]
    assert Option("p", "print log", True) in kinds.options()
    [user] = [row for row in ROWS if row.name == "updateUser"]
    assert {option.long: option.group for option in user.options() if option.group} == {
        "clusterName": "*", "brokerAddr": "*", "password": "+", "userType": "+", "userStatus": "+",
    }  # fmt: skip
    assert Option("u", "username", True, needed=True) in user.options()


def test_no_command_has_an_option_twice() -> None:
    for row in ROWS:
        shorts = [option.short for option in row.options() if option.short]
        longs = [option.long for option in row.options()]
        assert len(set(shorts)) == len(shorts), row.name
        assert len(set(longs)) == len(longs), row.name
