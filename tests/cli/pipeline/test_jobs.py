"""The command line of jobs: what it takes, what it refuses, what it says without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firearrow.cli.main import main
from firearrow.cli.output.reports import Report, Table
from firearrow.cli.pipeline import jobs as pipeline
from firearrow.cli.pipeline.jobs import JOBS, order_of
from firearrow.cli.pipeline.options import RunOptions

NEEDED = {
    "watch": ["--alert", "lag > 1"],
    "archive": ["--to", "lake"],
    "replay": ["--job", "job"],
    "tables": ["--to", "lake"],
}


OF_OTHERS = ("restore", "compact", "expire")
OF_MESSAGES = [job for job in JOBS if job.name not in OF_OTHERS]


@pytest.mark.parametrize("job", OF_MESSAGES, ids=lambda job: job.name)
def test_each_job_of_messages_takes_what_all_take(job: pipeline.Job) -> None:
    given = ["--path", "a", "--path", "b", "--option", "subscribe=T", "--top", "0", "--json"]
    given += ["--report", "page.html", *NEEDED.get(job.name, [])]
    order = order_of([job.name, *given])
    options = order.options
    assert (options.path, options.option) == (("a", "b"), (("subscribe", "T"),))
    assert options.source() == {"subscribe": "T", "paths": '["a", "b"]'}
    assert order.how == RunOptions(top=0, json=True, report=Path("page.html"))


@pytest.mark.parametrize("job", OF_MESSAGES, ids=lambda job: job.name)
def test_ages_are_counted_to_a_moment_where_there_are_any(
    job: pipeline.Job, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--path", "a", "--now", "2026-11-21T06:30:00", *NEEDED.get(job.name, [])]
    if job.name in ("backlog", "accounting", "transactions", "latency"):
        assert order_of([job.name, *given]).options.now == 1_795_242_600_000
        return
    with pytest.raises(SystemExit):
        main(["pipeline", job.name, *given])
    assert "unrecognized arguments: --now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "the following arguments are required: --path"),
        (["--path", "a", "--name-server", "b:1"], "unrecognized arguments: --name-server"),
        (["--path", "a", "--now", "noon"], "'noon' is not a time like 2026"),
        (["--path", "a", "--top", "-1"], "'-1' is not a whole number of 0 or more"),
        (["--path", "a", "--sample", "inf"], "'inf' is not a number above 0"),
        (["--path", "a", "--conf", "x"], "'x' is not KEY=VALUE"),
    ],
)
def test_a_wrong_command_line_is_explained(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        main(["pipeline", "backlog", *arguments])
    assert error.value.code == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("since", "until", "reason"),
    [
        ("2026-11-19", "2026-11-18", "argument --until: it is not after --since"),
        ("2026-11-19", "2026-11-19", "argument --until: it is not after --since"),
        ("1795242600", "2026-11-19", "1795242600 looks like seconds: a time is in ms since 1970"),
    ],
)
def test_times_that_select_nothing_are_a_wrong_command_line(
    since: str, until: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        main(["pipeline", "replay", "--path", "a", "--job", "b", "--since", since, "--until", until])
    assert error.value.code == 2
    assert reason in capsys.readouterr().err


def test_times_and_durations_are_read_as_people_write_them() -> None:
    given = ["--path", "a", "--now", "1795242600000", "--window", "2h", "--sample", "500ms"]
    options = order_of(["backlog", *given]).options
    assert (options.now, options.window, options.sample) == (1_795_242_600_000, 7200, 0.5)
    for window, window_seconds in (("90", 90), ("12d", 1_036_800), ("1234567s", 1_234_567)):
        assert order_of(["backlog", *given, "--window", window]).options.window == window_seconds


def test_without_spark_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipeline, "find_spec", lambda name: None)
    assert main(["pipeline", "backlog", "--path", "a"]) == 1
    assert main(["store", "verify", "a", "--spark", "local"]) == 2
    assert capsys.readouterr().err == 2 * "firearrow: this needs PySpark: pip install 'firearrow[spark]'\n"


def test_a_report_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    report = Report("R", {"source": "s"}, [Table("Backlog", ["lag"], [[3]])])
    pipeline.show(report, RunOptions(report=page))
    said = capsys.readouterr()
    assert said.out == "R\nsource: s\n\nBacklog\n  lag\n    3\n"
    assert said.err == f"firearrow: report in {page}\n"
    assert '<td class="n">3</td>' in page.read_text(encoding="utf-8")
    pipeline.show(report, RunOptions(json=True))
    assert json.loads(capsys.readouterr().out)["tables"][0]["rows"] == [{"lag": 3}]
