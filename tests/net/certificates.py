"""Certificates for tests, made by openssl."""

import subprocess
from pathlib import Path


def make_certificate(directory: Path, name: str) -> Path:
    """Make a self-signed certificate for 127.0.0.1, with its key in the same file. Beside it, with the suffix ``.crt``,
    is the certificate alone.
    """
    made = directory / f"{name}.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(made), "-out", str(made.with_suffix(".crt"))]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    made.write_text(made.read_text() + made.with_suffix(".crt").read_text())
    return made
