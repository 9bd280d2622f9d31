"""etcd itself, as a process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from firearrow.net.encryption import Tls
from firearrow.net.http import ask
from tests.controllerscript import WITHIN_S
from tests.interop.servers import free_port, running
from tests.interop.toolchain import etcd_command
from tests.interop.waiting import wait_until


class Etcd:
    """An etcd of one member: started, killed and started again at one address; by default `etcd_command`."""

    def __init__(self, directory: Path, certificate: Path | None = None, command: Sequence[str] = ()) -> None:
        scheme = "http" if certificate is None else "https"
        self.url, peer = f"{scheme}://127.0.0.1:{free_port(0)}", f"http://127.0.0.1:{free_port(0)}"
        self.keys = {"controllerType": "etcd", "controllerEtcdEndpoints": self.url}
        self._context = None if certificate is None else Tls(str(certificate)).context()
        self._log = directory / "etcd.log"
        self._stack = ExitStack()
        options = {
            "data-dir": directory / "etcd",
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "log-level": "warn",
        }
        if certificate is not None:
            options |= {"cert-file": certificate.with_suffix(".crt"), "key-file": certificate}
        self._command = [*(command or etcd_command()), *(f"--{key}={it}" for key, it in options.items())]

    def start(self) -> None:
        self._process = self._stack.enter_context(running(self._command, self._log)).popen
        wait_until(self._serves, WITHIN_S, "an etcd")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self._stack.close()

    def post(self, path: str, request: dict[str, Any]) -> bytes:
        """Ask it something, of which it must not be a refusal."""
        body = msgspec.json.encode(request)
        url = f"{self.url}/v3/{path}"
        answer = asyncio.run(ask(url, body=body, bytes_max=1 << 20, context=self._context))
        assert answer.is_ok, answer
        return answer.body

    def _serves(self) -> bool:
        health = ask(f"{self.url}/health", bytes_max=1 << 20, context=self._context)
        try:
            return asyncio.run(health).is_ok
        except OSError:
            return False
