"""TLS at the gRPC port, as RocketMQ 5's clients begin it: by default, with certificates, and where it fails."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from firearrow.net import tls
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from firearrow.wire.grpc import framed
from tests.loglines import told
from tests.net.certificates import make_certificate
from tests.proxy.rpcs import SERVICE, Rpcs, send_request
from tests.wire import http2frames as h2
from tests.wire.http2frames import HELLO

SECONDS_MAX = 20
PROBE = HELLO + h2.headers(1, h2.block_of([*h2.CALL[:2], (b":path", f"{SERVICE}/Heartbeat".encode()), *h2.CALL[3:]]))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"), "proxy")


@contextmanager
def serving(**keys: Any) -> Iterator[BlockingCluster]:
    with EmbeddedCluster(grpc=True, config=keys) as cluster:
        cluster.create_topic("t")
        yield cluster


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def any_certificate() -> ssl.SSLContext:
    """Return a context that trusts everybody, as Java's, Go's and C#'s clients do by default."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def shaken(port: int, context: ssl.SSLContext) -> tuple[str | None, bytes, bytes]:
    """Shake hands and make a call; return the protocol of ALPN, the server's certificate, and how the answer begins."""
    with socket.create_connection(("127.0.0.1", port), SECONDS_MAX) as plain, context.wrap_socket(plain) as talking:
        talking.sendall(PROBE + h2.data(1, framed(b""), ends=True))
        return talking.selected_alpn_protocol(), talking.getpeercert(binary_form=True) or b"", talking.recv(9)


def test_by_default_clients_with_and_without_tls_share_the_port(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as cluster:
        address = cluster.brokers[0].grpc
        assert not told(caplog)
        context = any_certificate()
        context.set_alpn_protocols(["h2"])
        protocol, shown, answer = shaken(port_of(address), context)
        assert (protocol, answer[3]) == ("h2", 4)
        assert shaken(port_of(address), any_certificate())[:2] == (None, shown)
        others = any_certificate()
        others.set_alpn_protocols(["http/1.1"])
        assert shaken(port_of(address), others)[0] is None
        with Rpcs(address) as rpcs:
            assert rpcs.SendMessage(send_request("t", b"plain")).status.message == "OK"
        with pytest.raises((ssl.SSLError, OSError)):
            shaken(cluster.brokers[0].port, any_certificate())
    made, refused = told(caplog)
    assert (made["event"], made["key"]) == (
        "certificate is made for this run only: clients can't verify it",
        "tlsTestModeEnable",
    )
    assert refused["reason"] == "it begins TLS, and there is no certificate (tls.server.certPath)"


def test_the_proxys_own_certificate_is_for_the_grpc_port(certificate: Path) -> None:
    with serving(tlsCertPath=str(certificate)) as cluster:
        with Rpcs(cluster.brokers[0].grpc, trust=certificate.with_suffix(".crt").read_bytes()) as rpcs:
            assert rpcs.SendMessage(send_request("t", b"encrypted")).status.message == "OK"
        with pytest.raises((ssl.SSLError, OSError)):
            shaken(cluster.brokers[0].port, any_certificate())


def test_the_brokers_certificate_is_for_both_ports(certificate: Path) -> None:
    keys = {"tls.server.certPath": str(certificate), "tls.server.mode": "permissive"}
    with serving(**keys) as cluster:
        der = ssl.PEM_cert_to_DER_cert(certificate.with_suffix(".crt").read_text())
        for port in (cluster.brokers[0].port, port_of(cluster.brokers[0].grpc)):
            assert shaken(port, any_certificate())[1] == der


@pytest.mark.parametrize("keys", [{"tls.server.mode": "disabled"}, {"tlsTestModeEnable": "false"}])
def test_tls_can_be_off(keys: dict[str, str]) -> None:
    with serving(**keys) as cluster:
        with pytest.raises((ssl.SSLError, OSError)):
            shaken(port_of(cluster.brokers[0].grpc), any_certificate())
        with Rpcs(cluster.brokers[0].grpc) as rpcs:
            assert rpcs.SendMessage(send_request("t", b"plain")).status.message == "OK"


def test_a_changed_certificate_is_shown_to_the_next_client(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_SECONDS", 0.0)
    shown, other = tmp_path / "shown.pem", make_certificate(tmp_path, "other")
    shown.write_text(certificate.read_text())
    with serving(tlsCertPath=str(shown)) as cluster:
        address = cluster.brokers[0].grpc
        with Rpcs(address, trust=certificate.with_suffix(".crt").read_bytes()) as old:
            assert old.SendMessage(send_request("t", b"1")).status.message == "OK"
            shown.write_text(other.read_text())
            with Rpcs(address, trust=other.with_suffix(".crt").read_bytes()) as new:
                assert new.SendMessage(send_request("t", b"2")).status.message == "OK"
            assert old.SendMessage(send_request("t", b"3")).status.message == "OK"  # its connection stays
        with (
            Rpcs(address, trust=certificate.with_suffix(".crt").read_bytes()) as stale,
            pytest.raises(grpc.RpcError) as refused,
        ):
            stale.SendMessage(send_request("t", b"4"), 5)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_versions_and_ciphers_that_do_not_match_end_the_handshake(
    certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, weak = any_certificate(), any_certificate()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    weak.maximum_version = ssl.TLSVersion.TLSv1_2
    weak.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with serving(**{"tlsCertPath": str(certificate), "tls.protocols": "TLSv1.3"}) as cluster:
        port = port_of(cluster.brokers[0].grpc)
        with pytest.raises((ssl.SSLError, OSError)):
            shaken(port, old)
        assert shaken(port, any_certificate())[2][3] == 4
    assert any("protocol" in str(line.get("reason")) for line in told(caplog))
    caplog.clear()
    keys = {"tls.protocols": "TLSv1.2", "tls.ciphers": "ECDHE-ECDSA-AES256-GCM-SHA384"}
    with serving(tlsCertPath=str(certificate), **keys) as cluster:
        port = port_of(cluster.brokers[0].grpc)
        with pytest.raises((ssl.SSLError, OSError)):
            shaken(port, weak)
        assert shaken(port, old)[2][3] == 4
    assert any("cipher" in str(line.get("reason")) for line in told(caplog))
