"""Users of ACL 1 may do under ACL 2.0 what they might before."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from firearrow.auth.metadata import Metadata
from firearrow.auth.migration import accounts_below, migrate
from firearrow.auth.setup import metadata_of
from firearrow.broker.config import BrokerConfig
from firearrow.errors import ConfigError
from firearrow.events import Events
from tests.loglines import events

# As RocketMQ 4's own file has it.
PLAIN = """
globalWhiteRemoteAddresses:
  - 10.10.103.*
accounts:
  - accessKey: RocketMQ
    secretKey: 01234567
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
      - nothing
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB
  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    admin: true
"""


def written(home: Path, **files: str) -> Path:
    for name, text in files.items():
        path = home / "conf" / f"{name.replace('__', '/')}.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return home


def test_accounts_become_users_and_policies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    accounts = accounts_below(written(tmp_path, plain_acl=PLAIN))
    metadata = Metadata(tmp_path / "config", Events())
    assert migrate(metadata, accounts) == ["RocketMQ", "rocketmq2"]
    users = {name: (user.password, user.is_super) for name, user in metadata.users.items()}
    assert users == {"RocketMQ": ("01234567", False), "rocketmq2": ("12345678", True)}
    acl = metadata.acl_of("RocketMQ")
    assert acl is not None
    found = [
        (policy.policy_type, entry.resource, entry.actions, entry.decision)
        for policy in acl.info().policies or []
        for entry in policy.entries or []
    ]
    assert found == [
        ("Custom", "Topic:topicA", ["All"], "Deny"),
        ("Custom", "Topic:topicB", ["Pub", "Sub"], "Allow"),
        ("Custom", "Topic:topicC", ["Sub"], "Allow"),
        ("Custom", "Group:groupA", ["All"], "Deny"),
        ("Custom", "Group:groupB", ["Pub", "Sub"], "Allow"),
        ("Default", "Topic:*", ["All"], "Deny"),
        ("Default", "Group:*", ["Sub"], "Allow"),
    ]
    assert metadata.acl_of("rocketmq2") is None
    warned = [vars(it) for it in caplog.records if it.levelname == "WARNING"]
    assert [it.get("user") or Path(it["path"]).name for it in warned] == ["plain_acl.yml", "rocketmq2"]
    assert migrate(metadata, accounts) == []
    metadata.close()


def test_the_first_account_of_a_name_counts_and_a_user_stays(tmp_path: Path) -> None:
    def account(name: str, secret: str) -> str:
        return f"accounts: [{{accessKey: {name}, secretKey: {secret}}}]"

    home = written(
        tmp_path,
        acl__a=account("x", "first"),
        acl__deep__b=account("x", "second"),
        plain_acl=account("root", "third"),
        tools=account("y", "not an account"),
    )
    config = BrokerConfig(
        init_authentication_user='{"username":"root","password":"own"}', migrate_auth_from_v1_enabled=True
    )
    metadata = metadata_of(config, tmp_path / "config", Events(), home)
    metadata.close()
    assert {name: user.password for name, user in metadata.users.items()} == {"root": "own", "x": "first"}


def test_one_account_that_can_not_be_hinders_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "accounts: [{accessKey: x, secretKey: ' '}, {accessKey: y, secretKey: s}]"
    metadata = Metadata(tmp_path / "config", Events())
    assert migrate(metadata, accounts_below(written(tmp_path, plain_acl=text))) == ["y"]
    assert "user of ACL 1 is not taken over" in caplog.text
    metadata.close()


def test_a_word_that_acl_1_does_not_know_denies_as_it_did_there(tmp_path: Path) -> None:
    text = (
        "accounts: [{accessKey: x, secretKey: s, defaultTopicPerm: ANY, "
        "topicPerms: [a=PUBSUB, 'b= '], groupPerms: [g=sub]}]"
    )
    metadata = Metadata(tmp_path / "config", Events())
    assert migrate(metadata, accounts_below(written(tmp_path, plain_acl=text))) == ["x"]
    acl = metadata.acl_of("x")
    assert acl is not None
    entries = [it for policy in acl.info().policies or [] for it in policy.entries or []]
    assert {it.resource: (it.actions, it.decision) for it in entries} == dict.fromkeys(
        ["Topic:a", "Topic:b", "Group:g", "Topic:*"], (["All"], "Deny")
    )
    metadata.close()


def test_addresses_that_needed_no_signature_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = (
        "globalWhiteRemoteAddresses: [10.0.0.*]\naccounts: [{accessKey: x, secretKey: s, whiteRemoteAddress: 10.0.0.1}]"
    )
    metadata = Metadata(tmp_path / "config", Events())
    assert migrate(metadata, accounts_below(written(tmp_path, plain_acl=text))) == ["x"]
    assert events(caplog).count("addresses that needed no signature are not taken over") == 2
    metadata.close()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("accounts: [secret", "is no YAML, see line 1"),
        ("a: b: secret", "is no YAML, see line 1"),
        ("[" * 5000, "is no YAML"),
        ("accounts: secret", "is no file of ACL 1"),
        ("accounts: [{accessKey: x}]", "is no file of ACL 1"),
        ("accounts: [{accessKey: x, secretKey: secret, admin: perhaps}]", "is no file of ACL 1"),
    ],
)
def test_what_can_not_be_read_is_told_without_secrets(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        accounts_below(written(tmp_path, plain_acl=text))
    assert why in str(caught.value)
    assert "secret`" not in str(caught.value).replace("`secretKey`", "")


@pytest.mark.parametrize("text", ["", "accounts:", "globalWhiteRemoteAddresses: [10.0.0.1]"])
def test_a_file_may_have_no_accounts(tmp_path: Path, text: str) -> None:
    assert accounts_below(written(tmp_path, plain_acl=text)) == []


def test_without_files_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert accounts_below(tmp_path) == []


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"firearrow\[yaml\]"):
        accounts_below(written(tmp_path, plain_acl=PLAIN))


def test_it_must_be_known_where_they_are(tmp_path: Path) -> None:
    config = BrokerConfig(migrate_auth_from_v1_enabled=True)
    with pytest.raises(ConfigError, match="migrateAuthFromV1Enabled=true needs ROCKETMQ_HOME"):
        metadata_of(config, tmp_path / "config", Events(), None)
