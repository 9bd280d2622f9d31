"""An etcd in virtual time, as far as controllers use one, which can lose what it answers."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

import msgspec

from firearrow.controller.etcdclient import KeyValue
from tests.net.listener import Listener

PORT: Final = 2379
URL: Final = f"http://127.0.0.1:{PORT}"
CLOSED: Final = 3600.0  # a request that is never answered


class FakeEtcd:
    """Keys and leases. ``faults`` are for the next changes of brokers, one each.

    ``unanswered``: it is made, and not answered. ``late``: it is made some seconds later.
    """

    def __init__(self) -> None:
        self.keys: dict[bytes, KeyValue] = {}
        self.leases: dict[int, float] = {}
        self.faults: deque[str] = deque()
        self.cut_off = 0  # a lease: requests that name it are not heard
        self.is_full = False  # it makes no changes of brokers
        self.late: list[bool] = []  # whether each late change was made when its time came
        self._loop = asyncio.get_running_loop()
        self._seconds = {0: 0.0}
        self._revision = 1

    async def start(self, port: int = PORT) -> None:
        """Listen."""
        await Listener().listen(self._serve, port)

    def put(self, key: str, value: bytes) -> None:
        """Have a key, as if somebody else had written it."""
        self.keys[key.encode()] = KeyValue(key.encode(), value, 1, 1, 1)

    def find(self, end: str) -> KeyValue:
        """The one key with such an end."""
        (found,) = (kv for key, kv in self.keys.items() if key.endswith(end.encode()))
        return found

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split()[1].removeprefix("/v3/")
        length = int(head.partition("Content-Length: ")[2].split()[0])
        request = msgspec.json.decode(await reader.readexactly(length))
        answer = await self._answer(path, request)
        if answer is not None:
            status = b"400 Bad Request" if "message" in answer else b"200 OK"
            writer.write(b"HTTP/1.0 %b\r\n\r\n" % status + msgspec.json.encode(answer))

    async def _answer(self, path: str, request: dict[str, Any]) -> dict[str, Any] | None:
        if self.cut_off and str(self.cut_off) in str(request):
            await asyncio.sleep(CLOSED)
        if path != "kv/txn" or "brokers" not in _keys_in(request):
            return self._made(path, request)
        if self.is_full:
            return {"error": "", "message": "etcdserver: mvcc: database space exceeded"}
        if not self.faults:
            return self._made(path, request)
        if self.faults.popleft() == "late":
            await asyncio.sleep(20)
            self.late.append(self._made(path, request)["succeeded"])
        else:
            self._made(path, request)
        await asyncio.sleep(CLOSED)
        return None

    def _made(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        self._expire()
        match path:
            case "lease/grant":
                lease = max(self.leases, default=1 << 60) + 1
                self._seconds[lease] = request["TTL"]
                self.leases[lease] = self._loop.time() + request["TTL"]
                return {"ID": str(lease), "TTL": str(request["TTL"])}
            case "lease/keepalive":
                lease = int(request["ID"])
                if lease not in self.leases:
                    return {"result": {"ID": request["ID"]}}
                self.leases[lease] = self._loop.time() + self._seconds[lease]
                return {"result": {"ID": request["ID"], "TTL": str(self._seconds[lease])}}
            case "lease/revoke":
                self.leases[int(request["ID"])] = 0.0
                self._expire()
                return {}
            case "kv/range":
                return self._range(request)
            case _:
                return self._transaction(request)

    def _expire(self) -> None:
        self.leases = {one: at for one, at in self.leases.items() if at > self._loop.time()}
        self.keys = {key: kv for key, kv in self.keys.items() if not kv.lease or kv.lease in self.leases}

    def _range(self, request: dict[str, Any]) -> dict[str, Any]:
        begin = _bytes(request["key"])
        end = _bytes(request["range_end"]) if "range_end" in request else begin + b"\0"
        return {"kvs": [kv for key, kv in sorted(self.keys.items()) if begin <= key < end]}

    def _transaction(self, request: dict[str, Any]) -> dict[str, Any]:
        field = {"CREATE": "create_revision", "VERSION": "version"}
        is_so = all(
            getattr(self.keys.get(_bytes(it["key"]), KeyValue()), field[it["target"]]) == int(it[field[it["target"]]])
            for it in request["compare"]
        )
        self._revision += is_so
        operations = request.get("success" if is_so else "failure", [])
        responses = [self._operation(*it.popitem()) for it in operations]
        return {"succeeded": is_so, "responses": responses}

    def _operation(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        key = _bytes(request["key"])
        if kind == "requestRange":
            return {"response_range": self._range(request)}
        if kind == "requestDeleteRange":
            self.keys.pop(key)
            return {}
        old = self.keys.get(key, KeyValue(create_revision=self._revision))
        self.keys[key] = KeyValue(
            key,
            _bytes(request["value"]),
            old.create_revision,
            self._revision,
            old.version + 1,
            int(request.get("lease", 0)),
        )
        return {}


def _bytes(text: str) -> bytes:
    return msgspec.convert(text, bytes)


def _keys_in(request: dict[str, Any]) -> str:
    return " ".join(_bytes(it["key"]).decode() for one in request["success"] for it in one.values())
