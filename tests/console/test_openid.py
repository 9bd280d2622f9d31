"""Sign-in by OpenID Connect: whom a provider's answer lets in, as whom, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey
from joserfc.jws import JWSRegistry

from firearrow.cli.cluster.options import ClusterOptions
from firearrow.clock import SystemClock
from firearrow.console.app import Console
from firearrow.console.changes import ChangeLog
from firearrow.console.clusters import Clusters
from firearrow.console.openid import SESSION_SECONDS, Provider, load
from firearrow.errors import ConfigError
from firearrow.testing import BlockingCluster, EmbeddedCluster
from tests.console.conftest import browsing, token
from tests.console.provider import CLIENT, SUBJECT, FakeProvider, provider
from tests.console.test_signin import ROOT, SECRET, USERS

NINA = {"preferred_username": "nina", "groups": ["staff", "admins"]}
ROLES = """
[[roles]]
value = "admins"
access-key = "tester"
secret-file = "{directory}/role.secret"

[[roles]]
value = "lookers"
access-key = "tester"
secret-file = "{directory}/role.secret"
read-only = true
"""
CLIENT_SECRET = "a secret that the provider knows, too"


class Clock(SystemClock):
    """Clock that a test may put forward, in seconds."""

    __slots__ = ("ahead",)

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


def secret(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


def file(directory: Path, issuer: str, more: str = ROLES) -> Path:
    """Write the file with the provider and its roles."""
    secret(directory / "role.secret", SECRET)
    secret(directory / "client.secret", CLIENT_SECRET)
    path = directory / "openid.toml"
    head = f'issuer = "{issuer}"\nclient-id = "{CLIENT}"\nclient-secret-file = "{directory}/client.secret"\n'
    path.write_text(head + more.format(directory=directory))
    return path


@pytest.fixture(scope="module")
def guarded() -> Iterator[BlockingCluster]:
    """Cluster whose brokers know one user, as whom roles act."""
    with EmbeddedCluster(config=USERS) as running:
        yield running


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    """Provider that knows Nina."""
    with provider(claims=dict(NINA)) as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def visitor(guarded: BlockingCluster, fake: FakeProvider, clock: Clock, tmp_path: Path) -> Iterator[httpx.Client]:
    """Browser of a console that asks the provider."""
    with browsing(console(guarded.name_server, fake, clock, tmp_path)) as client:
        yield client


def console(name_server: str, fake: FakeProvider, clock: Clock, directory: Path) -> Console:
    clusters = Clusters(ClusterOptions(name_server=name_server), clock, needs_users=True)
    asked = Provider(load(file(directory, fake.issuer), clusters.names), clusters.names)
    return Console(clusters, ChangeLog(directory, clock), "key", clock, provider=asked)


def sign_in(visitor: httpx.Client, wanted: str = "/cluster/topics") -> httpx.Response:
    return visitor.get("/cluster/sign-in/openid", params={"next": wanted})


def test_the_provider_lets_a_person_in_as_the_user_of_the_role(visitor: httpx.Client, tmp_path: Path) -> None:
    asked = visitor.get("/cluster/topics")
    assert asked.url.path == "/cluster/sign-in"
    assert "Sign in with localhost:" in asked.text
    done = sign_in(visitor)
    assert (done.status_code, done.url.path) == (200, "/cluster/topics")
    assert "nina as tester · sign out" in done.text
    created = visitor.post("/cluster/do/topic-create", data={"topic": "mine", "step": "apply", "csrf": token(visitor)})
    assert created.status_code == 200
    assert visitor.get("/cluster/topics/mine").status_code == 200
    log = (tmp_path / "changes.jsonl").read_text()
    assert '"user":"nina as tester","cluster":"cluster","operation":"topic create"' in log
    assert '"user":"nina","cluster":"cluster","operation":"sign in"' in log
    assert SECRET not in log
    visitor.post("/cluster/sign-out", data={"csrf": token(visitor)})
    assert visitor.get("/cluster/topics").url.path == "/cluster/sign-in"


def test_a_password_is_taken_beside_a_provider(visitor: httpx.Client) -> None:
    given = {"user": ROOT, "password": SECRET, "next": "/cluster/topics", "csrf": token(visitor)}
    assert visitor.post("/cluster/sign-in", data=given).url.path == "/cluster/topics"


def test_a_role_that_only_looks_changes_nothing(visitor: httpx.Client, fake: FakeProvider) -> None:
    fake.claims["groups"] = "lookers"
    assert "only shows" in sign_in(visitor).text
    given = {"topic": "never", "step": "apply", "csrf": token(visitor)}
    refused = visitor.post("/cluster/do/topic-create", data=given)
    assert refused.status_code == 403
    assert "Your role may only look" in refused.text
    assert visitor.get("/cluster/topics/never").status_code == 404


@pytest.mark.parametrize("groups", [["staff"], [], "Admins", {"admins": True}, [["admins"]], 7, None])
def test_nobody_comes_in_without_a_role(
    visitor: httpx.Client, fake: FakeProvider, groups: object, tmp_path: Path
) -> None:
    fake.claims["groups"] = groups
    refused = sign_in(visitor)
    assert refused.status_code == 403
    assert "nina has no role for the cluster cluster" in refused.text
    assert visitor.get("/cluster/topics").url.path == "/cluster/sign-in"
    assert '"state":"failed","reason":"nina has no role' in (tmp_path / "changes.jsonl").read_text()


def test_roles_come_from_the_userinfo_if_the_token_has_none(visitor: httpx.Client, fake: FakeProvider) -> None:
    fake.claims.pop("groups")
    fake.userinfo = {"sub": SUBJECT, "groups": ["admins"]}
    assert sign_in(visitor).url.path == "/cluster/topics"


def test_the_userinfo_of_somebody_else_gives_no_role(visitor: httpx.Client, fake: FakeProvider) -> None:
    fake.claims.pop("groups")
    fake.userinfo = {"sub": "another", "groups": ["admins"]}
    assert "no role" in sign_in(visitor).text


def unsigned(_: FakeProvider, claims: dict[str, Any]) -> str:
    return jwt.encode({"alg": "none"}, claims, OctKey.import_key(""), registry=JWSRegistry(algorithms=["none"]))


def signed_with_the_clients_secret(_: FakeProvider, claims: dict[str, Any]) -> str:
    return jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(CLIENT_SECRET))


def changed(**claims: object) -> Callable[[FakeProvider, dict[str, Any]], str]:
    """Forge a token that the provider has signed for another purpose."""
    return lambda fake, honest: fake.signed({name: it for name, it in {**honest, **claims}.items() if it is not None})


FORGED: dict[str, Callable[[FakeProvider, dict[str, Any]], str | None]] = {
    "another key": lambda fake, claims: fake.signed(claims, ECKey.generate_key("P-256", {"kid": "first"})),
    "unsigned": unsigned,
    "client's secret": signed_with_the_clients_secret,
    "no token": lambda _, __: None,
    "no JWT": lambda _, __: "nonsense",
    "another audience": changed(aud="another"),
    "another audience, authorized": changed(aud="another", azp=CLIENT),
    "another issuer": changed(iss="https://elsewhere.test"),
    "another sign-in": changed(nonce="another"),
    "no nonce": changed(nonce=None),
    "expired": changed(exp=1_000_000_000),
    "nobody": changed(sub=None),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_token_that_the_provider_has_not_made_for_this_sign_in_is_refused(
    visitor: httpx.Client, fake: FakeProvider, forgery: str
) -> None:
    fake.algorithms = ("ES256", "HS256", "none")
    fake.forge = FORGED[forgery]
    refused = sign_in(visitor)
    assert refused.status_code == 403
    assert f"{fake.issuer.partition('//')[2]}" in refused.text
    assert visitor.get("/cluster/topics").url.path == "/cluster/sign-in"


def test_a_refusal_of_the_provider_is_shown(visitor: httpx.Client, fake: FakeProvider) -> None:
    fake.refusal = {"error": "access_denied", "error_description": "not a member of <b>this</b> client"}
    refused = sign_in(visitor)
    assert refused.status_code == 403
    assert "access_denied: not a member of &lt;b&gt;this&lt;/b&gt; client" in refused.text


def test_an_answer_counts_once_and_only_in_the_browser_that_began(visitor: httpx.Client, fake: FakeProvider) -> None:
    sign_in(visitor)
    answer = {"code": "a-code", "state": fake.asked["state"]}
    assert "has not begun in this browser" in visitor.get("/openid/callback", params=answer).text
    with httpx.Client(base_url=visitor.base_url, timeout=30) as other:
        refused = other.get("/openid/callback", params=answer)
        assert refused.status_code == 403
        assert "has not begun in this browser" in refused.text
        said = {"error": "x", "error_description": "call 555"}
        assert "call 555" not in other.get("/openid/callback", params=said).text


def test_without_the_provider_the_page_says_so(guarded: BlockingCluster, clock: Clock, tmp_path: Path) -> None:
    with provider() as gone:
        pass
    with browsing(console(guarded.name_server, gone, clock, tmp_path)) as client:
        refused = sign_in(client)
        assert refused.status_code == 403
        assert "localhost" in refused.text
        assert 'name="password"' in refused.text


def test_a_provider_with_another_name_is_refused(visitor: httpx.Client, fake: FakeProvider) -> None:
    fake.issuer = fake.issuer.replace("localhost", "127.0.0.1")
    assert "it calls itself" in sign_in(visitor).text


def test_a_sign_in_ends_after_twelve_hours_also_for_open_pages(visitor: httpx.Client, clock: Clock) -> None:
    sign_in(visitor)
    with visitor.stream("GET", "/cluster/topics", headers={"accept": "text/event-stream"}) as stream:
        lines = stream.iter_lines()
        next(lines)
        clock.ahead = SESSION_SECONDS - 60
        assert visitor.get("/cluster/topics").url.path == "/cluster/topics"
        clock.ahead = SESSION_SECONDS
        assert visitor.get("/cluster/topics").url.path == "/cluster/sign-in"
        list(lines)  # ends


FAULTS = {
    "no TOML": ("issuer = ", "Invalid value"),
    "unknown key": ('issuer = "https://a.test"\nclient-id = "c"\nroles = []\ngroups = 1', "unknown field `groups`"),
    "no roles": ('issuer = "https://a.test"\nclient-id = "c"', "missing required field `roles`"),
    "no encryption": ('issuer = "http://a.test"\nclient-id = "c"\nroles = []', "begins with https://"),
    "no such cluster": (
        'issuer = "https://a.test"\nclient-id = "c"\nroles = [{value = "v", clusters = ["nowhere"]}]',
        "no cluster is named nowhere; there are cluster",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_cannot_be_used_is_refused_in_words(fault: str, tmp_path: Path) -> None:
    text, said = FAULTS[fault]
    path = tmp_path / "openid.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"openid\.toml") as caught:
        load(path, ["cluster"])
    assert said in str(caught.value)


def test_a_role_without_its_secret_is_refused_at_the_start(tmp_path: Path) -> None:
    text = 'issuer = "https://a.test"\nclient-id = "c"\nroles = [{value = "v", access-key = "nina"}]'
    (tmp_path / "openid.toml").write_text(text)
    with pytest.raises(ConfigError, match="'nina'"):
        Provider(load(tmp_path / "openid.toml", ["cluster"]), ["cluster"])


def test_a_claim_may_be_inside_objects_and_a_role_of_one_cluster_alone(tmp_path: Path, fake: FakeProvider) -> None:
    path = tmp_path / "openid.toml"
    path.write_text(
        f'issuer = "{fake.issuer}"\nclient-id = "c"\nclaim = "realm_access.roles"\n'
        'roles = [{value = "ops", clusters = ["one"]}, {value = "all", read-only = true}]'
    )
    asked = Provider(load(path, ["one", "two"]), ["one", "two"])
    ops_and_all = asked.users(asked.known({"sub": "s", "realm_access": {"roles": ["all", "ops"]}}), 0.0)
    assert {name: it.read_only for name, it in ops_and_all.items()} == {"one": False, "two": True}
    named_so = asked.known({"email": "e@a.test", "sub": "s", "realm_access.roles": ["all"]})
    assert named_so == ("e@a.test", ("all",))
