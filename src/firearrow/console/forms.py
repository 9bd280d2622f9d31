"""Values of forms and addresses, and the guard against requests that another site made a browser send."""

from __future__ import annotations

import asyncio
import hmac
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from secrets import token_hex
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request

from firearrow.cli.parameters import WrongOptions
from firearrow.errors import FirearrowError

FORM_BYTES_MAX: Final = 8 * 1024 * 1024
"""Size of a form: the body of a message has 4 MiB at most, and escapes."""
BODY_SECONDS: Final = 60.0
"""Longest time in which a request arrives."""
FIELDS_MAX: Final = 1000
TOKEN: Final = "csrf"


class Foreign(FirearrowError):
    """A request that did not come from a page of this console."""


def grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Give all texts of each field."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, text in pairs:
        found[name].append(text)
    return dict(found)


async def form_of(request: Request) -> dict[str, list[str]]:
    """Read a form that a page of this console sent. Raises Foreign, or WrongOptions for a form too large."""
    check_origin(request)
    data = await body_of(request)
    try:
        pairs = parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
        pairs = [(name, text.replace("\r\n", "\n")) for name, text in pairs]  # browsers end lines so
    except ValueError as error:
        raise WrongOptions(f"the form can't be read: {error}") from None
    form = grouped(pairs)
    check_token(request, form.pop(TOKEN, []))
    return form


async def body_of(request: Request) -> bytes:
    """Read the body of a request; WrongOptions for one too large or too slow."""
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                data += chunk
                if len(data) > FORM_BYTES_MAX:
                    raise WrongOptions(f"the request has more than {FORM_BYTES_MAX >> 20} MiB")
    except TimeoutError:
        raise WrongOptions(f"the request did not arrive within {BODY_SECONDS:.0f} s") from None
    return bytes(data)


def check_origin(request: Request) -> None:
    """Raise Foreign for a request from a page of another site."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    if site != "same-origin" or (origin is not None and urlsplit(origin).netloc != request.headers.get("host")):
        raise Foreign("The request comes from another site: nothing is changed.")


def check_token(request: Request, given: Sequence[str]) -> None:
    """Raise Foreign without the token of the session."""
    known = request.session.get(TOKEN, "")
    if not known or len(given) != 1 or not hmac.compare_digest(known, given[0]):
        raise Foreign("The page is too old: load it again, and nothing is lost.")


def token_of(request: Request) -> str:
    """Give the token of the session, which each form of this console sends."""
    token: str = request.session.setdefault(TOKEN, token_hex(16))
    return token


def first(values: Mapping[str, Sequence[str]], name: str) -> str:
    """Give the first text of a field; empty without it."""
    return next(iter(values.get(name, ())), "")
