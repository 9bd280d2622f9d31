"""Controllers that encrypt, among themselves and for brokers."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from firearrow.clock import SystemClock
from firearrow.controller.app import Controller
from firearrow.controller.config import ControllerConfig
from firearrow.errors import ConfigError
from firearrow.net.access import Access
from firearrow.net.client import Client
from firearrow.net.encryption import Tls
from firearrow.wire.codes import RequestCode as Code

SECONDS_MAX = 60


def free_addresses(count: int) -> list[str]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{it.getsockname()[1]}" for it in taken]
    for it in taken:
        it.close()
    return addresses


def test_they_agree_and_answer_only_who_encrypts(tmp_path: Path, certificate: Path) -> None:
    members = {f"n{number}": address for number, address in enumerate(free_addresses(3))}

    async def main() -> None:
        controllers = [
            Controller(
                ControllerConfig(
                    controller_d_leger_group="g",
                    controller_d_leger_peers=";".join(f"{k}-{v}" for k, v in members.items()),
                    controller_d_leger_self_id=name,
                    controller_store_path=str(tmp_path / name),
                    tls_server_mode="enforcing",
                    tls_server_cert_path=str(certificate),
                ),
                SystemClock(),
            )
            for name in members
        ]
        for controller in controllers:
            await controller.start()
        client, plain = Client(access=Access(tls=Tls(str(certificate)))), Client()
        leader = ""
        async with asyncio.timeout(SECONDS_MAX):
            while not leader:
                answer = await client.call(members["n0"], Code.CONTROLLER_GET_METADATA_INFO, {})
                leader = answer.ext.get("controllerLeaderId", "")
        assert leader in members
        with pytest.raises(OSError):
            await plain.call(members["n0"], Code.CONTROLLER_GET_METADATA_INFO, {})
        for it in (client, plain):
            await it.close()
        for controller in controllers:
            await controller.stop()

    asyncio.run(main())


def test_what_would_leave_it_unreachable_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs tls\.server\.certPath"):
        ControllerConfig(tls_server_mode="enforcing")
