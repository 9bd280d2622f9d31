"""`firearrow context`, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firearrow.cli.contexts import load_contexts
from firearrow.cli.main import main


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_contexts_are_added_used_listed_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["context", "add", "one", "-n", "a:1"]) == 0
    assert main(["context", "add", "two", "-n", "b:1;b:2", "--tls", "--tls-any"]) == 0
    assert load_contexts().use == "one"
    assert main(["context", "use", "two"]) == 0
    capsys.readouterr()
    assert main(["context", "list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "in use  name  name servers  access key  tls",
        "no      one   a:1           -           no",
        "yes     two   b:1;b:2       -           yes",
    ]
    assert main(["context", "remove", "two", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"inUse": False, "name": "one", "nameServers": "a:1", "accessKey": None, "tls": False}
    ]
    assert load_contexts().use is None


def test_what_is_not_there_is_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["context", "use", "x", "--json"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": "there is no context 'x'; there are: none"}
    assert err == "firearrow: there is no context 'x'; there are: none\n"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--access-key k", "an --access-key needs one of --secret-env and --secret-file"),
        ("--secret-env S", "a secret is that of an --access-key"),
        ("--tls-any", "how to encrypt can only be said with --tls"),
        ("--json --csv", "argument --csv: not allowed with argument --json"),
    ],
)
def test_options_that_do_not_fit_are_refused_and_nothing_is_kept(
    options: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["context", "add", "one", "-n", "a:1", *options.split()])
    assert capsys.readouterr().err.endswith(f"firearrow context add: error: {reason}\n")
    assert load_contexts().contexts == {}


def test_files_are_read_before_they_are_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = str(tmp_path / "gone")
    assert main(["context", "add", "x", "-n", "a:1", "--tls", "--tls-ca", gone]) == 1
    assert f"TLS authorities {gone}" in capsys.readouterr().err
    secret = ["--access-key", "k", "--secret-file", gone]
    assert main(["context", "add", "x", "-n", "a:1", *secret]) == 1
    assert f"{gone}: No such file" in capsys.readouterr().err
