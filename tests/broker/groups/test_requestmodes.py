"""How groups are to consume topics outlives the broker, in RocketMQ's own file."""

from pathlib import Path

import pytest

from firearrow.broker.groups.requestmodes import FILE_NAME, RequestModes
from firearrow.errors import ConfigError, DiskFull
from firearrow.wire.client_bodies import RequestMode

FILE = """{
\t"messageRequestModeMap":{
\t\t"T":{
\t\t\t"G":{
\t\t\t\t"consumerGroup":"G",
\t\t\t\t"mode":"POP",
\t\t\t\t"popShareQueueNum":3,
\t\t\t\t"topic":"T"
\t\t\t}
\t\t}
\t}
}"""
POP_OF_G = RequestMode("G", "POP", 3, "T")


def modes(root: Path) -> RequestModes:
    found = RequestModes(root, 0)
    found.load()
    return found


def test_the_file_is_that_of_the_original(tmp_path: Path) -> None:
    modes(tmp_path).put("T", "G", POP_OF_G)
    assert (tmp_path / "config" / FILE_NAME).read_text() == FILE
    assert modes(tmp_path).get("T", "G") == POP_OF_G


def test_nothing_is_known_of_others(tmp_path: Path) -> None:
    found = modes(tmp_path)
    found.put("T", "G", POP_OF_G)
    found.put("T", "H", RequestMode("H", "PULL", 0, "T"))
    assert (found.get("T", "G"), found.get("U", "G"), found.get("T", "I")) == (POP_OF_G, None, None)


def test_what_cannot_be_written_is_not_said(tmp_path: Path) -> None:
    found = modes(tmp_path)
    (tmp_path / "config").write_text("a file in the place of the directory")
    with pytest.raises(DiskFull):
        found.put("T", "G", POP_OF_G)
    assert found.get("T", "G") is None


def test_what_is_no_mode_is_named(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / FILE_NAME).write_text(FILE.replace("POP", "PUSH"))
    with pytest.raises(ConfigError, match=FILE_NAME):
        modes(tmp_path)
