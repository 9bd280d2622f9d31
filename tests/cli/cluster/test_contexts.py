"""The file of contexts: what is read, what is written, and where a secret may be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firearrow.cli.cluster.contexts import Context, Contexts, as_toml, load_contexts, path_of_contexts, save_contexts
from firearrow.cli.failures import NothingFound
from firearrow.cli.main import main
from firearrow.errors import ConfigError
from firearrow.net.encryption import Tls
from firearrow.wire.signature import Credentials

ALL = Contexts(
    'a "b" ü',
    {'a "b" ü': Context("h:1;h:2"), "secured": Context("h:3", "admin", "SECRET", None, True, "/ca", None, None, False)},
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_what_is_saved_is_loaded_and_only_its_owner_may_read_it(home: Path) -> None:
    assert load_contexts() == Contexts()
    save_contexts(ALL)
    assert load_contexts() == ALL
    assert path_of_contexts() == home / "firearrow" / "contexts.toml"
    assert path_of_contexts().stat().st_mode & 0o777 == 0o600
    assert [path.name for path in path_of_contexts().parent.iterdir()] == ["contexts.toml"]


def test_the_file_is_one_to_edit() -> None:
    assert as_toml(ALL).splitlines() == [
        'use = "a \\"b\\" ü"',
        "",
        '[contexts."a \\"b\\" ü"]',
        'name-servers = "h:1;h:2"',
        "",
        '[contexts."secured"]',
        'name-servers = "h:3"',
        'access-key = "admin"',
        'secret-env = "SECRET"',
        "tls = true",
        'tls-ca = "/ca"',
        "tls-verify = false",
    ]


@pytest.mark.parametrize("text", ["use = 3", "[contexts.a]", "x", "[contexts]\na = 3"])
def test_a_file_that_is_wrong_is_named(text: str) -> None:
    path_of_contexts().parent.mkdir()
    path_of_contexts().write_text(text)
    with pytest.raises(ConfigError, match=r"contexts\.toml: "):
        load_contexts()


def test_a_context_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(NothingFound, match="there is no context 'x'; there are: a \"b\" ü, secured"):
        ALL.named("x")
    assert Contexts().in_use() is None


def test_a_secret_is_in_the_environment_or_in_a_file_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secured = ALL.named("secured")
    with pytest.raises(ConfigError, match="access key 'admin': SECRET is not set"):
        secured.credentials()
    monkeypatch.setenv("SECRET", "12345678")
    assert secured.credentials() == Credentials("admin", "12345678")
    assert ALL.contexts['a "b" ü'].credentials() is None
    file = tmp_path / "secret"
    file.write_text("87654321\n")
    file.chmod(0o640)
    by_file = Context("h:1", "admin", secret_file=str(file))
    with pytest.raises(ConfigError, match=f"{file} can be read by others: chmod 600"):
        by_file.credentials()
    file.chmod(0o600)
    assert by_file.credentials() == Credentials("admin", "87654321")


def test_encryption_is_as_it_says() -> None:
    assert ALL.named("secured").encryption() == Tls("/ca", None, None, verify=False)
    assert ALL.contexts['a "b" ü'].encryption() is None


# --- `firearrow context`, as it is typed ---


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
