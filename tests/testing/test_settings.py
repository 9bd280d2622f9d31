"""Keys of an embedded cluster: RocketMQ's names, values as in its files, errors for mistakes."""

import pytest

from firearrow.broker.config import THROWAWAY
from firearrow.config.table import as_properties
from firearrow.errors import ConfigError
from firearrow.store.config import StoreConfig
from firearrow.testing.settings import DECIDED, configs_of


def test_each_server_gets_its_keys() -> None:
    configs = configs_of({"transactionCheckMax": 3, "enableLmq": True, "orderMessageEnable": "true", "brokerId": "0"})
    assert configs.broker.transaction_check_max == 3
    assert configs.store.enable_lmq
    assert configs.namesrv.order_message_enable


def test_files_are_small_unless_told_otherwise() -> None:
    store = configs_of({}).store
    made = as_properties(store) | as_properties(configs_of({}).broker)
    assert {key: made[key] for key in THROWAWAY} == THROWAWAY
    assert store.mapped_file_size_commit_log >= 2 * store.max_message_size
    assert configs_of({"maxIndexNum": 7}).store.max_index_num == 7


def test_all_else_is_the_default() -> None:
    changed = as_properties(configs_of({}).store).items() - as_properties(StoreConfig()).items()
    assert {key for key, _ in changed} <= THROWAWAY.keys()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("maxIndexNum", "many", "maxIndexNum=many: allowed is a whole number"),
        ("aclEnable", True, "aclEnable=true asks for the access control of RocketMQ 4"),
        ("flushDiskTyp", "SYNC_FLUSH", "unknown key flushDiskTyp.*did you mean flushDiskType?"),
    ],
)
def test_mistakes_are_told(key: str, value: str | bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configs_of({key: value})


@pytest.mark.parametrize("key", sorted(DECIDED))
def test_what_the_cluster_decides_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"an embedded cluster sets {key} itself"):
        configs_of({key: "x"})


def test_a_key_of_rocketmqs_that_has_no_effect_here_is_no_mistake() -> None:
    assert configs_of({"sendMessageThreadPoolNums": 4}).broker.broker_name
