"""The file of contexts: what is read, what is written, and where a secret may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from firearrow.cli.contexts import Context, Contexts, as_toml, load_contexts, path_of_contexts, save_contexts
from firearrow.cli.failures import NothingFound
from firearrow.errors import ConfigError
from firearrow.net.access import Tls
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
