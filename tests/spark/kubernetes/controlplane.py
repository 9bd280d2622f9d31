"""Kubernetes without a machine for pods: etcd and the API server, on ports of this host."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

from tests.interop.etcd import Etcd
from tests.interop.servers import free_port, running
from tests.interop.toolchain import go_whole
from tests.interop.waiting import wait_until
from tests.net.certificates import make_certificate

ADMIN = "token-of-the-administrator"
START_TIMEOUT_S = 120
ANSWER_TIMEOUT_S = 30
CORE = "/api/v1"
NOT_FOUND = 404

_PLACES = {
    "Namespace": f"{CORE}/namespaces",
    "PersistentVolume": f"{CORE}/persistentvolumes",
    "PersistentVolumeClaim": f"{CORE}/namespaces/{{}}/persistentvolumeclaims",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ServiceAccount": f"{CORE}/namespaces/{{}}/serviceaccounts",
}


@dataclass(frozen=True)
class ControlPlane:
    """The API server, as its administrator uses it."""

    port: int
    certificate: Path

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any] | None:
        """Send a request; return its answer, None if there is no such object, or none any more."""
        status, found = self._asked(method, path, body)
        if status == NOT_FOUND:
            return None
        assert 200 <= status < 300, f"{method} {path}: {status}, {found.decode()}"
        answer: dict[str, Any] = json.loads(found)
        return answer

    def listed(self, path: str) -> list[dict[str, Any]]:
        """Return the objects of a collection."""
        items: list[dict[str, Any]] = self.change("GET", path)["items"]
        return items

    def change(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Send a request for an object that must exist; return its answer."""
        answer = self.ask(method, path, body)
        assert answer is not None, f"{method} {path}: there is no such object"
        return answer

    def create(self, manifest: Mapping[str, Any]) -> None:
        """Create an object of one of the kinds in `_PLACES`."""
        place = _PLACES[manifest["kind"]].format(manifest["metadata"].get("namespace"))
        self.change("POST", place, manifest)

    def token(self, namespace: str, account: str) -> str:
        """Return a token of a service account, as ``kubectl create token`` does."""
        path = f"{CORE}/namespaces/{namespace}/serviceaccounts/{account}/token"
        answer = self.change("POST", path, {"spec": {"expirationSeconds": 3600}})
        return str(answer["status"]["token"])

    def is_ready(self) -> bool:
        """Return True once the API server answers all requests."""
        try:
            return self._asked("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def _asked(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": kind}
        context = ssl.create_default_context(cafile=str(self.certificate))
        with closing(HTTPSConnection("127.0.0.1", self.port, timeout=ANSWER_TIMEOUT_S, context=context)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()


@contextmanager
def control_plane(directory: Path) -> Iterator[ControlPlane]:
    """Run etcd and the API server for a ``with`` block."""
    directory.mkdir(parents=True)
    key = make_certificate(directory, "kubernetes")
    tokens = directory / "tokens.csv"
    tokens.write_text(f"{ADMIN},admin,admin,system:masters\n")
    plane = ControlPlane(free_port(0), key.with_suffix(".crt"))
    with closing(Etcd(directory, command=[str(go_whole("etcd"))])) as etcd:
        etcd.start()
        options = {
            "etcd-servers": etcd.url,
            "bind-address": "127.0.0.1",
            "secure-port": plane.port,
            "tls-cert-file": plane.certificate,
            "tls-private-key-file": key,
            "token-auth-file": tokens,
            "authorization-mode": "RBAC",
            "service-account-issuer": plane.url,
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            "service-cluster-ip-range": "10.0.0.0/24",
        }
        command = [str(go_whole("kube-apiserver")), *(f"--{name}={value}" for name, value in options.items())]
        with running(command, directory / "apiserver.log"):
            wait_until(plane.is_ready, START_TIMEOUT_S, "an API server")
            yield plane
