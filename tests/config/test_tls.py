"""Where the keys on TLS come from, and what counts if they come from several places."""

from pathlib import Path

import pytest

from firearrow.config.tls import TlsKeys, with_tls
from firearrow.errors import ConfigError

JVM = {"JAVA_OPT": "-Xmx1g -Dtls.server.mode=enforcing -Dtls.server.certPath=/of/jvm"}


def test_what_is_said_of_a_jvm_counts_last() -> None:
    found = with_tls({"tls.server.certPath": "/of/pairs", "brokerName": "a"}, JVM)
    assert found == {"tls.server.mode": "enforcing", "tls.server.certPath": "/of/pairs", "brokerName": "a"}


def test_the_file_counts_first_but_for_whether_to_encrypt(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.certPath=/of/file\ntls.server.mode=disabled\nbrokerName=b\n")
    found = with_tls({"tls.config.file": str(file), "brokerName": "a"}, JVM)
    assert found["tls.server.certPath"] == "/of/file"
    assert (found["tls.server.mode"], found["brokerName"]) == ("enforcing", "a")
    assert "tls.config.file" not in found  # it has been read


def test_a_file_that_is_named_has_to_be_there() -> None:
    with pytest.raises(ConfigError, match="/nowhere"):
        with_tls({"tls.config.file": "/nowhere"}, {})
    usual = {"tls.config.file": "/etc/rocketmq/tls.properties"}
    assert with_tls(usual, {}) == {}


def test_nobody_encrypts_unless_there_is_a_certificate() -> None:
    keys = TlsKeys()
    assert (keys.tls_server_mode, keys.tls_server_cert_path) == ("permissive", "")
