"""A webhook that keeps what is posted to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue
from threading import Thread
from typing import Any


class Hook:
    """Address of a webhook, and the alerts that it was given."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.posted: Queue[dict[str, Any]] = Queue()

    def next_of(self, rule: str) -> dict[str, Any]:
        """Wait for the next alert of a rule; a cluster has other findings, too."""
        while (alert := self.posted.get(timeout=60))["rule"] != rule:
            pass
        return alert


@contextmanager
def webhook() -> Iterator[Hook]:
    """Serve a webhook for a ``with`` block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            for alert in json.loads(self.rfile.read(int(self.headers["content-length"])))["alerts"]:
                hook.posted.put(alert)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    hook = Hook(f"http://127.0.0.1:{server.server_port}/hook")
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hook
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
