"""A provider of OpenID Connect that knows one person and asks for no password; a test may let it cheat."""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from typing import Any
from urllib.parse import parse_qs, urlencode

from joserfc import jwt
from joserfc.jwk import ECKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tests.console.conftest import serving
from tests.net.background import in_thread

CLIENT = "firearrow"
SUBJECT = "4711"


@dataclass
class FakeProvider:
    """Answers of the provider. ``forge`` makes the ID token from its claims; without one, the provider is honest.

    A provider that ``asks`` shows a page with the link "Go on".
    """

    issuer: str = ""
    claims: dict[str, Any] = field(default_factory=dict)
    userinfo: dict[str, Any] | None = None
    refusal: dict[str, str] | None = None
    algorithms: tuple[str, ...] = ("ES256",)
    forge: Callable[[FakeProvider, dict[str, Any]], str | None] | None = None
    asks: bool = False
    key: ECKey = field(default_factory=lambda: ECKey.generate_key("P-256", {"kid": "first"}))
    asked: dict[str, str] = field(default_factory=dict)

    def signed(self, claims: Mapping[str, Any], key: ECKey | None = None) -> str:
        """Give a token with claims."""
        return jwt.encode({"alg": "ES256", "kid": "first"}, dict(claims), key or self.key)

    def application(self) -> Starlette:
        """Give the application."""
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._metadata),
                Route("/keys", self._keys),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/userinfo", self._userinfo),
                Route("/link", self._link),
            ]
        )

    async def _metadata(self, _: Request) -> JSONResponse:
        ends = {
            "jwks_uri": "keys", "authorization_endpoint": "authorize", "token_endpoint": "token",
            "userinfo_endpoint": "userinfo",
        }  # fmt: skip
        found: dict[str, Any] = {name: f"{self.issuer}/{end}" for name, end in ends.items()}
        found |= {"issuer": self.issuer, "id_token_signing_alg_values_supported": list(self.algorithms)}
        return JSONResponse(found)

    async def _keys(self, _: Request) -> JSONResponse:
        return JSONResponse({"keys": [self.key.as_dict(private=False)]})

    async def _authorize(self, request: Request) -> Response:
        self.asked = dict(request.query_params)
        answer = self.refusal or {"code": "a-code"}
        back = f"{self.asked['redirect_uri']}?{urlencode({**answer, 'state': self.asked['state']})}"
        return _page(back) if self.asks else RedirectResponse(back)

    async def _link(self, request: Request) -> Response:
        return _page(request.query_params["to"])

    async def _token(self, request: Request) -> JSONResponse:
        form = {name: texts[0] for name, texts in parse_qs((await request.body()).decode()).items()}
        challenge = urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        assert challenge == self.asked["code_challenge"]
        assert form["redirect_uri"] == self.asked["redirect_uri"]
        now = int(time.time())
        claims = {
            "iss": self.issuer, "aud": CLIENT, "sub": SUBJECT, "iat": now, "exp": now + 60,
            "nonce": self.asked["nonce"], **self.claims,
        }  # fmt: skip
        token = self.forge(self, claims) if self.forge is not None else self.signed(claims)
        answer = {"access_token": "a-token", "token_type": "Bearer", "expires_in": 60}
        return JSONResponse(answer if token is None else {**answer, "id_token": token})

    async def _userinfo(self, request: Request) -> JSONResponse:
        assert request.headers["authorization"] == "Bearer a-token"
        return JSONResponse(self.userinfo or {"sub": SUBJECT})


def _page(link: str) -> Response:
    return HTMLResponse(f'<a href="{escape(link)}">Go on</a>')


@contextmanager
def provider(**settings: Any) -> Iterator[FakeProvider]:
    """Serve a provider for a ``with`` block, at another site than consoles of tests."""
    fake = FakeProvider(**settings)
    with in_thread(lambda: serving(fake.application())) as address:
        fake.issuer = address.replace("127.0.0.1", "localhost")
        yield fake
