"""Name servers from a web server, at the start and after a change."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from firearrow.client.routing.addressserver import AddressServer
from firearrow.client.session.session import Session
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock
from tests.client.cluster import Cluster, clustered
from tests.client.consuming import make_topic
from tests.net.listener import HOST, Listener


class Web:
    """Answers each request with the next of some texts, the last again and again."""

    def __init__(self, *bodies: str, status: str = "200 OK") -> None:
        self.bodies = list(bodies)
        self.status = status
        self.asked: list[str] = []

    async def __aenter__(self) -> str:
        self._listener = Listener()
        return f"{HOST}:{await self._listener.listen(self._answer)}"

    async def __aexit__(self, *_: object) -> None:
        await self._listener.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.split(b"\r\n")[0].decode())
        body = self.bodies.pop(0) if len(self.bodies) > 1 else self.bodies[0]
        writer.write(f"HTTP/1.0 {self.status}\r\nServer: x\r\n\r\n{body}".encode())


def test_a_session_asks_where_the_name_servers_are_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.session() as session:
            await make_topic(cluster, session)
        web = Web(f"{cluster.name_server}\n", "127.0.0.1:1;127.0.0.1:2")
        async with web as domain:
            monkeypatch.delenv("NAMESRV_ADDR", raising=False)
            monkeypatch.setenv("ROCKETMQ_NAMESRV_DOMAIN", domain)
            async with Session(clock=cluster.clock, ip="127.0.0.1") as session:
                assert (await session.route("T")).queue_datas
                await asyncio.sleep(9)
                assert session.name_servers.addresses == (cluster.name_server,)
                await asyncio.sleep(2)
                assert set(session.name_servers.addresses) == {"127.0.0.1:1", "127.0.0.1:2"}
                await asyncio.sleep(360)
            assert web.asked == ["GET /rocketmq/nsaddr HTTP/1.0"] * 5

    clustered(tmp_path, main)


def test_its_address_follows_from_domain_subgroup_and_unit() -> None:
    assert str(AddressServer("ns.test")) == "http://ns.test:8080/rocketmq/nsaddr"
    other = AddressServer("ns.test:81", "mine", "u1")
    assert str(other) == "http://ns.test:81/rocketmq/mine-u1?nofix=1"


@pytest.mark.parametrize(
    ("web", "why"),
    [
        (Web("127.0.0.1:1", status="404 Not Found"), r"gives no list .*404 Not Found"),
        (Web("\n"), r"gives no name servers: '' names no address"),
        (Web("<html>"), r"gives no name servers: '<html>' is not an address"),
        (None, r"http://127.0.0.1:1/rocketmq/nsaddr gives no list of name servers: "),
    ],
)
def test_a_start_without_an_answer_says_so(web: Web | None, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(domain: str) -> None:
        monkeypatch.delenv("NAMESRV_ADDR", raising=False)
        monkeypatch.setenv("ROCKETMQ_NAMESRV_DOMAIN", domain)
        session = Session(ip="127.0.0.1")
        with pytest.raises(ConnectionError, match=why):
            await session.start()
        await session.close()

    async def main(_: VirtualClock) -> None:
        if web is None:
            await start("127.0.0.1:1")
        else:
            async with web as domain:
                await start(domain)

    loop.run(main)
