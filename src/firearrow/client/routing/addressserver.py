"""Asks a web server where the name servers are, for clients that are told its domain only.

``ROCKETMQ_NAMESRV_DOMAIN=ns.example.com`` means ``http://ns.example.com:8080/rocketmq/nsaddr``; a
domain with a port keeps it, and ``ROCKETMQ_NAMESRV_DOMAIN_SUBGROUP`` takes the place of ``nsaddr``.
The first line of the answer is the list, as in ``NAMESRV_ADDR``. RocketMQ's clients have a domain
of Alibaba's where none is given; here that is an error.

Source: upstream ``MixAll#getWSAddr``, ``DefaultTopAddressing#fetchNSAddr``.
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
    """A web server at ``domain`` (with a port, if it is not 8080), and what it is asked for."""

    def __init__(self, domain: str, subgroup: str = SUBGROUP, unit: str = "") -> None:
        self._place = domain if ":" in domain else f"{domain}:{PORT}"
        host_and_port(self._place)  # ConfigError for what is none
        self._path = f"/rocketmq/{subgroup}" + (f"-{unit}?nofix=1" if unit else "")

    @classmethod
    def of_environment(cls, unit: str = "") -> Self | None:
        """The one that the environment names, if it does."""
        domain = os.environ.get(DOMAIN_VARIABLE)
        return cls(domain, os.environ.get(SUBGROUP_VARIABLE, SUBGROUP), unit) if domain else None

    def __str__(self) -> str:
        """Its address."""
        return f"http://{self._place}{self._path}"

    async def addresses(self) -> list[str]:
        """The name servers; ConnectionError if it can't be reached or gives none."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                answer = await ask(str(self), bytes_max=ANSWER_BYTES_MAX)
        except OSError as error:
            raise ConnectionError(f"{self} does not tell the name servers: {error}") from error
        if not answer.is_ok:
            raise ConnectionError(f"{self} does not tell the name servers: {answer.status!r}")
        line = answer.body.decode(errors="replace").strip().partition("\n")[0]
        try:
            return addresses_of(line)
        except ConfigError as error:
            raise ConnectionError(f"{self} gives no name servers: {error}") from None
