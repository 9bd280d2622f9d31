"""The store's table of keys against RocketMQ's own, and the values that are derived from it."""

from pathlib import Path

import pytest

from firearrow.config.table import take
from firearrow.store.config import StoreConfig


def test_directories_follow_the_root() -> None:
    config = StoreConfig(store_path_root_dir="/srv/store")
    assert config.root_path == Path("/srv/store")
    assert config.commit_log_path == Path("/srv/store/commitlog")


def test_the_commit_log_may_live_elsewhere() -> None:
    config, rest = take(StoreConfig, {"storePathCommitLog": "/fast/log", "brokerName": "a"})
    assert config.commit_log_path == Path("/fast/log")
    assert rest == {"brokerName": "a"}


def test_the_default_root_is_in_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/nina")
    assert StoreConfig().root_path == Path("/home/nina/store")


@pytest.mark.parametrize(("given", "rounded"), [(20, 20), (21, 40), (6_000_000, 6_000_000)])
def test_queue_files_hold_whole_units(given: int, rounded: int) -> None:
    config = StoreConfig(mapped_file_size_consume_queue=given)
    assert config.consume_queue_file_bytes == rounded


@pytest.mark.parametrize(("given", "rounded"), [(46, 46), (47, 92), (13_800_000, 13_800_000)])
def test_files_of_batch_queues_hold_whole_units(given: int, rounded: int) -> None:
    config = StoreConfig(mapper_file_size_batch_consume_queue=given)
    assert config.batch_queue_file_bytes == rounded
