"""A schema registry with what a test gives it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote


@contextmanager
def serving_schemas(
    schemas: Mapping[int, str],
    subjects: Mapping[str, int],
    *,
    authorization: str | None = None,
    more: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, list[str]]]:
    """Serve schemas by id, and ids by subject; give the URL, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if self.headers["Authorization"] != authorization:
                self.answer(401, {"error_code": 401})
                return
            parts = [unquote(part) for part in self.path.split("/")]
            known = subjects.get(parts[2], -1) if parts[1] == "subjects" else int(parts[3])
            if known in schemas:
                self.answer(200, {"id": known, "schema": schemas[known], **(more or {})})
            else:
                self.answer(404, {"error_code": 40403})

        def answer(self, status: int, values: Mapping[str, object]) -> None:
            body = json.dumps(values).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
