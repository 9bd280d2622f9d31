"""`firearrow top --once` and `--json`, as they are typed."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from firearrow.cli.health.top import Looking, frame, report_of
from firearrow.cli.main import main
from firearrow.cli.output.reports import Report
from firearrow.client.admin import Admin
from firearrow.client.diagnosis.clusterfacts import BrokerFacts
from firearrow.client.diagnosis.traffic import SAMPLES_MAX, Sample, Samples, traffic
from firearrow.lake.filling import TableStatus
from firearrow.lake.monitoring import serving
from firearrow.testing import BlockingCluster, EmbeddedCluster
from tests.broker.fakes import HandClock
from tests.cli.shell import dispatched
from tests.client.diagnosis.sending import send

ONCE = """\
Firearrow top
time: TIME  arriving: 0/s  consuming: 0/s  lag: 0

Brokers (share: how full the disk is)
  broker    address  arriving  consuming   share  bytes behind
  broker-a  ADDRESS       0/s        0/s  DISK %           0 B

Groups: none

Topics
  topic   arriving  messages
  orders       0/s         3
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with EmbeddedCluster() as running:
        running.create_topic("orders")
        send(running.name_server, "orders", 3)
        yield running


def test_one_screen(cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--interval", "0.05", "-n", cluster.name_server]) == 0
    text = capsys.readouterr().out
    for pattern, name in (
        (r"\d\d:\d\d:\d\dZ", "TIME"),
        (r"address +arriving", "address  arriving"),
        (r"127.0.0.1:\d+ +", "ADDRESS       "),
        (r"\d+\.\d %", "DISK %"),
    ):
        text = re.sub(pattern, name, text)
    assert text == ONCE


def test_one_report_as_json(cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--json", "--interval", "0.05", "-n", cluster.name_server]) == 0
    report = json.loads(capsys.readouterr().out)
    brokers, groups, topics = report["tables"]
    assert brokers["rows"][0]["broker"] == "broker-a"
    assert groups["rows"] == []
    assert topics["rows"] == [{"topic": "orders", "arriving": 0.0, "messages": 3}]


def test_tables_of_services_have_their_lag(cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]) -> None:
    clock = HandClock()
    late = TableStatus("orders", "orders", 60.0, rows=5, undecoded=1, fresh_ms=clock.now_ms())
    clock.seconds += 90
    fresh = TableStatus("paid", "paid", 60.0, fresh_ms=clock.now_ms())
    stopped = TableStatus("other", "other", 60.0, trouble="no schema")
    with serving(lambda: [fresh, late, stopped], "127.0.0.1", 0, clock) as port:
        given = ["--tables", f"127.0.0.1:{port}", "--tables", "http://127.0.0.1:1"]
        assert main(["top", "--json", "--interval", "0.05", "-n", cluster.name_server, *given]) == 0
    report = json.loads(capsys.readouterr().out)
    columns = ("table", "lagSeconds", "allowedSeconds", "rows", "undecoded", "note")
    assert report["tables"][-1]["title"] == "Tables"
    assert [tuple(row[name] for name in columns) for row in report["tables"][-1]["rows"]] == [
        ("other", None, 60.0, 0, 0, "no schema"),
        ("orders", 90.0, 60.0, 5, 1, ""),
        ("paid", 0.0, 60.0, 0, 0, ""),
    ]
    assert report["note"].startswith("tables at http://127.0.0.1:1: ")


def test_without_a_terminal_it_has_to_be_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["top"])
    assert "there is no terminal to draw on: use --once or --json" in capsys.readouterr().err


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "-n", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("firearrow: ")


# --- What `firearrow top` shows, as text; and the rates that are in it ---


def broker(name: str, put: int, got: int, **more: Any) -> BrokerFacts:
    counted = {
        "msgPutTotalTodayNow": str(put),
        "msgGetTotalTodayNow": str(got),
        "commitLogDiskRatio": "0.42",
        "dispatchBehindBytes": "2048",
    }
    return BrokerFacts("C", name, 0, f"10.0.0.{len(name)}:10911", counted, **more)


BEFORE = Sample(
    10.0,
    [broker("a", 1000, 500), broker("bb", 0, 0)],
    {"orders": 1000, "quiet": 7},
    {("billing", "orders"): (1000, 400), ("audit", "orders"): (1000, 1000)},
)
NOW = Sample(
    12.0,
    [broker("a", 3000, 1500), BrokerFacts("C", "bb", 0, "10.0.0.2:10911", {}, "timed out")],
    {"orders": 3000, "quiet": 7, "fresh": 3},
    {("billing", "orders"): (3000, 2900), ("audit", "orders"): (3000, 3000), ("catchup", "orders"): (3000, 0)},
)

WIDE = """\
Firearrow top
time: 12:00:00Z  arriving: 1,000/s  consuming: 500/s  lag: 3,100  note: bb: timed out

Brokers (share: how full the disk is)
  broker  address         arriving  consuming   share  bytes behind  note
  a       10.0.0.1:10911   1,000/s      500/s  42.0 %       2.0 KiB
  bb      10.0.0.2:10911         -          -       -             -  does not answer: timed out

Groups
  group    topic     lag  arriving  consuming  until done
  catchup  orders  3,000         -          -           -
  billing  orders    100   1,000/s    1,250/s       0.4 s
  audit    orders      0   1,000/s    1,000/s           -

Topics
  topic   arriving  messages
  orders   1,000/s     3,000
  quiet        0/s         7
  fresh          -         3
"""

FIRST = """\
Firearrow top
time: 12:00:00Z  arriving: -  consuming: -  lag: 700

Brokers (share: how full the disk is)
  broker  address         arriving  consuming   share  bytes behind
  a       10.0.0.1:10911  -         -          42.0 %       2.0 KiB
  bb      10.0.0.2:10911  -         -          42.0 %       2.0 KiB
"""


def test_a_screen() -> None:
    shown = frame(report_of(traffic(NOW, BEFORE), "12:00:00Z", ["bb: timed out"]), 30, 100)
    assert shown.rstrip() == WIDE.rstrip()
    assert shown.count("\n") == 29  # as tall as the window, so that nothing old is left


def test_the_first_screen_has_no_rates() -> None:
    before = Sample(BEFORE.at, BEFORE.brokers, {}, {("g", "T"): (1000, 300)})
    shown = frame(report_of(traffic(before), "12:00:00Z"), 40, 100)
    assert shown.startswith(FIRST)
    assert "Topics: none" in shown


def test_a_small_window_has_less_and_says_so() -> None:
    many = Sample(
        1.0,
        BEFORE.brokers,
        {f"topic-{number:03}": 1000 - number for number in range(100)},
        {("g", f"topic-{number:03}"): (1000, number) for number in range(50)},
    )
    report = report_of(traffic(many), "12:00:00Z")
    for lines, columns in ((24, 80), (20, 60), (10, 20), (1, 1)):
        shown = frame(report, lines, columns).split("\n")
        assert len(shown) == lines
        assert max(map(len, shown)) <= columns
    shown = frame(report, 24, 80).split("\n")
    titles = [line for line in shown if " of " in line]
    assert titles == ["Groups: 6 of 50", "Topics: 5 of 100"]
    assert shown[-1].startswith("  topic-004")


def test_a_count_that_begins_again_has_a_rate_from_then_on() -> None:
    def restarted(at: float, count: int) -> Sample:
        return Sample(at, [broker("a", count, count)], {"orders": count}, {("billing", "orders"): (count, 5)})

    def rates(*samples: Sample) -> list[float | None]:
        found = traffic(samples[-1], *samples[:-1])
        of_group = found.groups[0]
        return [found.brokers[0].arriving, found.topics[0].arriving, of_group.arriving, of_group.consuming]

    assert rates(BEFORE, NOW, restarted(14.0, 10)) == [None, None, None, None]
    assert rates(BEFORE, NOW, restarted(14.0, 10), restarted(16.0, 30)) == [10.0, 10.0, 10.0, 0.0]


def test_rates_are_those_of_the_last_15_seconds() -> None:
    samples = Samples()
    assert samples.traffic() == ([], [], [])
    committed = (0, 0, 0, 60, 60, 60, 60, 60, 110, 110, 110, 110, 110)  # every five seconds, as consumers do
    found = []
    for number, consumed in enumerate(committed):
        samples.add(Sample(2.0 * number, (), {"orders": 20 * number}, {("billing", "orders"): (20 * number, consumed)}))
        row = samples.traffic().groups[0] if number else None
        found.append(row.consuming if row else None)
    assert found[:4] == [None, 0.0, 0.0, 10.0]
    assert found[8:] == [110 / 16, 110 / 16, 110 / 16, 50 / 16, 50 / 16]
    assert samples.traffic().topics[0].arriving == 10.0


def test_samples_that_come_fast_are_few() -> None:
    samples = Samples()
    for number in range(1000):
        samples.add(Sample(number / 100, (), {"orders": number}))
    first = 1000 - SAMPLES_MAX
    assert samples.traffic().topics[0].arriving == pytest.approx(100.0)
    assert samples.traffic() == traffic(samples.last, Sample(first / 100, (), {"orders": first}))


def test_topics_of_brokers_and_groups_are_left_out() -> None:
    own = {"SCHEDULE_TOPIC_XXXX": 9, "rmq_sys_wheel_timer": 9, "%RETRY%billing": 9, "%DLQ%billing": 9, "orders": 9}
    report = report_of(traffic(Sample(12.0, [], own)), "12:00:00Z")
    assert [row[0] for row in report.tables[-1].rows] == ["orders"]


def test_a_group_without_retries_has_no_row_for_them() -> None:
    groups = {("a", "%RETRY%a"): (9, 9), ("b", "%RETRY%b"): (9, 8), ("c", "orders"): (9, 9)}
    report = report_of(traffic(Sample(12.0, groups=groups)), "12:00:00Z")
    assert [row[:2] for row in report.tables[1].rows] == [("b", "%RETRY%b"), ("c", "orders")]


def test_the_course_of_rates_is_drawn() -> None:
    async def looks(name_server: str) -> list[Report]:
        clock = HandClock()
        async with Admin.of([name_server]) as admin:
            looking = Looking(admin, clock)
            await looking.first()
            found = []
            for count, total in ((4, 4), (0, 4), (8, 12)):
                await asyncio.to_thread(send, name_server, "orders", count)
                await dispatched(name_server, total)
                clock.seconds += 1
                found.append(await looking.look())
            return found

    with EmbeddedCluster() as own:
        own.create_topic("orders")
        first, _, last = asyncio.run(looks(own.name_server))
    assert [table.columns[-1] for table in first.tables] == ["bytesBehind", "untilDoneSeconds", "messages"]
    assert last.tables[2].columns[-1] == "trend"
    assert [row[-1] for row in last.tables[2].rows] == ["█▅█"]
    assert [len(str(row[-1])) for row in last.tables[0].rows] == [3]
