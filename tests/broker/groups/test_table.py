"""Consumer groups: their creation, and their file."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from firearrow.broker.config import BrokerConfig
from firearrow.broker.groups.table import GroupTable
from firearrow.errors import BrokerError
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import SubscriptionGroupConfig
from tests import golden
from tests.broker.fakes import CONFIG, FakeBroker

NO_AUTO = replace(CONFIG, auto_create_subscription_group=False)


def table_of(config: BrokerConfig = CONFIG, root: Path | None = None) -> GroupTable:
    return FakeBroker(config, root).groups


def test_a_new_broker_has_the_groups_of_a_new_java_broker(tmp_path: Path) -> None:
    store = golden.extract("file-cq-clean", tmp_path)
    found = fastjson.loads((store / "config" / "subscriptionGroup.json").read_bytes())
    expected = {
        name: config for name, config in found["subscriptionGroupTable"].items() if not name.startswith("golden")
    }
    assert fastjson.loads(fastjson.dumps(table_of().table)) == expected


def test_a_group_is_created_when_it_is_looked_up() -> None:
    groups = table_of()
    assert groups.get("g") is None
    made = groups.find("g")
    assert made == SubscriptionGroupConfig("g")
    assert groups.find("g") is made
    assert groups.data_version.counter == 1


@pytest.mark.parametrize("name", ["a b", "", "a" * 121, "a@b"])
def test_no_group_is_created_under_an_impossible_name(name: str) -> None:
    assert table_of().find(name) is None


def test_system_groups_can_be_kept_from_coming_by_themselves() -> None:
    groups = table_of(replace(NO_AUTO, enable_create_sys_group=False))
    assert groups.find("CID_RMQ_SYS_REVIVE_GROUP") is None


def test_without_automatic_creation_only_system_groups_come_by_themselves() -> None:
    groups = table_of(NO_AUTO)
    assert groups.find("g") is None
    assert groups.find("CID_RMQ_SYS_REVIVE_GROUP") is not None


def test_put_keeps_attributes_that_are_not_mentioned() -> None:
    groups = table_of()
    groups.put(SubscriptionGroupConfig("g", attributes={"+priority.factor": "50"}))
    groups.put(SubscriptionGroupConfig("g", retry_max_times=3))
    assert groups.get("g") == SubscriptionGroupConfig("g", retry_max_times=3, attributes={"priority.factor": "50"})
    version = groups.data_version
    groups.put(SubscriptionGroupConfig("g", retry_max_times=3))
    assert groups.data_version == version
    with pytest.raises(BrokerError, match="not in range"):
        groups.put(SubscriptionGroupConfig("g", attributes={"+priority.factor": "101"}))


def test_delete_forgets_the_group_and_what_it_was_forbidden() -> None:
    groups = table_of()
    groups.find("g")
    groups.forbid_read("g", "T", True)
    assert groups.is_read_forbidden("g", "T")
    assert groups.delete("g")
    assert not groups.delete("g")
    assert groups.get("g") is None
    assert not groups.is_read_forbidden("g", "T")


def test_forbidding_leaves_other_bits_alone(tmp_path: Path) -> None:
    path = tmp_path / "config" / "subscriptionGroup.json"
    path.parent.mkdir()
    path.write_text('{"forbiddenTable":{"g":{"T":2,"U":4}}}')
    groups = table_of(root=tmp_path)
    groups.load()
    assert groups.is_read_forbidden("g", "U")
    assert not groups.is_read_forbidden("g", "T")
    groups.forbid_read("g", "T", True)
    groups.forbid_read("g", "U", False)
    assert groups.forbidden == {"g": {"T": 6}}
    groups.forbid_read("g", "T", False)
    groups.save()
    assert fastjson.loads(path.read_bytes())["forbiddenTable"] == {"g": {"T": 2}}
    groups.forbid_read("h", "T", True)
    groups.forbid_read("h", "T", False)
    assert groups.forbidden == {"g": {"T": 2}}


@pytest.mark.parametrize("name", ["file-cq-clean", "file-cq-killed"])
def test_a_golden_file_is_read_and_written_as_it_was(name: str, tmp_path: Path) -> None:
    store = golden.extract(name, tmp_path)
    path = store / "config" / "subscriptionGroup.json"
    before = fastjson.loads(path.read_bytes())
    groups = table_of(root=store)
    groups.load()
    assert groups.get("golden_ok") is not None
    path.unlink()
    groups.save()
    assert fastjson.loads(path.read_bytes()) == before


def test_what_this_release_does_not_know_survives(tmp_path: Path) -> None:
    path = tmp_path / "config" / "subscriptionGroup.json"
    path.parent.mkdir()
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 7, "later": 1}}
    group = {
        "color": "red",
        "groupRetryPolicy": policy,
        "subscriptionDataSet": [{"topic": "T", "version": 0}],
        "retryQueueNums": 2,
    }
    path.write_text(json.dumps({"subscriptionGroupTable": {"g": group}, "epoch": 9}))
    groups = table_of(root=tmp_path)
    groups.load()
    groups.find("another")
    groups.save()
    raw = fastjson.loads(path.read_bytes())
    saved = raw["subscriptionGroupTable"]["g"]
    assert raw["epoch"] == 9
    assert {name: saved[name] for name in group} == group
    assert saved["groupName"] == "g"


def test_what_is_new_or_has_changed_is_told() -> None:
    groups = FakeBroker().groups
    told: list[list[str]] = []
    groups.changed.listen(lambda change: told.append([it.group_name for it in change.configs]))
    groups.put(SubscriptionGroupConfig("g"))
    groups.put(SubscriptionGroupConfig("g"))
    groups.put_all([SubscriptionGroupConfig("g"), SubscriptionGroupConfig("h", retry_queue_nums=3)])
    groups.find("found")
    groups.delete("g")
    assert told == [["g"], ["h"], ["found"]]
