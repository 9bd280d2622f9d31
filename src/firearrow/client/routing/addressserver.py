"""Ask a web server for the name servers, for clients that know only its domain.

``ROCKETMQ_NAMESRV_DOMAIN=ns.example.com`` means ``http://ns.example.com:8080/rocketmq/nsaddr``. A port in the domain
replaces 8080. ``ROCKETMQ_NAMESRV_DOMAIN_SUBGROUP`` replaces ``nsaddr``. The first line of the answer is the list, as in
``NAMESRV_ADDR``. Without a domain, RocketMQ's clients ask a domain of Alibaba; here that is an error.

Source: RocketMQ's ``MixAll#getWSAddr``, ``DefaultTopAddressing#fetchNSAddr``.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final, Self

from firearrow.errors import ConfigError
from firearrow.net.address import addresses_of, host_and_port
from firearrow.net.http import ask

DOMAIN_VARIABLE: Final = "ROCKETMQ_NAMESRV_DOMAIN"
SUBGROUP_VARIABLE: Final = "ROCKETMQ_NAMESRV_DOMAIN_SUBGROUP"
SUBGROUP: Final = "nsaddr"
PORT: Final = 8080
ANSWER_SECONDS_MAX: Final = 3.0
ANSWER_BYTES_MAX: Final = 64 * 1024


class AddressServer:
    """Web server at ``domain``; its default port is 8080."""

    def __init__(self, domain: str, subgroup: str = SUBGROUP, unit: str = "") -> None:
        self._place = domain if ":" in domain else f"{domain}:{PORT}"
        host_and_port(self._place)  # raises ConfigError for a malformed address
        self._path = f"/rocketmq/{subgroup}" + (f"-{unit}?nofix=1" if unit else "")

    @classmethod
    def of_environment(cls, unit: str = "") -> Self | None:
        """Address server that the environment names; None if it names none."""
        domain = os.environ.get(DOMAIN_VARIABLE)
        return cls(domain, os.environ.get(SUBGROUP_VARIABLE, SUBGROUP), unit) if domain else None

    def __str__(self) -> str:
        """URL of the list."""
        return f"http://{self._place}{self._path}"

    async def addresses(self) -> list[str]:
        """Addresses of the name servers. Raises ConnectionError if the server can't be reached or names none."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                answer = await ask(str(self), bytes_max=ANSWER_BYTES_MAX)
        except OSError as error:
            raise ConnectionError(f"{self} gives no list of name servers: {error}") from error
        if not answer.is_ok:
            raise ConnectionError(f"{self} gives no list of name servers: {answer.status!r}")
        line = answer.body.decode(errors="replace").strip().partition("\n")[0]
        try:
            return addresses_of(line)
        except ConfigError as error:
            raise ConnectionError(f"{self} gives no name servers: {error}") from None
