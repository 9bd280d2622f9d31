"""A certificate for both sides, and where the keys for it are RocketMQ's, so they are both's."""

import ssl
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.errors import BenchmarkError
from benchmarks.toolchain import find

MAKE_TIMEOUT_S = 60


@dataclass(frozen=True)
class Certificate:
    """Files of a certificate for 127.0.0.1 that is signed by itself, and of its key (both PEM);
    ``binary`` is what a client trusts (DER)."""

    path: Path
    key_path: Path
    binary: Path

    @property
    def keys(self) -> Mapping[str, str]:
        """What servers are told of it; who does not encrypt is served as well."""
        return {
            "tls.test.mode.enable": "false",
            "tls.server.certPath": str(self.path),
            "tls.server.keyPath": str(self.key_path),
        }


def make_certificate(directory: Path) -> Certificate:
    """Make one by openssl; MissingTool without that."""
    openssl = find("openssl", "make a certificate (Debian: apt install openssl)")
    made = Certificate(directory / "server.crt", directory / "server.key", directory / "server.der")
    kind = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=benchmark", "-addext", "subjectAltName=IP:127.0.0.1"]
    # A client takes no authority's own certificate for a server's.
    names += ["-addext", "basicConstraints=critical,CA:FALSE"]
    files: list[str | Path] = ["-keyout", made.key_path, "-out", made.path]
    command = [openssl, *kind.split(), *names, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MAKE_TIMEOUT_S)
    if done.returncode != 0:
        raise BenchmarkError(f"a certificate: {done.stderr.strip()[-2000:]}")
    made.binary.write_bytes(ssl.PEM_cert_to_DER_cert(made.path.read_text()))
    return made
