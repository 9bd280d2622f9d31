"""Settings: the effect of a change at run time, here and in the file."""

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
from tests.loglines import told


def settings_of(file: Path | None = None) -> Settings:
    return Settings(HandClock(), CONFIG, StoreConfig(), file=file)


def test_a_change_is_seen_at_once_and_told() -> None:
    settings = settings_of()
    told: list[Collection[str]] = []
    settings.changed.listen(lambda change: told.append(change.keys))
    settings.change({"brokerPermission": "4", "fileReservedTime": "7"})
    assert settings.broker.broker_permission == 4
    assert settings.store.file_reserved_time == 7
    assert settings.version.counter == 1
    assert [sorted(keys) for keys in told] == [["brokerPermission", "fileReservedTime"]]


def test_a_bad_value_changes_nothing() -> None:
    settings = settings_of()
    with pytest.raises(ConfigError, match="shortPollingTimeMills=abc"):
        settings.change({"brokerPermission": "4", "shortPollingTimeMills": "abc"})
    with pytest.raises(ConfigError, match="brokerPermission=9"):
        settings.change({"fileReservedTime": "7", "brokerPermission": "9"})
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
    settings_of(file).change({"brokerPermission": "4"})
    again, _ = load(BrokerConfig, properties.load(file), servers=["store"])
    assert again.broker_permission == 4
    assert again.broker_name == "broker-a"
    assert (tmp_path / "broker.conf.bak").read_text() == "brokerName=broker-a\n"


def test_nothing_is_changed_when_the_file_cannot_be_written(tmp_path: Path) -> None:
    obstacle = tmp_path / "dir"
    obstacle.write_text("")
    settings = settings_of(obstacle / "broker.conf")
    with pytest.raises(OSError, match="dir"):
        settings.change({"brokerPermission": "4"})
    assert settings.broker == CONFIG
    assert settings.version.counter == 0


@pytest.mark.parametrize(
    "pair",
    [
        {"storePathRootDir": "/nowhere"},
        {"listenPort": "1"},
        {"maxMessageSize": "65536"},
        {"flushDelayOffsetInterval": "500"},
        {"brokerName": "other"},
    ],
)
def test_what_counts_only_at_the_start_is_refused(pair: dict[str, str]) -> None:
    settings = settings_of()
    with pytest.raises(ConfigError, match=f"{next(iter(pair))} takes effect only at the start"):
        settings.change({"brokerPermission": "4"} | pair)
    assert (settings.broker, settings.store) == (CONFIG, StoreConfig())


def test_what_counts_only_at_the_start_may_be_said_again() -> None:
    settings = settings_of()
    settings.change({"maxMessageSize": "4194304", "brokerPermission": "4"})
    assert settings.broker.broker_permission == 4


@pytest.mark.parametrize(
    "pair",
    [
        {"maxMessageSize": "10"},
        {"messageDelayLevel": "xx"},
        {"brokerName": "a\nlistenPort=1"},
        {"metricsGrpcExporterHeader": "a\nlistenPort=1"},
        {"popPollingSize": "many"},
        {"popPollingSize": ""},
        {"timerRocksDBRollMaxTps": "1.x"},
        {"enablePopLog": "perhaps"},
        {"aclEnable": "true"},
    ],
)
def test_nonsense_and_what_is_not_there_are_refused(pair: dict[str, str], tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "broker.conf")
    with pytest.raises(ConfigError, match=next(iter(pair))):
        settings.change(pair)
    assert (settings.broker, settings.store) == (CONFIG, StoreConfig())
    assert not (tmp_path / "broker.conf").exists()


def test_many_unknown_keys_are_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        settings_of().change({f"fooBar{number}": "x" for number in range(1000)})
    [line] = told(caplog)
    assert (line["event"], line["count"]) == ("unknown keys are ignored", 1000)
    assert line["keys"] == ["fooBar0", "fooBar1", "fooBar10", "fooBar100", "fooBar101"]


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
