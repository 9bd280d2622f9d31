"""Clients that are patient get an answer that is too late for others."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from firearrow.net.client import Client
from firearrow.net.server import Peer
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand
from tests.net.background import answering
from tests.patience import SECONDS, be_patient, patient_environment

CODE = 1


def answer_late(peer: Peer, request: AnyCommand) -> None:
    asyncio.get_running_loop().call_later(0.1, peer.reply, request, Response())


async def call() -> int:
    client = Client(call_seconds=0.01)
    async with answering({CODE: answer_late}) as address:
        try:
            return (await client.call(address, CODE)).code
        finally:
            await client.close()


def test_a_late_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TimeoutError):
        asyncio.run(call())
    be_patient(monkeypatch.setattr)
    assert asyncio.run(call()) == 0


def test_programs_are_patient(tmp_path: Path) -> None:
    program = "from firearrow.net import client; print(client.CONNECT_SECONDS_MAX)"
    environment = patient_environment(tmp_path)
    printed = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert float(printed) == SECONDS
