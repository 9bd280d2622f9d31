"""Java's properties format: what `java.util.Properties` makes of the same text."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.config.properties import dumps, load, loads
from firearrow.errors import ConfigError
from tests.cputime import cpu_seconds

# Text on the left, what `java.util.Properties` of Java 17 read from it on the right.
AS_JAVA_READS = [
    ("a=1", {"a": "1"}),
    ("  a \t=\f 1 ", {"a": "1 "}),
    ("a:1\nb 2\nc", {"a": "1", "b": "2", "c": ""}),
    ("a = : 1", {"a": ": 1"}),
    ("a  :=1", {"a": "=1"}),
    ("# note\n  ! note\n\na=1", {"a": "1"}),
    ("# goes on? \\\na=1", {"a": "1"}),
    ("a=1\\\n   2\\\r\n\t3\rb=4", {"a": "123", "b": "4"}),
    ("a=1\\\n# part of a", {"a": "1# part of a"}),
    ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
    ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
    ("a=1\\", {"a": "1"}),
    ("\\\n# note\na=1", {"a": "1"}),
    ("a=1\n\\", {"a": "1", "": ""}),
    ("a\\ b\\=c\\:d=e", {"a b=c:d": "e"}),
    ("a=\\u4F60\\n\\t\\z", {"a": "你\n\tz"}),
    ("a=\\uD83D\\uDE00", {"a": "\N{GRINNING FACE}"}),
    ("=1", {"": "1"}),
    ("a=1\na=2", {"a": "2"}),
    ("storePathRootDir=C:\\\\store", {"storePathRootDir": "C:\\store"}),
    ("a=x # no comment", {"a": "x # no comment"}),
    ("a=\N{NO-BREAK SPACE}1", {"a": "\N{NO-BREAK SPACE}1"}),
    ("a=1\N{NEXT LINE}2", {"a": "1\N{NEXT LINE}2"}),
]


@pytest.mark.parametrize(("text", "pairs"), AS_JAVA_READS)
def test_reads_what_java_reads(text: str, pairs: dict[str, str]) -> None:
    assert loads(text) == pairs


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u12G4", "a\\u=1"])
def test_refuses_a_broken_escape(text: str) -> None:
    with pytest.raises(ConfigError, match="four hexadecimal digits"):
        loads(text)


def test_writes_what_java_needs() -> None:
    pairs = {"a b": " x=1 ", "path": "C:\\store", "name": "你", "face": "\N{GRINNING FACE}"}
    assert dumps(pairs) == ("a\\ b=\\ x=1 \npath=C:\\\\store\nname=\\u4F60\nface=\\uD83D\\uDE00\n")


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.text()))
def test_what_was_written_is_read_back(pairs: dict[str, str]) -> None:
    assert loads(dumps(pairs)) == pairs


@given(st.text())
def test_any_text_gives_pairs_or_a_config_error(text: str) -> None:
    try:
        pairs = loads(text)
    except ConfigError:
        assert "\\u" in text
    else:
        assert loads(dumps(pairs)) == pairs


def test_reads_utf8_and_latin1_files(tmp_path: Path) -> None:
    utf8, latin1 = tmp_path / "utf8.conf", tmp_path / "latin1.conf"
    utf8.write_bytes("a=你".encode())
    latin1.write_bytes("a=é".encode("latin-1"))
    assert (load(utf8), load(latin1)) == ({"a": "你"}, {"a": "é"})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*gone\.conf: No such file"):
        load(tmp_path / "gone.conf")


@pytest.mark.parametrize("piece", ["\\\n", "\\\\", "\\\\x", "\n", " \\\n", "a\\\n", "=", "\\u0041"])
def test_reading_takes_time_in_proportion(piece: str) -> None:
    """A quarter of a MiB that anybody may send; by the square it would take minutes."""
    text = piece * (256 * 1024 // len(piece)) + "x"
    assert cpu_seconds(lambda: loads(text), 2) < 2
