"""Jobs on a standalone cluster of two workers that share no directory; executors are killed in each kind of job."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden import extract
from tests.spark.brokers import create_topic, stored
from tests.spark.cluster import standalone
from tests.spark.jobs import orders
from tests.spark.sites import ALL, MESSAGES, QUEUES, SECRET, SPLIT, Site, of_views, site_at
from tests.store.stores import contents

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

GOLDEN = "file-cq-clean"
SMALL_TASKS_MAX = {"backlog": 40, "accounting": 25, "archive": 1}
KILLS_ALL = "FIREARROW_SPARK_KILL_ROUNDS" in os.environ
REPORTS_KILLED = {"backlog", "transactions"}
LARGE_TASKS_MAX = 40  # with Spark's own settings 1,612
NOW = "2026-11-18T17:00:00Z"  # as the shop's store has it


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("site")
    with (
        standalone(home / "cluster", workers=2) as master,
        site_at(home, master, "spark.cores.max=2", variables={}) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def shop(site: Site) -> str:
    """The store of a shop, in a directory."""
    return str(orders.fill(site.home / "shop"))


@pytest.fixture(scope="module")
def backlog(site: Site, shop: str) -> dict[str, Any]:
    """The job `backlog` on the shop's store, which the driver reads itself."""
    found: dict[str, Any] = site.driver.run("report", words=backlog_of(shop))
    return found


def backlog_of(store: str) -> list[str]:
    return ["backlog", "--path", store, "--now", NOW, "--top", "0"]


# --- what executors get, and what they must see ---


def test_executors_run_the_packed_environment_and_get_the_drivers_credentials(site: Site) -> None:
    seen = site.driver.run("seen")["found"]
    for python, package, secret, endpoint in seen["executors"]:
        assert python.endswith("/environment/bin/python")
        assert str(site.home / "cluster/worker-") in python
        assert package.endswith("firearrow-0-py3-none-any.zip/firearrow/__init__.py")
        assert (secret, endpoint) == (SECRET, site.variables["AWS_ENDPOINT_URL"])
    assert len({python for python, *_ in seen["executors"]}) == 2
    assert "spark.cores.max" in seen["command"]
    assert SECRET not in seen["command"]


def test_what_an_executor_lacks_is_one_sentence(site: Site, tmp_path: Path) -> None:
    def said(**needs: object) -> str:
        return str(site.driver.run("checked", **needs)["found"])

    assert said(uris=[site.store], servers=[site.broker.namesrv], marks=[str(tmp_path / "to")]) == ""
    assert list(tmp_path.iterdir()) == []
    assert said(directories=["/nowhere"]).endswith(" does not see the directory /nowhere")
    assert said(modules=["nothing"]).endswith(" lacks the package nothing")
    assert " can't reach nowhere://bucket/x: " in said(uris=["nowhere://key:secret@bucket/x"])
    assert "can't reach 127.0.0.1:1: Connection refused" in said(servers=["127.0.0.1:1"])
    for wrong, reason in (({"python": "./no/bin/python"}, "No such file"), ({"version": "3.1"}, "different version")):
        sentence = said(**wrong)
        assert sentence.startswith(
            f"the executors of {site.master} can't run Firearrow with ./environment/bin/python: "
        )
        assert reason in sentence
        assert len(sentence.splitlines()) == 1


def test_a_cluster_whose_cores_are_taken_is_one_sentence(site: Site) -> None:
    early, late = site.driver.run("waited_for", end=str(site.home / "free"))["found"].splitlines()
    assert early.startswith(f"firearrow: no executor of {site.master} has started within 0.1 s: are memory")
    assert late.startswith(f"no executor of {site.master} has started within 0.5 s: are memory")
    assert late.endswith("do they reach the driver at spark.driver.host=127.0.0.1?")


# --- jobs, in each of which an executor is killed ---


def test_a_store_in_an_object_store_is_read(site: Site) -> None:
    done = site.driver.run("totals", options={"path": site.store, **SPLIT}, kill=site.mark("files"))
    assert done["found"] == ALL
    assert Path(site.mark("files")).exists()


def test_what_is_sent_is_read_from_brokers(site: Site) -> None:
    create_topic(site.broker, "sent")
    there = {"nameServer": site.broker.namesrv, "topic": "sent", "idempotent": "true"}
    site.driver.run("sent", options=there, count=4000, kill=site.mark("sink"))
    assert Path(site.mark("sink")).exists()
    views = stored(site.broker, "sent")
    assert {view.body for view in views} == {b"order-%d" % number for number in range(4000)}  # at least once
    ids = Counter(view.properties["UNIQ_KEY"] for view in views)
    assert len(ids) == 4000  # and the copies are known
    read = {"nameServer": site.broker.namesrv, "subscribe": "sent", "splitBytes": "64k"}
    done = site.driver.run("totals", options=read, kill=site.mark("brokers"))
    assert done["found"] == {"sent": of_views(views)}
    assert Path(site.mark("brokers")).exists()


def test_a_stream_gets_each_message_once(site: Site) -> None:
    options = {"path": site.store, "maxOffsetsPerTrigger": "2500", **SPLIT}
    mark, checkpoint = site.mark("stream"), str(site.home / "checkpoint")
    found = site.driver.run("streamed", options=options, checkpoint=checkpoint, kill=mark)["found"]
    assert found == {**ALL, "batches": [2]}
    assert Path(mark).exists()


def test_an_archive_is_written_joined_restored_and_replayed(site: Site) -> None:
    lake = site.lake

    def run(job: str, *words: str, kill: bool = True) -> dict[str, Any]:
        mark = site.mark(job) if kill else ""
        found: dict[str, Any] = site.driver.run("report", words=[job, *words], kill=mark)["found"]
        assert not kill or Path(mark).exists()
        return found

    small = ("--option", "maxOffsetsPerTrigger=1500")
    found = run("archive", "--path", site.store, "--to", lake, *small)
    assert found["Archived"][0][:3] == ["T", MESSAGES, 3]
    archived = {"path": site.store, "archive": lake}
    assert site.driver.run("totals", options=archived)["found"] == ALL
    assert run("compact", "--archive", lake)["Compacted"] == [[3, 1]]
    assert site.driver.run("totals", options=archived)["found"] == ALL
    to = ("--to-name-server", site.broker.namesrv, "--job")
    run("restore", "--archive", lake, *to, str(site.home / "restore"))
    assert of_views(stored(site.broker, "T", QUEUES)) == ALL["T"]
    create_topic(site.broker, "again", QUEUES)
    run("replay", "--path", site.store, *to, str(site.home / "replay"), "--to-topic", "again")
    assert of_views(stored(site.broker, "again", QUEUES)) == ALL["T"]
    [expired] = run("expire", "--archive", lake, "--keep", "0")["Expired"]
    assert (expired[0], expired[2]) == ("T", MESSAGES)


def test_reports_are_the_same_from_executors_that_die(site: Site, shop: str, backlog: dict[str, Any]) -> None:
    """`make chaos` kills one in each report; to start it again takes five seconds."""
    jobs = [(backlog_of(shop), backlog)]
    for job, *more in (["deadletters"], ["latency", "--now", NOW], ["transactions", "--now", NOW], ["duplicates"]):
        words = [job, "--path", shop, "--top", "0", *more]
        jobs.append((words, site.driver.run("report", words=words)))
    for words, small in jobs:
        mark = site.mark(words[0]) if words[0] in REPORTS_KILLED or KILLS_ALL else ""
        large = site.driver.run("report", words=words, kill=mark, small=False)
        assert not mark or Path(mark).exists()
        assert ordered(large["found"]) == ordered(small["found"])


def test_a_watch_whose_executor_dies_tells_each_alert_once(site: Site, shop: str) -> None:
    def alerts(name: str, kill: str = "") -> list[Any]:
        words = ["watch", "--path", shop, "--once", "--alert", "messages > 1", "--checkpoint", str(site.home / name)]
        found: list[Any] = site.driver.run("report", words=words, kill=kill)["found"]["Alerts"]
        return found

    undisturbed = alerts("watched")
    assert len(undisturbed) > 1
    assert sorted(alerts("watched-again", site.mark("watch"))) == sorted(undisturbed)
    assert Path(site.mark("watch")).exists()


def ordered(tables: dict[str, list[Any]]) -> dict[str, list[str]]:
    """Tables without the order of equal rows."""
    return {title: sorted(map(json.dumps, rows)) for title, rows in tables.items()}


def test_a_store_is_verified_and_rebuilt_by_both_executors(site: Site) -> None:
    store, made = extract(GOLDEN, site.home / "golden"), site.home / "made"
    done = site.driver.run("repaired", store=str(store), to=str(made), meeting=str(site.home / "meeting"))
    findings, met = done["found"]
    assert (findings, done["executors"]) == (0, 2)
    assert met >= 2  # in the rebuild and in the verification
    assert contents(made / "consumequeue") == contents(store / "consumequeue")
    indexes = contents(made / "index")
    assert all(len(name) == 17 and name.isdigit() for name in indexes)  # times of making
    assert list(indexes.values()) == list(contents(store / "index").values())


# --- tasks ---


def test_small_jobs_take_few_tasks(site: Site, shop: str, backlog: dict[str, Any]) -> None:
    accounting = ["accounting", "--path", shop, "--now", NOW]
    archive = ["archive", "--path", site.store, "--to", "s3://bucket/few"]
    tasks = {words[0]: site.driver.run("report", words=words)["tasks"] for words in (accounting, archive)}
    tasks["backlog"] = backlog["tasks"]
    assert all(0 < tasks[job] <= most for job, most in SMALL_TASKS_MAX.items()), tasks
    large = site.driver.run("large_report", words=accounting)["tasks"]
    assert 0 < large <= LARGE_TASKS_MAX
