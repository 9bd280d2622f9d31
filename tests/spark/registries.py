"""Schema registries with what a test gives them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

GLOBAL = 1 << 33  # a global id of the fake Apicurio is this and the content id; it needs more than 4 bytes


@dataclass(frozen=True)
class Content:
    """What a registry has, and how it answers for a path."""

    schemas: Mapping[int, str]
    subjects: Mapping[str, int]
    more: Mapping[str, str]
    references: Mapping[int, Sequence[tuple[str, str]]]
    apicurio: str

    def answer(self, path: str) -> Any:
        parts = [unquote(part) for part in path.partition("?")[0].split("/")[1:]]
        return self._of_apicurio(parts) if self.apicurio else self._of_confluent(parts)

    def _of_confluent(self, parts: list[str]) -> Any:
        known = self.subjects.get(parts[1], -1) if parts[0] == "subjects" else int(parts[2])
        if known not in self.schemas:
            return None
        of = [{"name": name, "subject": subject, "version": 1} for name, subject in self.references.get(known, ())]
        answer = {"schema": self.schemas[known], **({"references": of} if of else {}), **self.more}
        return {"id": known, **answer} if parts[0] == "subjects" else answer

    def _of_apicurio(self, parts: list[str]) -> Any:
        assert parts[:3] == ["apis", "registry", self.apicurio]
        if parts[3] == "groups":
            paths = {
                "v2": (["meta"], ["versions", "1", "meta"]),
                "v3": (["versions", "branch=latest"], ["versions", "1"]),
            }
            assert parts[7:] in paths[self.apicurio]
            known = self.subjects.get(f"{parts[4]}/{parts[6]}", -1)
            kind = {"type" if self.apicurio == "v2" else "artifactType": self.more.get("schemaType", "AVRO")}
            return {"globalId": GLOBAL + known, "contentId": known, **kind} if known in self.schemas else None
        known = int(parts[5]) - (GLOBAL if parts[4] == "globalIds" else 0)
        if parts[6:] != ["references"]:
            return self.schemas.get(known)
        split = [(name, *subject.split("/")) for name, subject in self.references.get(known, ())]
        return [{"name": n, "groupId": group, "artifactId": artifact, "version": "1"} for n, group, artifact in split]


@contextmanager
def serving_schemas(
    schemas: Mapping[int, str],
    subjects: Mapping[str, int],
    *,
    authorization: str | None = None,
    more: Mapping[str, str] | None = None,
    references: Mapping[int, Sequence[tuple[str, str]]] | None = None,
    apicurio: str = "",
) -> Iterator[tuple[str, list[str]]]:
    """Serve schemas by id, and ids by subject; give the URL, and the paths that were asked for.

    ``references`` are names and subjects that the schema of an id refers to. With ``apicurio``, ``v2`` or ``v3``, the
    protocol is Apicurio's, and a subject is ``group/artifact``.
    """
    asked: list[str] = []
    content = Content(schemas, subjects, more or {}, references or {}, apicurio)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if self.headers["Authorization"] != authorization:
                self.answer(401, {"error_code": 401})
                return
            found = content.answer(self.path)
            if found is None:
                self.answer(404, {"error_code": 40403})
            else:
                self.answer(200, found)

        def answer(self, status: int, found: Any) -> None:
            body = found.encode() if isinstance(found, str) else json.dumps(found).encode()
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
        path = f"/apis/registry/{apicurio}" if apicurio else ""
        yield f"http://127.0.0.1:{server.server_port}{path}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
