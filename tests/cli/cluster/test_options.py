"""Which cluster is meant: options, environment, context, in this order."""

from __future__ import annotations

import getpass
import io
import sys
from pathlib import Path
from typing import Any

import pytest

from firearrow.cli.cluster.contexts import Context, Contexts, save_contexts
from firearrow.cli.cluster.options import ClusterOptions, Target
from firearrow.errors import ConfigError
from firearrow.net.encryption import Tls
from firearrow.wire.signature import Credentials


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("NAMESRV_ADDR", "FIREARROW_ACCESS_KEY", "FIREARROW_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)


def servers(**options: Any) -> list[str]:
    return [*ClusterOptions(**options).target().name_servers]


def test_the_nearest_word_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert servers() == ["127.0.0.1:9876"]
    save_contexts(Contexts("used", {"used": Context("used:1;used:2"), "other": Context("other:1")}))
    assert servers() == ["used:1", "used:2"]
    monkeypatch.setenv("NAMESRV_ADDR", "env:1")
    assert servers() == ["env:1"]
    assert servers(context="other") == ["other:1"]
    assert servers(name_server="given:1", context="other") == ["given:1"]
    with pytest.raises(ConfigError, match="'x' is not an address"):
        servers(name_server="x")


def test_a_secret_goes_only_to_the_cluster_that_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s")
    save_contexts(Contexts("used", {"used": Context("used:1", "admin", "SECRET")}))
    assert ClusterOptions().target().credentials == Credentials("admin", "s")
    assert ClusterOptions(name_server="given:1").target().credentials is None
    monkeypatch.setenv("FIREARROW_ACCESS_KEY", "mine")
    with pytest.raises(ConfigError, match="FIREARROW_SECRET_KEY is not"):
        ClusterOptions(name_server="given:1").target()
    monkeypatch.setenv("FIREARROW_SECRET_KEY", "t")
    given = ClusterOptions(name_server="given:1").target()
    assert given.credentials == Credentials("mine", "t")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_user_and_encryption_need_no_context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(ConfigError, match="the secret of user 'nina' is missing: give --secret-file"):
        ClusterOptions(user="nina").target()
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(getpass, "getpass", lambda prompt: f"typed at {prompt}")
    assert ClusterOptions(user="nina").target().credentials == Credentials("nina", "typed at secret of nina: ")
    monkeypatch.setenv("FIREARROW_SECRET_KEY", "of the environment")
    save_contexts(Contexts("used", {"used": Context("used:1", "admin", "FIREARROW_SECRET_KEY")}))
    found = ClusterOptions(user="nina", tls=True, tls_any=True).target()
    assert found == Target(["used:1"], Credentials("nina", "of the environment"), Tls(verify=False))
    secret = tmp_path / "secret"
    secret.write_text("of the file\n")
    with pytest.raises(ConfigError, match="can be read by others"):
        ClusterOptions(user="nina", secret_file=str(secret)).target()
    secret.chmod(0o600)
    found = ClusterOptions(user="nina", secret_file=str(secret), tls=True, tls_ca="ca.pem").target()
    assert (found.credentials, found.tls) == (Credentials("nina", "of the file"), Tls("ca.pem"))
