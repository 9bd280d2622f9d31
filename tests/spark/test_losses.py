"""Input that is missing is an error, or a warning that says how much is left out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from firearrow.errors import ConfigError, DataLost
from firearrow.spark.storage import Entry, LocalStorage
from tests import golden
from tests.loglines import told
from tests.spark import logs
from tests.spark.test_files import by_place, read

COUNT = len(golden.expected("file-cq-clean"))


def longest_queue(root: Path) -> Path:
    """The only file of the queue with the most entries among those that have one."""
    files = [
        path for path in root.glob("consumequeue/*/*/*") if len(list(path.parent.iterdir())) == 1
    ]
    return max(files, key=lambda path: len(path.read_bytes().rstrip(b"\0")))


def told_reasons(caplog: pytest.LogCaptureFixture) -> str:
    reasons = "\n".join(str(line.get("reason")) for line in told(caplog))
    caplog.clear()
    return reasons


def test_a_store_without_its_queues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = golden.extract("file-cq-clean", tmp_path)
    assert len(read(root)) == COUNT
    shutil.rmtree(root / "consumequeue")
    with pytest.raises(DataLost, match=rf"lack {COUNT} messages that the log has"):
        read(root)
    with pytest.raises(DataLost, match=r"topic 'GoldenPlain' .*lack \d+ messages"):
        read(root, subscribe="GoldenPlain")
    assert read(root, failOnDataLoss="false") == []
    assert f"lack {COUNT} messages" in told_reasons(caplog)
    (root / "abort").touch()  # a start would rebuild all queues
    assert len(read(root)) == COUNT


@pytest.mark.parametrize("kept_bytes", [1010, 1000])
def test_a_queue_that_was_cut(
    kept_bytes: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = golden.extract("file-cq-clean", tmp_path)
    whole = by_place(read(root))
    path = longest_queue(root)
    topic, queue_id = path.parent.parent.name, int(path.parent.name)
    held = sum((row["topic"], row["queueId"]) == (topic, queue_id) for row in whole)
    assert held > 50
    path.write_bytes(path.read_bytes()[:kept_bytes])
    text = rf"queue {queue_id} of topic '{topic}' .* ends at 50, lack {held - 50} messages"
    with pytest.raises(DataLost, match=text):
        read(root)
    found = by_place(read(root, failOnDataLoss="false"))
    assert found == [
        row
        for row in whole
        if (row["topic"], row["queueId"]) != (topic, queue_id) or row["queueOffset"] < 50
    ]
    assert f"lack {held - 50} messages" in told_reasons(caplog)
    other = next(row["topic"] for row in whole if row["topic"] != topic)
    assert read(root, subscribe=other) == [row for row in whole if row["topic"] == other]
    (root / "abort").touch()
    with pytest.raises(DataLost, match="the end of a file"):
        read(root)


def test_a_queue_whose_new_file_has_its_name_before_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = golden.extract("file-cq-clean", tmp_path)
    (root / "abort").touch()
    whole = by_place(read(root))
    last = longest_queue(root)
    place = str(last.parent.relative_to(root))
    entries, looks = LocalStorage.entries, []

    def without_size(self: LocalStorage, directory: str) -> list[Entry]:
        found = entries(self, directory)
        if directory == place:
            looks.append(directory)
            if len(looks) == 1:
                return [*found, Entry(f"{found[-1].size_bytes:020}", 0, True)]
        return found

    data = last.read_bytes()
    full = data.rstrip(b"\0")
    last.write_bytes(full[: len(full) // 20 * 20])
    for other in root.glob("consumequeue/*/*/*"):
        other.write_bytes(other.read_bytes()[: last.stat().st_size])
    monkeypatch.setattr(LocalStorage, "entries", without_size)
    assert by_place(read(root)) == whole
    assert len(looks) > 1


def test_a_log_that_was_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = golden.extract("file-cq-clean", tmp_path)
    whole = by_place(read(root, visibility="log"))
    last = max((root / "commitlog").iterdir())
    data = last.read_bytes()
    base = int(last.name)
    inside = [row["commitLogOffset"] for row in whole if row["commitLogOffset"] > base]
    place = inside[len(inside) // 2]
    middle = place - base + 40  # within a record
    left = [row for row in whole if row["commitLogOffset"] < place]
    lines = golden.expected("file-cq-clean")
    behind = sum(line["physicalOffset"] > place for line in lines)
    options: dict[str, Any] = {"visibility": "log", "splitBytes": "50k"}
    last.write_bytes(data[:middle])
    with pytest.raises(DataLost, match=rf"ends at {base + middle}, and {behind} of them"):
        read(root, **options)
    assert by_place(read(root, failOnDataLoss="false", **options)) == left
    assert "of them were behind" in told_reasons(caplog)
    last.write_bytes(data[:middle] + bytes(len(data) - middle))
    with pytest.raises(
        DataLost, match=rf"the log in .* ends at {place}, but queues have messages up to"
    ):
        read(root, **options)
    assert by_place(read(root, failOnDataLoss="false", **options)) == left
    assert "but queues have messages" in told_reasons(caplog)


@pytest.mark.parametrize("broker", [logs.BROKER, "elsewhere"])
def test_a_queue_that_is_not_there(
    broker: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "s"
    logs.write(root, [logs.Sent(), logs.Sent(queue_id=1)])
    assign = f'{{"T": {{"{logs.BROKER}": [1], "{broker}": [7]}}}}'
    if broker == logs.BROKER:
        assign = f'{{"T": {{"{broker}": [1, 7]}}}}'
    with pytest.raises(ConfigError, match=f"topic 'T' has no queue 7 on '{broker}'"):
        read(root, assign=assign)
    assert len(read(root, assign=assign, failOnDataLoss="false")) == 1
    assert [line["count"] for line in told(caplog)] == [1]
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text(
        '{"topicConfigTable":{"T":{"readQueueNums":8,"writeQueueNums":8}}}'
    )
    if broker == logs.BROKER:  # it is there, and has no message yet
        assert len(read(root, assign=assign)) == 1
