"""Requests of the console to addresses that its command line names; no redirect leads elsewhere."""

from __future__ import annotations

from typing import Final
from urllib.error import HTTPError
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, Request

from firearrow import __version__

ANSWER_SECONDS_MAX: Final = 10.0
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024


def answer_to(url: str, body: bytes | None = None, kind: str = "application/json") -> tuple[int, bytes]:
    """Give status and body of the answer to a GET, or to a POST with a body; raises OSError."""
    opener = OpenerDirector()
    for handler in (HTTPHandler(), HTTPSHandler()):
        opener.add_handler(handler)
    headers = {"User-Agent": f"firearrow/{__version__}", **({} if body is None else {"Content-Type": kind})}
    with opener.open(Request(url, body, headers), timeout=ANSWER_SECONDS_MAX) as answer:
        return int(answer.status), answer.read(ANSWER_BYTES_MAX)


def failure(url: str, status: int) -> HTTPError:
    """Give the error for a status."""
    return HTTPError(url, status, f"answered {status}", None, None)  # type: ignore[arg-type]
