"""A configuration's own users are made by a start, and it is told what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firearrow.auth.setup import credentials_of, metadata_of
from firearrow.broker.access.control import access_of
from firearrow.broker.config import BrokerConfig
from firearrow.errors import ConfigError
from firearrow.events import Events
from firearrow.net.access import OPEN
from firearrow.wire.signature import Credentials

FIRST = '{"username":"root","password":"one"}'
INNER = '{"accessKey":"inner","secretKey":"two","securityToken":"t"}'


def users(root: Path, **config: Any) -> dict[str, tuple[str | None, bool]]:
    metadata = metadata_of(BrokerConfig(**config), root, Events())
    metadata.close()
    return {name: (user.password, user.is_super) for name, user in metadata.users.items()}


def test_both_are_super_users_and_made_once(tmp_path: Path) -> None:
    both = {"init_authentication_user": FIRST, "inner_client_authentication_credentials": INNER}
    expected = {"root": ("one", True), "inner": ("two", True)}
    assert users(tmp_path, **both) == expected
    assert users(tmp_path, init_authentication_user=FIRST.replace("one", "else")) == expected
    assert users(tmp_path) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("root:secret", "can't be read"),
        ('{"username":"root","secret":1}', "can't be read"),
        ('{"username":" ","password":"secret"}', "username can not be blank"),
        ('{"username":"root","password":" "}', "password can not be blank"),
    ],
)
def test_what_is_wrong_is_told_without_the_secret(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        users(tmp_path, init_authentication_user=text)
    assert str(caught.value).startswith("initAuthenticationUser")
    assert why in str(caught.value)
    assert "secret" not in str(caught.value).replace("`secret`", "")
    assert users(tmp_path) == {}  # the databases are free again


def test_with_the_inner_credentials_the_broker_signs_its_requests() -> None:
    assert credentials_of(INNER) == Credentials("inner", "two", "t")
    assert access_of(BrokerConfig()) == OPEN
    access = access_of(BrokerConfig(inner_client_authentication_credentials=INNER))
    assert access.credentials == Credentials("inner", "two", "t")


def test_permissions_without_signatures_are_refused() -> None:
    with pytest.raises(ConfigError, match="authorizationEnabled=true needs authenticationEnabled"):
        BrokerConfig(authorization_enabled=True)
