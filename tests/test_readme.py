"""The README is true: its commands run, its badges agree with pyproject.toml, its picture has the programs' output."""

from __future__ import annotations

import re
import shlex
import tomllib
from xml.etree import ElementTree as ET

import pytest

from firearrow.cli.main import main
from firearrow.testing import EmbeddedCluster
from tests.pages import README, ROOT
from tools.recording import PICTURE, record
from tools.terminalsvg import Pane, as_svg

pytestmark = pytest.mark.usefixtures("patience")

TEXT = "{http://www.w3.org/2000/svg}text"
VARYING = re.compile(r"\S+/firearrow-\w+/|\b[0-9A-F]{32}\b|[\d.,:]*\d")


def test_commands_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(r"^    firearrow (.*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) == 3
    with EmbeddedCluster() as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.name_server)
        for command in commands:
            assert main(shlex.split(command)) == 0
    printed = capsys.readouterr().out
    assert "k-1  hello\n" in printed
    assert "1 broker, 1 topic" in printed


def test_badges_agree_with_the_project() -> None:
    badges = dict(re.findall(r"img\.shields\.io/badge/(\w+)-(.*)-\w+\)", README.read_text(encoding="utf-8")))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = re.findall(r"Python :: (3\.\d+)\b", " ".join(project["classifiers"]))
    assert badges == {
        "tests": "make_test",
        "Python": f"{versions[0]}--{versions[-1]}",
        "licence": project["license"].replace("-", "_"),
        "status": "alpha,_not_on_PyPI_yet",
    }
    assert "Development Status :: 3 - Alpha" in project["classifiers"]


@pytest.mark.slow
def test_the_picture_has_the_output_of_programs() -> None:
    """Ports, ids, times and the order of queues differ; all else is as in the file."""
    assert steady(as_svg(record())) == steady(PICTURE.read_text(encoding="utf-8"))


def steady(picture: str) -> list[str]:
    texts = ("".join(text.itertext()) for text in ET.fromstring(picture).iter(TEXT))
    return sorted(" ".join(VARYING.sub("#", text).split()) for text in texts)


def drawn(*printed: str, columns: int = 10, lines: int = 3) -> list[str]:
    pane = Pane("shell", columns, lines)
    for at, text in enumerate(printed):
        pane.feed(text, float(at))
    return [line.text for line in pane.content]


def test_a_pane_wraps_lines_and_knows_styles() -> None:
    assert drawn("$ ", "\x1b[1mtwelve\x1b[0m <&> letters\r\n") == ["$ twelve <", "&> letters", ""]
    pane = Pane("shell", 20, 2)
    pane.type("ls", 1.0, 0.5)
    pane.feed("ls\r\n\x1b[1mname & size\x1b[0m\r\n", 2.0)
    picture = as_svg([pane])
    assert '<tspan style="font-weight:700">name &amp; size</tspan>' in picture
    assert [text.strip() for text in steady(picture)] == ["ls", "name & size", "shell"]
    assert "prefers-reduced-motion" in picture


@pytest.mark.parametrize("printed", ["\x1b[2J", "50 %\r51 %\r\n", "1\r\n2\r\n3\r\n4\r\n"])
def test_a_pane_refuses_what_it_cannot_show(printed: str) -> None:
    with pytest.raises(ValueError, match=r"a terminal that only prints|needs more than 3 lines"):
        drawn(printed)
