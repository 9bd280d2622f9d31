"""What is said of users is kept, and refused in upstream's words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from firearrow.auth.metadata import ACLS, USERS, Metadata, RightsChanged
from firearrow.auth.model import (
    SUBJECT_USER,
    Acl,
    Action,
    Environment,
    Policy,
    PolicyDecision,
    PolicyEntry,
    PolicyType,
    Resource,
    Subject,
    User,
    UserStatus,
    UserType,
)
from firearrow.database import DEFAULT, Database, FamilyOptions, MiB
from firearrow.errors import BrokerError, ConfigError
from firearrow.events import Events

SUBJECT = Subject(subject_type=SUBJECT_USER, username="u")


@contextmanager
def opened(root: Path, events: Events | None = None) -> Iterator[Metadata]:
    metadata = Metadata(root, events or Events())
    try:
        yield metadata
    finally:
        metadata.close()


def user(name: str = "u", password: str | None = "secret", **known: Any) -> User:
    made = User(username=name, password=password, subject_type=SUBJECT_USER)
    return replace(made, **known)


def entry(resource: str, *actions: Action, decision: PolicyDecision = PolicyDecision.ALLOW) -> PolicyEntry:
    return PolicyEntry(
        actions=list(actions), decision=decision, environment=Environment(), resource=Resource.of(resource)
    )


def custom(*entries: PolicyEntry) -> list[Policy]:
    return [Policy(entries=list(entries), policy_type=PolicyType.CUSTOM)]


def refused(call: Callable[[], object], remark: str, code: int = 16) -> None:
    with pytest.raises(BrokerError) as caught:
        call()
    assert (caught.value.code, caught.value.remark) == (code, remark)


def test_users_are_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as metadata:
        metadata.create_user(user("b"))
        metadata.create_user(user("a", user_type=UserType.SUPER, user_status=UserStatus.DISABLE))
        assert metadata.unsynced
        metadata.sync()
        assert not metadata.unsynced
        found = [(it.username, it.user_type, it.user_status) for it in metadata.list_users(None)]
        assert found == [("a", UserType.SUPER, UserStatus.DISABLE), ("b", UserType.NORMAL, UserStatus.ENABLE)]
        before = dict(metadata.users)
    with opened(tmp_path) as metadata:
        assert metadata.users == before
        assert [it.username for it in metadata.list_users("b")] == ["b"]
        assert metadata.list_users("x") == []
        assert len(metadata.list_users(" ")) == 2


def test_only_what_is_said_of_a_user_changes(tmp_path: Path) -> None:
    with opened(tmp_path) as metadata:
        metadata.create_user(user())
        metadata.update_user(user(password=None, user_status=UserStatus.DISABLE))
        metadata.update_user(user(password=" "))
        changed = metadata.user("u")
        assert changed is not None
        assert (changed.password, changed.user_status) == ("secret", UserStatus.DISABLE)
        assert changed.user_type == UserType.NORMAL
        metadata.update_user(user(password="new"))
        assert metadata.users["u"].password == "new"


def test_users_that_can_not_be(tmp_path: Path) -> None:
    with opened(tmp_path) as metadata:
        refused(lambda: metadata.create_user(user(" ")), "username can not be blank")
        refused(lambda: metadata.create_user(user(password=" ")), "password can not be blank")
        refused(lambda: metadata.create_user(user(password=None)), "password can not be blank")
        refused(lambda: metadata.update_user(user()), "The user is not exist")
        metadata.create_user(user())
        refused(lambda: metadata.create_user(user(password="other")), "The user is existed")
        assert metadata.users["u"].password == "secret"
        refused(lambda: metadata.delete_user(""), "username can not be blank")
        metadata.delete_user("nobody")


def test_who_gets_the_name_of_a_deleted_user_gets_no_rights_with_it(tmp_path: Path) -> None:
    with opened(tmp_path) as metadata:
        metadata.create_user(user())
        metadata.put_policies(SUBJECT, custom(entry("*", Action.ALL)))
        metadata.delete_user("u")
        refused(lambda: metadata.policies(SUBJECT), "The subject is not exist.")
        metadata.create_user(user())
        assert metadata.policies(SUBJECT) is None
    with opened(tmp_path) as metadata:
        assert metadata.list_policies(None, None) == []


def test_policies_are_merged_by_type_and_resource(tmp_path: Path) -> None:
    first = entry("Topic:T", Action.PUB), entry("Group:g", Action.SUB)
    denied = entry("Topic:T", Action.ALL, decision=PolicyDecision.DENY)
    default = Policy(entries=[entry("*", Action.GET)], policy_type=PolicyType.DEFAULT)
    with opened(tmp_path) as metadata:
        metadata.create_user(user())
        metadata.put_policies(SUBJECT, custom(*first))
        metadata.put_policies(SUBJECT, [*custom(denied, entry("Topic:*", Action.GET)), default])
        expected = [*custom(denied, first[1], entry("Topic:*", Action.GET)), default]
        found = metadata.policies(SUBJECT)
        assert found == Acl(subject=SUBJECT, policies=expected)
    with opened(tmp_path) as metadata:
        assert metadata.policies(SUBJECT) == found


def test_policies_can_be_deleted_one_by_one(tmp_path: Path) -> None:
    with opened(tmp_path) as metadata:
        metadata.create_user(user())
        metadata.put_policies(SUBJECT, custom(entry("Topic:T", Action.PUB), entry("Group:g", Action.SUB)))
        metadata.delete_policies(SUBJECT, None, Resource.of("Topic:other"))
        metadata.delete_policies(SUBJECT, PolicyType.DEFAULT, Resource.of("Topic:T"))
        assert len((metadata.acl_of("u") or Acl(subject=SUBJECT)).policies or []) == 1
        metadata.delete_policies(SUBJECT, None, Resource.of("Topic:T"))
        found = metadata.acl_of("u")
        assert found is not None
        assert found.policies == custom(entry("Group:g", Action.SUB))
        metadata.delete_policies(SUBJECT, PolicyType.CUSTOM, Resource.of("Group:g"))
        assert metadata.acl_of("u") is None
        refused(lambda: metadata.delete_policies(SUBJECT), "The acl is not exist.")


def test_policies_are_found_by_parts_of_names(tmp_path: Path) -> None:
    with opened(tmp_path) as metadata:
        for name in ("anna", "bert"):
            metadata.create_user(user(name))
            metadata.put_policies(
                Subject(subject_type=SUBJECT_USER, username=name),
                custom(entry("Topic:orders", Action.PUB), entry("Group:g", Action.SUB)),
            )
        assert [it.subject.username for it in metadata.list_policies("ann", None)] == ["anna"]
        found = metadata.list_policies(None, "order")
        assert [it.policies for it in found] == [custom(entry("Topic:orders", Action.PUB))] * 2
        assert metadata.list_policies(None, "payments") == []
        assert len(metadata.list_policies("User:", " ")) == 2


def test_policies_that_can_not_be(tmp_path: Path) -> None:
    policy = custom(entry("Topic:T", Action.PUB))
    with opened(tmp_path) as metadata:
        refused(lambda: metadata.put_policies(SUBJECT, policy), "The subject of User:u is not exist.")
        refused(
            lambda: metadata.put_policies(None, policy), "An system error occurred, please try again later.", code=1
        )
        refused(lambda: metadata.delete_policies(None), "The subject is null.")
        refused(lambda: metadata.policies(None), "The subject is null.")
        refused(lambda: metadata.put_policies(SUBJECT, []), "The policies is empty.")


def test_changes_are_told(tmp_path: Path) -> None:
    told: list[str] = []
    events = Events()
    events.listen(RightsChanged, lambda changed: told.append(changed.username))
    with opened(tmp_path, events) as metadata:
        metadata.create_user(user())
        metadata.put_policies(SUBJECT, custom(entry("*", Action.ALL)))
        metadata.update_user(user(password="p"))
        refused(lambda: metadata.create_user(user()), "The user is existed")
        assert told == ["u", "u", "u"]
        metadata.delete_user("u")
        assert told == ["u"] * 5


def test_a_change_that_is_not_written_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with opened(tmp_path) as metadata:
        metadata.create_user(user())
        monkeypatch.setattr(Database, "write", full)
        with pytest.raises(OSError, match="No space"):
            metadata.create_user(user("v"))
        with pytest.raises(OSError, match="No space"):
            metadata.put_policies(SUBJECT, custom(entry("*", Action.ALL)))
        assert [*metadata.users] == ["u"]
        assert metadata.acl_of("u") is None


def test_the_disk_may_refuse_a_sync_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise OSError(5, "broken")

    with opened(tmp_path) as metadata:
        metadata.create_user(user())
        with monkeypatch.context() as patch:
            patch.setattr(Database, "sync", broken)
            with pytest.raises(OSError, match="broken"):
                metadata.sync()
        assert metadata.unsynced
        metadata.sync()
        assert not metadata.unsynced


@pytest.mark.parametrize("name", [USERS, ACLS])
def test_a_row_that_can_not_be_read_ends_the_start(tmp_path: Path, name: str) -> None:
    database = Database(
        tmp_path / name, [FamilyOptions(DEFAULT, MiB)], cache_bytes=MiB, open_files_max=8, log_ahead=True
    )
    batch = database.batch()
    batch.put(DEFAULT, b"u", b'{"username":7}')
    database.write(batch)
    database.close()
    with pytest.raises(ConfigError, match=f"{name}, row b'u'"):
        Metadata(tmp_path, Events())
    for each in (USERS, ACLS):  # both are free again
        Database(
            tmp_path / each, [FamilyOptions(DEFAULT, MiB)], cache_bytes=MiB, open_files_max=8, log_ahead=True
        ).close()


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(ConfigError, match=r"firearrow\[rocksdb\]"):
        Metadata(tmp_path, Events())


def test_columns_of_others_are_no_hindrance(tmp_path: Path) -> None:
    for name in (USERS, ACLS):
        Database(
            tmp_path / name,
            [FamilyOptions(DEFAULT, MiB), FamilyOptions("kvDataVersion", MiB)],
            cache_bytes=MiB,
            open_files_max=8,
            log_ahead=True,
        ).close()
    with opened(tmp_path) as metadata:
        metadata.create_user(user())
    with opened(tmp_path) as metadata:
        assert [*metadata.users] == ["u"]


def test_a_slave_has_the_users_and_policies_of_its_master_and_no_others(tmp_path: Path) -> None:
    root = user("root", user_type=UserType.SUPER, user_status=UserStatus.ENABLE)
    known = user(user_type=UserType.NORMAL, user_status=UserStatus.ENABLE)
    policies = [Policy(entries=[entry("Topic:T", Action.PUB)], policy_type=PolicyType.CUSTOM)]
    acl = Acl(subject=SUBJECT, policies=policies)
    with opened(tmp_path) as slave:
        slave.create_user(user("own"))
        slave.put_policies(Subject(subject_type=SUBJECT_USER, username="own"), policies)
        slave.follow([root, known], [acl])
        assert dict(slave.users) == {"root": root, "u": known}
        assert slave.list_policies("", "") == [acl]
        assert slave.unsynced
        changed = replace(known, password="another")
        slave.follow([root, changed], [])
        assert slave.users["u"] == changed
        assert slave.acl_of("u") is None
        slave.follow([root], [])
    with opened(tmp_path) as again:
        assert again.users.keys() == {"root"}
