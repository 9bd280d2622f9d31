"""The files that keep a broker's number."""

from __future__ import annotations

from pathlib import Path

import pytest

from firearrow.broker.control.controllers import BrokerNumber, NumberFile, parse
from firearrow.errors import ConfigError

APPLIED = BrokerNumber("DefaultCluster", "broker-a", 2, "10.0.0.1:10911;1795000000000")
OWN = "DefaultCluster", "broker-a"


def test_the_examples_of_the_module() -> None:
    assert APPLIED.encode() == b"DefaultCluster#broker-a#2#10.0.0.1:10911;1795000000000"
    assert parse(APPLIED.encode()) == APPLIED
    assert parse(b"DefaultCluster#broker-a#2") == APPLIED._replace(code="")


def test_what_is_applied_for_is_granted_or_given_up(tmp_path: Path) -> None:
    file = NumberFile(tmp_path / "s" / "brokerIdentity")
    assert file.load(*OWN) is None
    file.apply(APPLIED)
    assert file.load(*OWN) == APPLIED
    file.give_up()
    assert file.load(*OWN) is None
    file.apply(APPLIED)
    file.grant(APPLIED)
    assert NumberFile(tmp_path / "s" / "brokerIdentity").load(*OWN) == APPLIED._replace(code="")
    assert [it.name for it in (tmp_path / "s").iterdir()] == ["brokerIdentity"]


@pytest.mark.parametrize("name", ["brokerIdentity", "brokerIdentity-temp"])
@pytest.mark.parametrize("own", [("Other", "broker-a"), ("DefaultCluster", "broker-b")])
def test_a_store_of_another_broker(tmp_path: Path, name: str, own: tuple[str, str]) -> None:
    (tmp_path / name).write_bytes(APPLIED.encode())
    with pytest.raises(ConfigError, match=r"brokerIdentity.* belongs to broker broker-a in cluster Def"):
        NumberFile(tmp_path / "brokerIdentity").load(*own)


@pytest.mark.parametrize("content", [b"a#b", b"a#b#c", b"a#b#1#c#d"])
def test_a_file_that_says_something_else(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "brokerIdentity").write_bytes(content)
    with pytest.raises(ConfigError, match="can't be read"):
        NumberFile(tmp_path / "brokerIdentity").load(*OWN)
