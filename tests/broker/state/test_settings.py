"""Settings: what a change at run time does, here and to the file."""

import logging
from collections.abc import Collection
from pathlib import Path

import pytest

from firearrow.broker.config import BrokerConfig
from firearrow.broker.state.settings import Settings
from firearrow.config import properties
from firearrow.config.table import load
from firearrow.errors import ConfigError
from firearrow.store.config import StoreConfig
from tests.broker.fakes import CONFIG, HandClock


def settings_of(file: Path | None = None) -> Settings:
    return Settings(HandClock(), CONFIG, StoreConfig(), file=file)


def test_a_change_is_seen_at_once_and_told() -> None:
    settings = settings_of()
    told: list[Collection[str]] = []
    settings.on_change = told.append
    settings.change({"defaultTopicQueueNums": "5", "defaultQueryMaxNum": "7"})
    assert settings.broker.default_topic_queue_nums == 5
    assert settings.store.default_query_max_num == 7
    assert settings.version.counter == 1
    assert [sorted(keys) for keys in told] == [["defaultQueryMaxNum", "defaultTopicQueueNums"]]


def test_a_bad_value_changes_nothing() -> None:
    settings = settings_of()
    with pytest.raises(ConfigError, match="defaultTopicQueueNums=abc"):
        settings.change({"brokerPermission": "4", "defaultTopicQueueNums": "abc"})
    with pytest.raises(ConfigError, match="brokerPermission=9"):
        settings.change({"defaultQueryMaxNum": "7", "brokerPermission": "9"})
    assert settings.broker == CONFIG
    assert settings.store == StoreConfig()
    assert settings.version.counter == 0


def test_keys_of_rocketmq_are_kept_and_others_are_not(caplog: pytest.LogCaptureFixture) -> None:
    settings = settings_of()
    with caplog.at_level(logging.WARNING):
        settings.change({"popPollingSize": "7", "fooBar": "x"})
    assert "popPollingSize=7\n" in settings.text()
    assert "fooBar" not in settings.text()
    assert "fooBar" in caplog.text


def test_the_text_holds_every_key_of_both_configurations_in_order() -> None:
    pairs = properties.loads(settings_of().text())
    assert pairs["brokerName"] == "broker-a"
    assert pairs["flushDiskType"] == "ASYNC_FLUSH"
    assert pairs["messageDelayLevel"].endswith("1h 2h")
    assert list(pairs) == sorted(pairs)


def test_the_file_holds_what_was_changed(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=broker-a\n")
    settings_of(file).change({"defaultTopicQueueNums": "5"})
    again, _ = load(BrokerConfig, properties.load(file), servers=["store"])
    assert again.default_topic_queue_nums == 5
    assert again.broker_name == "broker-a"
    assert (tmp_path / "broker.conf.bak").read_text() == "brokerName=broker-a\n"


def test_a_file_that_cannot_be_written_is_an_error_and_the_change_holds(tmp_path: Path) -> None:
    obstacle = tmp_path / "dir"
    obstacle.write_text("")
    settings = settings_of(obstacle / "broker.conf")
    with pytest.raises(OSError, match="dir"):
        settings.change({"defaultTopicQueueNums": "5"})
    assert settings.broker.default_topic_queue_nums == 5


@pytest.mark.parametrize(
    ("key", "fixed"),
    [
        ("configBlackList", True),
        ("brokerConfigPath", True),
        ("rocketmqHome", True),
        ("listenPort", True),
        ("brokerName", False),
    ],
)
def test_some_keys_are_not_for_clients(key: str, fixed: bool) -> None:
    config = BrokerConfig(config_black_list="listenPort; haListenPort")
    assert Settings(HandClock(), config).is_fixed(key) is fixed
