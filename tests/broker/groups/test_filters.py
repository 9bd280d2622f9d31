"""The expressions of consumer groups: the effect of heartbeats, and their file."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from firearrow.broker.config import BrokerConfig
from firearrow.broker.groups import filters
from firearrow.broker.groups.filters import ConsumerFilters
from firearrow.broker.state.settings import Settings
from firearrow.wire.client_bodies import SubscriptionData
from tests.broker.fakes import NOW_MS, HandClock

DATA = Path(__file__).parents[2] / "data" / "config"
DAY_SECONDS = 86_400


def sql(topic: str = "T", expression: str = "a > 5", version: int = 1) -> SubscriptionData:
    return SubscriptionData(topic, expression, version, "SQL92")


class Kept:
    """The expressions of one broker, and its clock."""

    def __init__(self, root: Path | None = None, **config: Any) -> None:
        self.clock = HandClock()
        self.settings = Settings(self.clock, BrokerConfig(**config))
        self.filters = ConsumerFilters(self.settings, self.clock, root)

    def beat(self, *wanted: SubscriptionData, group: str = "g") -> None:
        for _ in self.filters.register(group, wanted):
            pass

    def state(self, topic: str = "T", group: str = "g") -> tuple[str, int, int] | None:
        """Return the expression, its version, and its time of death."""
        data = self.filters.find(topic, group)
        return None if data is None else (data.expression, data.client_version, data.dead_time)


def test_an_expression_is_kept_as_long_as_it_is_subscribed_to() -> None:
    kept = Kept()
    kept.beat(sql(), sql("U", "b = 'x'"), SubscriptionData("V", "A", 1, "TAG"))
    assert kept.state() == ("a > 5", 1, 0)
    assert kept.state("U") == ("b = 'x'", 1, 0)
    assert kept.state("V") is None
    kept.clock.seconds += 1
    kept.beat(sql())
    assert kept.state("U") == ("b = 'x'", 1, NOW_MS + 1000)
    kept.clock.seconds += 1
    kept.filters.unregister("g")
    assert kept.state() == ("a > 5", 1, NOW_MS + 2000)
    assert kept.state("U") == ("b = 'x'", 1, NOW_MS + 1000)
    kept.beat(sql())
    assert kept.state() == ("a > 5", 1, 0)


def test_only_a_newer_expression_counts() -> None:
    kept = Kept()
    kept.beat(sql(version=5))
    born = kept.filters.find("T", "g")
    assert born is not None
    kept.clock.seconds += 1
    kept.beat(sql(expression="a > 6", version=5))
    kept.beat(sql(expression="a > 7", version=4))
    assert kept.state() == ("a > 5", 5, 0)
    kept.beat(sql(version=6))
    assert kept.state() == ("a > 5", 6, 0)
    assert born.born_time == NOW_MS
    kept.beat(sql(expression="a > 7", version=7))
    found = kept.filters.find("T", "g")
    assert found is not None
    assert (found.expression, found.born_time) == ("a > 7", NOW_MS + 1000)


def test_an_expression_that_can_not_be_read_takes_the_place_of_none() -> None:
    kept = Kept()
    for expression in ("a >", "a > 0x10", "a" * 20_000):
        kept.beat(sql(expression=expression))
        assert kept.state() is None
    kept.beat(SubscriptionData("T", "a > 5", 1, "FOO"))
    assert kept.state() is None
    kept.beat(sql())
    kept.beat(sql(expression="a > 5 b", version=2))
    assert kept.state() is None


def test_the_dead_are_forgotten_in_time() -> None:
    kept = Kept()
    kept.beat(sql(), sql("U"))
    kept.clock.seconds += 1
    kept.beat(sql())
    kept.clock.seconds += DAY_SECONDS - 0.001
    kept.filters.clean()
    assert kept.state("U") is not None
    kept.clock.seconds += 0.001
    kept.filters.clean()
    assert kept.state("U") is None
    assert kept.state() is not None


def test_there_is_an_end_to_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "KEPT_CHARS_MAX", 1000)
    kept = Kept()
    kept.beat(*(sql(f"T{number}") for number in range(5)))
    assert [kept.state(f"T{number}") is not None for number in range(5)] == [True] * 3 + [False] * 2
    kept.filters.unregister("g")
    kept.clock.seconds += DAY_SECONDS
    kept.filters.clean()
    kept.beat(sql("T4"))
    assert kept.state("T4") is not None


# --- the file ---


def written(root: Path) -> bytes:
    return (root / "config" / filters.FILE_NAME).read_bytes()


def reopened(root: Path, **config: Any) -> Kept:
    kept = Kept(root, **config)
    kept.filters.load()
    return kept


def given(root: Path, name: str) -> bytes:
    """Put a file that RocketMQ 5.5.0 wrote in its place."""
    (root / "config").mkdir()
    shutil.copy(DATA / name, root / "config" / filters.FILE_NAME)
    return written(root)


def test_a_file_of_rocketmq_is_written_as_it_was(tmp_path: Path) -> None:
    before = given(tmp_path, "consumerFilter.json")
    kept = reopened(tmp_path)
    data = kept.filters.find("Orders", "g2")
    assert data is not None
    assert data.is_dead
    assert data.filter is not None
    assert data.filter.wants(b"region\x01eu\x02")
    kept.filters.save()
    assert written(tmp_path) == before
    kept.filters.file.behind = True
    kept.filters.save()
    assert written(tmp_path) == before


def test_its_bits_are_those_of_rocketmq(tmp_path: Path) -> None:
    given(tmp_path, "consumerFilter.json")
    theirs, ours = reopened(tmp_path), Kept()
    for topic, group in [("Orders", "g1"), ("Orders", "g2"), ("Payments", "g1x")]:
        ours.beat(sql(topic), group=group)
        found = [kept.filters.find(topic, group) for kept in (theirs, ours)]
        assert len({data.bloom_filter_data for data in found if data is not None}) == 1


def test_who_was_alive_is_dead_after_a_start(tmp_path: Path) -> None:
    alive = json.loads(given(tmp_path, "consumerFilter-alive.json"))
    kept = reopened(tmp_path)
    kept.filters.save()
    for topic in alive["filterDataByTopic"].values():
        for data in topic["groupFilterData"].values():
            assert (data["dead"], data["deadTime"]) == (False, 0)
            data.update(dead=True, deadTime=max(NOW_MS - 30_000, data["bornTime"]))
    assert json.loads(written(tmp_path)) == alive
    version = alive["filterDataByTopic"]["Orders"]["groupFilterData"]["g1"]["clientVersion"]
    kept.beat(sql("Orders", "a > 5 AND color = 'blue'", version), group="g1")
    assert kept.state("Orders", "g1") == ("a > 5 AND color = 'blue'", version, 0)


def test_what_is_kept_outlives_a_restart(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.filters.save()
    assert not (tmp_path / "config").exists()
    kept.beat(sql())
    kept.filters.unregister("g")
    kept.filters.save()
    assert reopened(tmp_path).state() == ("a > 5", 1, NOW_MS)


def test_the_bits_of_another_filter_make_the_file_void(tmp_path: Path) -> None:
    given(tmp_path, "consumerFilter.json")
    kept = reopened(tmp_path, expect_consumer_num_use_filter=64)
    assert kept.state("Orders", "g1") is None
    kept.filters.save()
    assert json.loads(written(tmp_path)) == {"filterDataByTopic": {}}


def test_fields_of_later_releases_stay(tmp_path: Path) -> None:
    content = json.loads(given(tmp_path, "consumerFilter.json"))
    content["new"] = {"a": 1}
    content["filterDataByTopic"]["Orders"]["groupFilterData"]["g1"]["priority"] = 7
    (tmp_path / "config" / filters.FILE_NAME).write_text(json.dumps(content))
    kept = reopened(tmp_path)
    kept.filters.file.behind = True
    kept.filters.save()
    assert json.loads(written(tmp_path)) == content


def test_what_another_release_could_read_is_no_filter_here(tmp_path: Path) -> None:
    content = json.loads(given(tmp_path, "consumerFilter.json"))
    content["filterDataByTopic"]["Orders"]["groupFilterData"]["g1"]["expression"] = "a > 0x10"
    (tmp_path / "config" / filters.FILE_NAME).write_text(json.dumps(content))
    data = reopened(tmp_path).filters.find("Orders", "g1")
    assert data is not None
    assert data.filter is None
