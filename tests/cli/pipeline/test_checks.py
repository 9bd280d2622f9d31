"""What is wrong with a command line is said before Spark is started: there is none here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from firearrow.cli.main import main
from firearrow.cli.pipeline import jobs as pipeline
from firearrow.errors import ConfigError, FirearrowError
from tests.store.stores import append, opened


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store of one message, where Spark can't be started."""

    def started(*_: object) -> None:
        pytest.fail("Spark is started")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pipeline, "_started", started)
    with opened(tmp_path / "store") as store:
        append(store, b"body", "Orders", 0)
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    return "store"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("backlog --path nowhere", "the directory does not exist or is empty"),
        ("latency --path store --path nowhere", "the directory does not exist or is empty"),
        ("duplicates --path store --option subscribe=Odrers", "topic 'Odrers' is in none"),
        ("duplicates --path store --option subscrbe=Orders", "did you mean subscribe?"),
        ("duplicates --name-server here", "here"),
        ("duplicates --name-server 127.0.0.1:1", "127.0.0.1:1"),
        ("backlog --path store --master lokal", "--master lokal: must be local, local[N]"),
        ("backlog --path store --master spark://127.0.0.1:1", "Spark does not start: 127.0.0.1:1 c"),
        ("backlog --path store --master spark://here", "'here' is not an address"),
        ("backlog --path store --report nowhere/page.html", "the directory nowhere does not exist"),
        ("backlog --path store --report .", "is a directory"),
        ("backlog --path store --spark-log nowhere/log", "the directory nowhere does not exist"),
        ("latency --path store --delay-levels 1x", "1x"),
        ("archive --path store --to file/lake", "file is not a directory"),
        ("archive --path store --to lake --option tags=a", "an archive contains whole queues"),
        ("restore --archive nowhere --job job --dry-run", "there is no archive, or it is empty"),
        ("restore --archive store --job job", "sending needs --to-name-server"),
        ("compact --archive nowhere", "there is no archive, or it is empty"),
        ("replay --path store --job job", "replay needs --to-topic"),
        ("replay --path store --job job --option tags=a", "option tags: a replay chooses messages"),
        ("replay --path store --job file/job --dry-run", "file is not a directory"),
        ("replay --path store --job j --to-topic T --to-name-server x", "'x' is not an address"),
        ("deadletters --path store --resend", "--resend needs --audit DIR and --to-name-server"),
        ("deadletters --path store --dry-run", "--dry-run can only be used with --resend"),
        ("deadletters --path store --to-topic T", "--to-topic can only be used with --resend"),
        ("deadletters --path store --where (a=1", "--where '(a=1': a ) is missing"),
        ("deadletters --path store --where a=1)", "a ) has no opening counterpart"),
        ("deadletters --path store --where a='x", "a ' is not closed"),
        ("watch --path store --alert lag", "must be METRIC > NUMBER"),
        ("watch --name-server a:1 --alert lag>1", "lag and lost are read from a store's files"),
        ("watch --path store --alert lag>1 --to-topic T", "--to-topic needs --to-name-server"),
        ("watch --path store --alert lag>1 --webhook hook", "is not an http or https URL"),
        ("watch --path store --alert lag>1 --webhook http://a --to-topic T", "alerts go to one of them"),
    ],
)
def test_it_is_one_sentence(line: str, reason: str, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", *line.split(" ")]) == 1
    require_sentence(capsys.readouterr().err, reason)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("verify nowhere --spark local", "the directory does not exist or is empty"),
        ("verify s3://bucket/store --spark local", "the directory does not exist or is empty"),
        ("rebuild file --spark local", "file"),
        ("verify store --spark lokal", "--spark lokal: must be local, local[N]"),
        ("verify store --spark spark://127.0.0.1:1", "Spark does not start: 127.0.0.1:1 c"),
        ("verify store --spark local --spark-log .", "--spark-log . is a directory"),
        ("verify store --conf a=b", "--conf can only be used with --spark"),
        ("rebuild store --spark-log log", "--spark-log can only be used with --spark"),
        ("verify store --report nowhere/page.html", "the directory nowhere does not exist"),
        ("rebuild store --to file/made", "file is not a directory"),
    ],
)
def test_so_it_is_of_the_store_s_tools(line: str, reason: str, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", *line.split(" ")]) == 2
    require_sentence(capsys.readouterr().err, reason)


def require_sentence(said: str, reason: str) -> None:
    assert said.startswith("firearrow: ")
    assert reason in said
    assert len(said.splitlines()) == 1


@pytest.mark.spark
def test_a_condition_may_hold_brackets_in_its_texts(store: str) -> None:
    condition = "text like '%(%' and `a)` in (1, 2) and tags = 'it\\'s'"
    with pytest.raises(pytest.fail.Exception, match="Spark is started"):
        main(["pipeline", "deadletters", "--path", store, "--where", condition])


@pytest.mark.spark
def test_small_stores_get_settings_of_their_own(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, str] = {}

    def started(given: dict[str, str], _: object) -> None:
        settings.update(given)
        raise FirearrowError("Spark is started")

    monkeypatch.setattr(pipeline, "_started", started)
    line = ["pipeline", "backlog", "--path", store, "--conf", "spark.sql.adaptive.enabled=true"]
    assert main(line) == 1
    wanted = {**pipeline.SMALL, "spark.sql.adaptive.enabled": "true"}
    assert settings | wanted == settings
    monkeypatch.setattr("firearrow.spark.jobs.reports.reading.MESSAGES_MAX", 0)
    assert main(line) == 1
    assert settings["spark.sql.shuffle.partitions"] == "8"


@pytest.mark.spark
def test_a_class_path_of_their_own_has_no_class_data(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    @contextmanager
    def started(given: dict[str, str], _: object) -> Iterator[None]:
        tried.append(given["spark.driver.defaultJavaOptions"])
        raise ConfigError("Spark does not start")
        yield

    monkeypatch.setattr(pipeline, "_started", started)
    line = ["pipeline", "backlog", "--path", store]
    assert main([*line, "--conf", "spark.driver.extraClassPath=more.jar"]) == 1
    assert main(line) == 1
    with_it = ["ClassesAtExit" in options for options in tried]
    assert with_it == [False, True, False]  # the last is the second try of a JVM that fails
