"""Input that is missing is an error, or a warning that says how much is left out."""

from __future__ import annotations

import shutil
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

from firearrow.errors import ConfigError, DataLost
from firearrow.spark.options import parse
from firearrow.spark.source.datasource import MessageReader
from firearrow.spark.tables import MESSAGES
from tests import golden
from tests.loglines import told
from tests.spark import logs
from tests.spark.source.test_files import by_place, read
from tests.store.stores import append, opened, settle

COUNT = len(golden.expected("file-cq-clean"))


def longest_queue(root: Path) -> Path:
    """The only file of the queue with the most entries among those that have one."""
    files = [path for path in root.glob("consumequeue/*/*/*") if len(list(path.parent.iterdir())) == 1]
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


def closed_store(root: Path, **options: Any) -> Path:
    """A store that a broker has closed: of each topic 60 messages, in a queue of three files."""
    with opened(root, mapped_file_size_consume_queue=400, **options) as store:
        for number in range(120):
            append(store, b"body", "AB"[number % 2])
        settle(store)
    return root


def offsets(rows: list[dict[str, Any]], topic: str) -> list[int]:
    return [row["queueOffset"] for row in by_place(rows) if row["topic"] == topic]


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize("options", [{}, {"splitBytes": "1"}])
def test_a_queue_without_a_file_in_the_middle(
    unclean: bool, options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = closed_store(tmp_path / "s")
    (root / f"consumequeue/A/0/{400:020d}").unlink()
    if unclean:
        (root / "abort").touch()
    text = r"queue 0 of topic 'A' in \S+, which has no file with the offsets 20 to 39, lack 20 mess"
    with pytest.raises(DataLost, match=text):
        read(root, **options)
    assert offsets(read(root, subscribe="B"), "B") == [*range(60)]
    caplog.clear()
    rows = read(root, failOnDataLoss="false", **options)
    assert offsets(rows, "A") == [*range(20), *range(40, 60)]
    assert offsets(rows, "B") == [*range(60)]
    assert "lack 20 messages" in told_reasons(caplog)


def test_a_queue_without_its_first_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What the broker noted when it closed the store tells it from what retention has deleted."""
    root = closed_store(tmp_path / "s")
    (root / f"consumequeue/A/0/{0:020d}").unlink()
    with pytest.raises(DataLost, match="which has no file with the offsets 0 to 19, lack 20 mess"):
        read(root)
    assert offsets(read(root, failOnDataLoss="false"), "A") == [*range(20, 60)]
    assert "lack 20 messages" in told_reasons(caplog)
    (root / "checkpoint").write_bytes(bytes(4096))  # RocketMQ has served the store since
    assert offsets(read(root), "A") == [*range(20, 60)]


def test_a_topic_without_its_queues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = closed_store(tmp_path / "s")
    shutil.rmtree(root / "consumequeue/A")
    with pytest.raises(DataLost, match=r"queue 0 of topic 'A' .* ends at 0, lack 60 messages that"):
        read(root)
    assert offsets(read(root, subscribe="B"), "B") == [*range(60)]
    rows = read(root, failOnDataLoss="false")
    assert (offsets(rows, "A"), offsets(rows, "B")) == ([], [*range(60)])
    assert "lack 60 messages" in told_reasons(caplog)
    (root / "closed.json").unlink()  # it may be a deleted topic
    assert offsets(read(root), "A") == []


@pytest.mark.parametrize("kept_bytes", [1010, 1000])
def test_a_queue_that_was_cut(kept_bytes: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
        row for row in whole if (row["topic"], row["queueId"]) != (topic, queue_id) or row["queueOffset"] < 50
    ]
    assert f"lack {held - 50} messages" in told_reasons(caplog)
    other = next(row["topic"] for row in whole if row["topic"] != topic)
    assert read(root, subscribe=other) == [row for row in whole if row["topic"] == other]
    (root / "abort").touch()
    with pytest.raises(DataLost, match="the end of a file"):
        read(root)


def test_a_queue_whose_new_file_has_its_name_before_its_size(tmp_path: Path) -> None:
    root = golden.extract("file-cq-clean", tmp_path)
    (root / "abort").touch()
    whole = by_place(read(root))
    last = longest_queue(root)
    data = last.read_bytes()
    full = data.rstrip(b"\0")
    last.write_bytes(full[: len(full) // 20 * 20])
    for other in root.glob("consumequeue/*/*/*"):
        other.write_bytes(other.read_bytes()[: last.stat().st_size])
    (last.parent / f"{last.stat().st_size:020}").touch()
    assert by_place(read(root)) == whole
    (root / "abort").unlink()
    with pytest.raises(DataLost, match="the end of a file"):
        read(root)


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
    with pytest.raises(DataLost, match=rf"the log in .* ends at {place}, but queues have messages up to"):
        read(root, **options)
    assert by_place(read(root, failOnDataLoss="false", **options)) == left
    assert "but queues have messages" in told_reasons(caplog)


def test_offsets_that_a_batch_does_not_find(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "s"
    logs.write(root, [logs.Sent(), logs.Sent(), logs.Sent()])
    ends = f'{{"T": {{"{logs.BROKER}": {{"0": 7}}}}}}'
    with pytest.raises(DataLost, match="offsets 3 to 7, the queue now ends at 3"):
        read(root, endingOffsets=ends)
    assert len(read(root, endingOffsets=ends, failOnDataLoss="false")) == 3
    [line] = told(caplog)
    assert (line["event"], line["reason"]) == ("messages are skipped", "the queue now ends at 3")
    assert (line["queue_offset"], line["end_queue_offset"]) == (3, 7)


def test_a_range_with_nothing_in_it_is_no_loss(tmp_path: Path) -> None:
    """An offset and a time may exclude each other."""
    root = tmp_path / "s"
    logs.write(root, [logs.Sent(), logs.Sent(), logs.Sent()])
    starts = f'{{"T": {{"{logs.BROKER}": {{"0": 2}}}}}}'
    assert read(root, startingOffsets=starts, endingTimestamp=str(logs.START_MS)) == []
    same = str(logs.START_MS + 2)
    assert read(root, startingTimestamp=same, endingTimestamp=same) == []


@pytest.mark.parametrize("broker", [logs.BROKER, "elsewhere"])
def test_a_queue_that_is_not_there(broker: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"T":{"readQueueNums":8,"writeQueueNums":8}}}')
    if broker == logs.BROKER:  # it is there, and has no message yet
        assert len(read(root, assign=assign)) == 1


@pytest.mark.parametrize("options", [{}, {"visibility": "log"}])
def test_a_worker_that_does_not_see_the_store_loses_nothing(options: dict[str, str], tmp_path: Path) -> None:
    """What is there for others is not skipped, whatever may be."""
    logs.write(tmp_path / "s", [logs.Sent(), logs.Sent()])
    given = parse({"path": str(tmp_path / "s"), "failOnDataLoss": "false", **options})
    tasks = MessageReader(given, MESSAGES).partitions()
    shutil.move(tmp_path / "s", tmp_path / "elsewhere")
    for task in tasks:
        with pytest.raises(ConfigError, match=rf"on {gethostname()}: all workers must see the sto"):
            list(MessageReader(given, MESSAGES).read(task))
