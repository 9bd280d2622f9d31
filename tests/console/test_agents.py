"""Tools for agents, as a client of MCP's own SDK uses them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from firearrow.cli.output.reports import Table
from firearrow.client.blocking import Producer
from firearrow.console.agents import BYTES_MAX, page_of
from firearrow.console.operations import Ran
from firearrow.testing import BlockingCluster, EmbeddedCluster
from tests.cli.serving.test_serve import STOP_SECONDS_MAX, read_line, running
from tests.console.test_signin import ROOT, SECRET, USERS


@asynccontextmanager
async def agent(cluster: BlockingCluster, state: Path, *options: str) -> AsyncIterator[ClientSession]:
    """Client of a `firearrow mcp` in a process of its own."""
    words = ["-m", "firearrow", "mcp", "-n", cluster.name_server, "--state", str(state), *options]
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        yield session


async def call(session: ClientSession, name: str, **values: Any) -> tuple[bool, Any]:
    """Give the structured answer of a tool, or its error."""
    answer = await session.call_tool(name, values)
    text = answer.content[0].text if answer.is_error else ""  # type: ignore[union-attr]
    return not answer.is_error, text or answer.structured_content


def test_reads_and_previews(cluster: BlockingCluster, tmp_path: Path) -> None:
    async def main() -> None:
        async with agent(cluster, tmp_path) as session:
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            assert {"topic_list", "doctor", "lag", "topic_create"} <= tools.keys()
            assert not {"topic_undo", "serve", "store_repair"} & tools.keys()
            assert "apply" not in tools["topic_create"].input_schema["properties"]
            ok, found = await call(session, "topic_list")
            assert ok
            assert "orders" in [row["topic"] for row in found["rows"]]
            ok, found = await call(session, "topic_create", topic="by-agent")
            assert found["rows"][0]["state"] == "would be made"
            ok, why = await call(session, "topic_create", topic="by-agent", apply=True)
            assert (ok, why) == (False, "changes are not allowed: `firearrow mcp --allow-changes` allows them")
            ok, why = await call(session, "topic_show", topic="by-agent")
            assert (ok, why) == (False, "there is no topic 'by-agent'")
            ok, found = await call(session, "message_send", topic="orders", body="x")
            assert "A message that is sent stays" in found["notes"][0]
            ok, why = await call(session, "message_send", topic="orders", body="x", file="/etc/passwd")
            assert not ok

    asyncio.run(main())
    assert not (tmp_path / "changes.jsonl").exists()


def test_changes_are_logged_with_the_name_of_the_agent(cluster: BlockingCluster, tmp_path: Path) -> None:
    async def main() -> None:
        async with agent(cluster, tmp_path, "--allow-changes") as session:
            ok, found = await call(session, "topic_create", topic="agents-own", queues=3, apply=True)
            assert ok
            assert found["state"] == "done"
            ok, found = await call(session, "topic_show", topic="agents-own")
            assert found["rows"][0]["readQueues"] == 3

    asyncio.run(main())
    log = (tmp_path / "changes.jsonl").read_text()
    assert '"user":"agent ' in log
    assert '"state":"done"' in log


def test_an_agent_has_the_user_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(running: BlockingCluster) -> Any:
        async with agent(running, tmp_path) as session:
            return await call(session, "topic_list")

    with EmbeddedCluster(config=USERS) as guarded:
        ok, _ = asyncio.run(main(guarded))
        assert not ok
        monkeypatch.setenv("FIREARROW_ACCESS_KEY", ROOT)
        monkeypatch.setenv("FIREARROW_SECRET_KEY", SECRET)
        ok, _ = asyncio.run(main(guarded))
        assert ok


def test_long_answers_come_in_pages(cluster: BlockingCluster, tmp_path: Path) -> None:
    cluster.create_topic("long")
    with Producer(cluster.name_server, group="p") as producer:
        for _ in range(8):
            producer.send("long", b"x" * 9000)

    async def main() -> None:
        async with agent(cluster, tmp_path) as session:
            seen, first = 0, 0
            for _ in range(8):
                _, found = await call(session, "message_cat", topic="long", first_row=first)
                seen += len(found["rows"])
                if "next_row" not in found:
                    break
                first = found["next_row"]
            assert (seen, found["total"]) == (8, 8)
            assert first > 0

    asyncio.run(main())


def test_a_row_larger_than_an_answer_is_cut_with_a_mark() -> None:
    found = page_of(Ran([Table("", ("body",), [["x" * (2 * BYTES_MAX)]])], 0), 0)
    assert found["rows"][0]["body"].endswith(f"… ({2 * BYTES_MAX:,} characters)")
    assert len(found["rows"][0]["body"]) < BYTES_MAX


def test_agents_come_by_http(cluster: BlockingCluster, tmp_path: Path) -> None:
    async def main(address: str) -> None:
        async with streamable_http_client(address) as streams, ClientSession(*streams[:2]) as session:
            await session.initialize()
            ok, found = await call(session, "topic_stats", topic="orders")
            assert ok
            assert sum(row["messages"] for row in found["rows"]) == 3

    words = ("mcp", "-n", cluster.name_server, "--http", "0", "--state", str(tmp_path))
    with running(*words) as process:
        address = read_line(process).split()[1]
        asyncio.run(main(address))
        with httpx.Client() as client:
            assert client.post(address, headers={"host": "elsewhere.test"}, json={}).status_code == 421
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_SECONDS_MAX) == 0
