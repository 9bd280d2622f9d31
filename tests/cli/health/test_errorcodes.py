"""`firearrow errors`, as it is typed."""

import json

import pytest

from firearrow.cli.main import main
from firearrow.wire.codes import ResponseCode

SEVENTEEN = """\
17 TOPIC_NOT_EXIST (raised as TopicNotFound)
  There is no such topic on this broker, or no route to it on the name server.
  -> Check its name and the namespace, create it, and wait some seconds until clients have the new
     route.
"""


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.parametrize("code", ["17", "TOPIC_NOT_EXIST", "topic-not-exist"])
def test_a_code_is_found_by_number_and_by_name(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["errors", code]) == 0
    assert capsys.readouterr().out == SEVENTEEN


def test_without_a_code_all_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["errors", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["code"] for one in found] == list(ResponseCode)
    assert set(found[0]) == {"code", "name", "raisedAs", "cause", "cure"}
    assert main(["errors"]) == 0
    text = capsys.readouterr().out
    assert text.count("(raised as") == len(ResponseCode)
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("999", "there is no response code 999"),
        ("-1", "there is no response code '-1'"),
        ("TOPIC_NOT_EXISTS", "'TOPIC_NOT_EXISTS'; did you mean TOPIC_NOT_EXIST?"),
        ("2015", "2015 is of RocketMQ's controller on JRaft: the remark explains it"),
    ],
)
def test_what_is_no_code_is_told(code: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["errors", "--", code]) == 3
    assert capsys.readouterr().err.endswith(f"{says}\n")
