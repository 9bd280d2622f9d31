"""Stores with topics of kinds that are not served."""

import json
from pathlib import Path
from typing import Any

import pytest

from firearrow.errors import ConfigError
from tests.broker.serving import Caller, Serving, calling
from tests.loglines import told


async def nothing(_: Serving, __: Caller) -> None:
    """Start and stop."""


def write_state(root: Path, name: str, content: dict[str, Any]) -> None:
    """Leave a state file as RocketMQ does."""
    (root / "config").mkdir(parents=True)
    (root / "config" / name).write_text(json.dumps(content))


def test_a_store_with_static_topics_is_refused(tmp_path: Path) -> None:
    mapping = {"topic": "S", "bname": "broker-a", "totalQueues": 2, "hostedQueues": {}}
    write_state(tmp_path, "topicQueueMapping.json", {"topicQueueMappingInfoMap": {"S": mapping}})
    with pytest.raises(ConfigError, match="no static topics here, but the store has S;"):
        calling(tmp_path, nothing)
    assert not (tmp_path / "commitlog").exists(), "it was opened"


def test_a_store_that_has_had_none_is_served(tmp_path: Path) -> None:
    """RocketMQ writes the file whenever a broker has met the feature."""
    write_state(tmp_path, "topicQueueMapping.json", {"topicQueueMappingInfoMap": {}})
    calling(tmp_path, nothing)


def test_a_store_with_compaction_topics_is_served_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(_: Serving, caller: Caller) -> None:
        await caller.sent(topic="C")
        assert len(await caller.stored("C")) == 1

    topic = {"topicName": "C", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    compacted = {**topic, "attributes": {"cleanup.policy": "COMPACTION"}}
    write_state(tmp_path, "topics.json", {"topicConfigTable": {"C": compacted}})
    calling(tmp_path, main)
    [line] = [line for line in told(caplog) if "compaction topics" in str(line["event"])]
    assert line["topic"] == "C"
