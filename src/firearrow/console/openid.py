"""Sign-in by OpenID Connect: a provider identifies a user, and a file gives each role of the provider its rights.

    issuer = "https://login.example.com/realms/ops"
    client-id = "firearrow"
    client-secret-file = "/etc/firearrow/client.secret"
    claim = "groups"

    [[roles]]
    value = "messaging-admins"
    access-key = "console"
    secret-file = "/etc/firearrow/console.secret"

    [[roles]]
    value = "developers"
    clusters = ["staging"]
    read-only = true

The brokers know no provider. So a role has a user of their access control, as whom the console asks them; without
one, the console asks as nobody. The first role counts that has a value of the claim and the cluster.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx2
import msgspec
from authlib.integrations.starlette_client import OAuth, OAuthError
from joserfc.errors import JoseError
from starlette.requests import Request
from starlette.responses import Response

from firearrow.cli.cluster.contexts import credentials_of
from firearrow.cli.output.sentences import without_number
from firearrow.console.signin import CALLBACK, LOCAL_HOSTS, NotAdmitted, SignedIn
from firearrow.errors import ConfigError, naming
from firearrow.wire.signature import Credentials

SESSION_SECONDS: Final = 12 * 60 * 60.0
"""Longest session: what a provider takes from somebody counts at the next sign-in."""
ANSWER_SECONDS: Final = 10.0
"""Longest wait for the provider."""
NAME: Final = "openid"
NAMES: Final = ("preferred_username", "email", "sub")
"""Claims with the name of a person; the first that there is counts."""
SHARED_KEYS: Final = "HS"
"""Prefix of algorithms for signatures that anybody with the client's secret can make."""


class Role(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """A value of the claim, and as whom the console acts for those who have it; in all clusters if none is named."""

    value: str
    clusters: tuple[str, ...] = ()
    access_key: str | None = None
    secret_env: str | None = None
    secret_file: str | None = None
    read_only: bool = False

    def credentials(self) -> Credentials | None:
        """Give the user of the brokers; ConfigError if the secret is missing."""
        return credentials_of(self.access_key, self.secret_env, self.secret_file)


class Settings(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The file. ``address`` is the console's as browsers see it, if a proxy in front of it hides that."""

    issuer: str
    client_id: str
    roles: tuple[Role, ...]
    client_secret_env: str | None = None
    client_secret_file: str | None = None
    claim: str = "groups"
    scope: str = "openid profile email"
    address: str | None = None


def load(path: Path, clusters: Collection[str]) -> Settings:
    """Read the file; ConfigError names the fault."""
    with naming(path):
        text = path.read_text(encoding="utf-8")
    try:
        settings = msgspec.convert(tomllib.loads(text), Settings)
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}") from None
    issuer = urlsplit(settings.issuer)
    if issuer.scheme != "https" and not (issuer.scheme == "http" and issuer.hostname in LOCAL_HOSTS):
        raise ConfigError(f"{path}: the issuer's address begins with https://, or is one of this machine")
    if unknown := {name for role in settings.roles for name in role.clusters} - set(clusters):
        raise ConfigError(f"{path}: no cluster is named {', '.join(sorted(unknown))}; there are {', '.join(clusters)}")
    return settings


class Person(NamedTuple):
    """Somebody whom the provider knows: the name, and the values of the claim."""

    name: str
    values: tuple[str, ...]


class Provider:
    """A provider of sign-ins. Raises ConfigError for a role whose secret is missing."""

    def __init__(self, settings: Settings, clusters: Collection[str]) -> None:
        self.host: Final = str(urlsplit(settings.issuer).netloc)
        self._settings: Final = settings
        self._clusters: Final = clusters
        self._roles: Final = [(role, role.credentials()) for role in settings.roles]
        has_secret = settings.client_secret_env or settings.client_secret_file
        secret = credentials_of(
            settings.client_id if has_secret else None, settings.client_secret_env, settings.client_secret_file
        )
        self._client: Final = OAuth().register(
            NAME,
            client_id=settings.client_id,
            client_secret=secret.secret_key if secret is not None else None,
            server_metadata_url=f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration",
            client_kwargs={
                "scope": settings.scope,
                "code_challenge_method": "S256",
                "timeout": ANSWER_SECONDS,
                "leeway": 0,  # the access token is used at once, and some live for a minute only
                "token_endpoint_auth_method": "client_secret_basic" if secret is not None else "none",
            },
        )

    async def ask(self, request: Request, state: str) -> Response:
        """Send a browser to the provider, which answers with ``state``. Raises NotAdmitted without the provider."""
        address = self._settings.address or str(request.base_url)
        try:
            await self._load()
            answer: Response = await self._client.authorize_redirect(
                request, f"{address.rstrip('/')}{CALLBACK}", state=state
            )
        except (httpx2.HTTPError, ValueError, RuntimeError) as error:
            raise self._failed(error) from None
        return answer

    async def person(self, request: Request) -> Person:
        """Give the person of an answer that a browser brings. Raises NotAdmitted for one that can't be believed."""
        try:
            await self._load()
            token = await self._client.authorize_access_token(
                request,
                claims_options={
                    "iss": {"essential": True, "value": self._settings.issuer},
                    "aud": {"essential": True, "value": self._settings.client_id},
                },
            )
            claims = token.get("userinfo")
            if claims is None:
                raise NotAdmitted(f"{self.host} sent no ID token")
            if not _values(claims, self._settings.claim) and "userinfo_endpoint" in self._client.server_metadata:
                more = await self._client.userinfo(token=token)
                claims = {**more, **claims} if more.get("sub") == claims["sub"] else claims
        except (OAuthError, JoseError, httpx2.HTTPError, ValueError, RuntimeError, KeyError) as error:
            raise self._failed(error) from None
        return self.known(claims)

    def known(self, claims: Mapping[str, Any]) -> Person:
        """Give the person of some claims, which the provider has made."""
        name = next(str(claims[it]) for it in NAMES if claims.get(it))
        return Person(name, _values(claims, self._settings.claim))

    def users(self, person: Person, now: float) -> dict[str, SignedIn]:
        """Give the users as whom a person acts from a monotonic time on, by cluster."""
        found: dict[str, SignedIn] = {}
        for role, user in self._roles:
            if role.value in person.values:
                name = person.name if user is None else f"{person.name} as {user.access_key}"
                signed_in = SignedIn(name, user, read_only=role.read_only, until=now + SESSION_SECONDS)
                for cluster in role.clusters or self._clusters:
                    found.setdefault(cluster, signed_in)
        return found

    async def _load(self) -> None:
        """Read the provider's own description once, and check it."""
        metadata = await self._client.load_server_metadata()
        if metadata.get("issuer") != self._settings.issuer:
            raise ValueError(f"it calls itself {metadata.get('issuer')!r}")
        offered = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
        metadata["id_token_signing_alg_values_supported"] = [
            it for it in offered if it != "none" and not it.startswith(SHARED_KEYS)
        ]

    def _failed(self, error: Exception) -> NotAdmitted:
        return NotAdmitted(f"{self.host}: {without_number(str(error)) or type(error).__name__}")


def _values(claims: Mapping[str, Any], claim: str) -> tuple[str, ...]:
    """Give the values of a claim; dots in its name lead into objects, unless a claim has the whole name."""
    found: Any = claims.get(claim)
    if found is None:
        found = claims
        for part in claim.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    values = found if isinstance(found, list) else [found]
    return tuple(it for it in values if isinstance(it, str))
