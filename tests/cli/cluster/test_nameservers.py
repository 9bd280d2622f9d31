"""`firearrow namesrv`: answers of name servers, and differences between them."""

from __future__ import annotations

import asyncio

from firearrow.client.admin import Admin
from firearrow.testing import EmbeddedCluster
from tests.cli.shell import Shell

GONE = "127.0.0.1:1"


def test_a_silent_name_server_is_a_row_with_a_reason(shell: Shell) -> None:
    both = f"{shell.cluster.name_server};{GONE}"
    [alive, gone] = shell.rows("namesrv", "list", "-n", both)
    assert (alive["state"], alive["masters"], alive["slaves"]) == ("ok", 1, 0)
    assert (gone["nameServer"], gone["state"], gone["masters"]) == (GONE, "failed", None)
    assert "can't be reached" in gone["reason"]
    [broker] = shell.rows("namesrv", "brokers", "-n", both)
    assert (broker["state"], broker["registeredAt"]) == ("ok", shell.cluster.name_server)


def test_name_servers_that_differ_are_seen(shell: Shell) -> None:
    with EmbeddedCluster() as other:
        both = f"{shell.cluster.name_server};{other.name_server}"
        mine = {"registeredAt": shell.cluster.name_server, "missingAt": other.name_server}
        found = shell.rows("namesrv", "brokers", "-n", both)
        assert [row["state"] for row in found] == ["different", "different"]
        assert mine.items() <= next(row for row in found if row["address"] == shell.cluster.brokers[0].address).items()
        assert shell.rows("namesrv", "keys", "-n", both) == []
        _put(shell.cluster.name_server)
        [key] = shell.rows("namesrv", "keys", "NOTES", "-n", both)
        assert (key["value"], key["state"], key["nameServers"]) == ("blue", "different", shell.cluster.name_server)


def _put(name_server: str) -> None:
    async def put() -> None:
        async with Admin.of([name_server]) as admin:
            await admin.name_servers.put("NOTES", "color", "blue")

    asyncio.run(put())
