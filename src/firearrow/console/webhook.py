"""Deliveries of announcements to a webhook: an HTTP POST of JSON each, with bounded retries."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from firearrow.clock import Clock
from firearrow.console.alerts import Announcement
from firearrow.console.outgoing import answer_to, failure
from firearrow.errors import ConfigError

PAUSES_SECONDS: Final = (1.0, 5.0, 30.0, 120.0)
"""Waits before the tries after the first."""
WAITING_MAX: Final = 1000
"""Announcements that may wait; further ones are given up, because old news help nobody."""
SHOWN_MAX: Final = 50
"""Last deliveries that are remembered for the page."""
AGAIN: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})


class Delivery(NamedTuple):
    """Delivery of an announcement: its state is ``sent`` or ``failed``, with the reason."""

    at_ms: int
    change: str
    rule: str
    subject: str
    level: str
    state: str
    tries: int
    reason: str = ""


class RefusedByWebhook(Exception):
    """The webhook does not want the announcement; another try is useless."""


Post = Callable[[str, bytes], None]


def post(url: str, body: bytes) -> None:
    """Send a body; OSError for a failure that may pass, RefusedByWebhook for one that does not.

    No redirect is followed.
    """
    status, _ = answer_to(url, body)
    if 200 <= status < 300:
        return
    if 400 <= status < 500 and status not in AGAIN:
        raise RefusedByWebhook(f"answered {status}")
    raise failure(url, status)


class Webhook:
    """Queue of announcements for a webhook, and its last deliveries."""

    def __init__(self, url: str, clock: Clock, pauses: Sequence[float] = PAUSES_SECONDS, send: Post = post) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("--webhook is no address of the form http://host/path or https://host/path")
        if parts.username is not None:  # libraries would say them in errors
            raise ConfigError("--webhook has a user or a password: a secret is a part of its path")
        self._url: Final = url
        self.host: Final = parts.hostname
        """Host, for pages: the path may have a secret."""
        self._clock = clock
        self._pauses = pauses
        self._send = send
        self._waiting: asyncio.Queue[tuple[str, Announcement]] = asyncio.Queue(WAITING_MAX)
        self.deliveries: deque[Delivery] = deque(maxlen=SHOWN_MAX)

    def announce(self, cluster: str, news: Sequence[Announcement]) -> None:
        """Queue announcements of a cluster."""
        for it in news:
            try:
                self._waiting.put_nowait((cluster, it))
            except asyncio.QueueFull:
                self._note(it, "failed", 0, f"{WAITING_MAX} others wait already")

    async def run(self) -> None:
        """Deliver announcements until cancelled, one after another."""
        while True:
            await self.deliver(*await self._waiting.get())

    async def deliver(self, cluster: str, it: Announcement) -> None:
        """Deliver an announcement, with retries; note the outcome."""
        body, reason = msgspec.json.encode({"alerts": [payload(cluster, it, self._clock.now_ms())]}), ""
        for number, pause in enumerate((0.0, *self._pauses), 1):
            await asyncio.sleep(pause)
            try:
                await asyncio.to_thread(self._send, self._url, body)
            except RefusedByWebhook as error:
                self._note(it, "failed", number, str(error))
                return
            except (OSError, ValueError, HTTPException) as error:  # the last two: no HTTP
                reason = str(error).replace(self._url, self.host)
            else:
                self._note(it, "sent", number, "")
                return
        self._note(it, "failed", 1 + len(self._pauses), reason)

    def _note(self, it: Announcement, state: str, tries: int, reason: str) -> None:
        level = it.finding.level.name.lower()
        known = it.change, it.finding.rule, it.finding.subject, level
        self.deliveries.appendleft(Delivery(self._clock.now_ms(), *known, state, tries, reason))


def payload(cluster: str, it: Announcement, now_ms: int) -> dict[str, Any]:
    """Give the JSON object of an announcement; a body has a list of them, ``alerts``, as that of the pipeline."""
    return {
        "cluster": cluster,
        "atMs": now_ms,
        "change": it.change,
        "rule": it.finding.rule,
        "subject": it.finding.subject,
        "level": it.finding.level.name.lower(),
        "before": None if it.before is None else it.before.name.lower(),
        "evidence": it.finding.evidence,
        "cure": it.finding.cure,
    }
