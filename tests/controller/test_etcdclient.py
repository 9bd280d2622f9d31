"""What is asked of etcd, and what is said when it does not answer, or refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from firearrow.controller.etcdclient import Etcd, Lease, RangeResponse
from firearrow.testing import loop
from tests.net.listener import Listener

Answer = tuple[str, bytes] | None


class Web:
    """Answers each POST as ``respond`` says, by path and token; None: it does not answer."""

    def __init__(self, respond: Callable[[str, str], Answer]) -> None:
        self.asked: list[str] = []
        self._respond = respond

    async def start(self, port: int) -> str:
        await Listener().listen(self._serve, port)
        return f"http://127.0.0.1:{port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split()[1].removeprefix("/v3/")
        self.asked.append(path)
        answer = self._respond(path, head.partition("Authorization: ")[2].partition("\r")[0])
        if answer is None:
            await asyncio.sleep(3600)
            return
        writer.write(f"HTTP/1.0 {answer[0]}\r\n\r\n".encode() + answer[1])


GRANTED: Answer = ("200 OK", b'{"header":{},"ID":"7587881270212302081","TTL":"5"}')
REFUSED: Answer = ("400 Bad Request", b'{"error":"x","code":3,"message":"etcdserver: no"}')


def in_virtual_time(main: Callable[[], Any]) -> None:
    loop.run(lambda clock: main())


def test_one_endpoint_is_silent_and_is_asked_last_from_then_on() -> None:
    async def main() -> None:
        silent, sound = Web(lambda *_: None), Web(lambda *_: GRANTED)
        urls = ["http://127.0.0.1:9", await silent.start(10), await sound.start(11)]
        etcd = Etcd(urls, 2.0)
        began = asyncio.get_running_loop().time()
        for _ in range(2):
            lease = await etcd.call("lease/grant", {"TTL": 5}, Lease)
            assert lease == Lease(7587881270212302081, 5)
        assert asyncio.get_running_loop().time() - began == pytest.approx(2.0)
        assert (len(silent.asked), len(sound.asked)) == (1, 2)

    in_virtual_time(main)


def test_why_none_answers_is_said_of_each() -> None:
    async def main() -> None:
        silent, refusing = Web(lambda *_: None), Web(lambda *_: REFUSED)
        other = Web(lambda *_: ("404 Not Found", b"404 page not found"))
        large = Web(lambda *_: ("200 OK", bytes((64 << 20) + 1)))
        webs = [silent, refusing, other, large]
        urls = [await web.start(10 + number) for number, web in enumerate(webs)]
        with pytest.raises(ConnectionError) as raised:
            await Etcd(["http://127.0.0.1:9", *urls], 2.0).call("kv/range", {}, RangeResponse)
        not_etcd = "'HTTP/1.0 404 Not Found 404 page not found'"
        assert str(raised.value).split("; ") == [
            "http://127.0.0.1:9: [Errno 111] nobody listens on 127.0.0.1:9",
            "http://127.0.0.1:10: no answer within 2 s",
            "http://127.0.0.1:11: etcdserver: no",
            f"http://127.0.0.1:12: it does not answer as etcd does: {not_etcd}",
            "http://127.0.0.1:13: the answer has more than 67108864 bytes",
        ]

    in_virtual_time(main)


def test_a_user_says_who_he_is_again_when_etcd_has_forgotten() -> None:
    tokens = ["first"]

    def respond(path: str, token: str) -> Answer:
        if path == "auth/authenticate":
            return "200 OK", f'{{"token":"{tokens[-1]}"}}'.encode()
        return GRANTED if token == tokens[-1] else REFUSED

    async def main() -> None:
        web = Web(respond)
        etcd = Etcd([await web.start(10)], 2.0, ("controller", "secret"))
        await etcd.call("lease/grant", {}, Lease)
        await etcd.call("lease/grant", {}, Lease)
        assert web.asked == ["auth/authenticate", "lease/grant", "lease/grant"]
        tokens.append("second")
        await etcd.call("lease/grant", {}, Lease)
        assert web.asked[3:] == ["lease/grant", "auth/authenticate", "lease/grant"]

    in_virtual_time(main)
