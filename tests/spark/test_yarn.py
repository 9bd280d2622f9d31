"""Jobs on YARN: a resource manager and two nodes in one process, whose containers share no directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.brokers import create_topic, stored
from tests.spark.cluster import SPARK_HOME, yarn
from tests.spark.sites import ALL, MESSAGES, QUEUES, SECRET, SPLIT, Site, of_views, site_at

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("site")
    settings = (
        "spark.executor.instances=2",
        "spark.yarn.am.memory=256m",
        f"spark.yarn.jars=local:{SPARK_HOME}/jars/*",  # a cluster of several hosts gets them by spark.yarn.archive
        f"spark.yarn.stagingDir={home}/staging",
    )
    with yarn(home / "cluster") as variables, site_at(home, "yarn", *settings, variables=variables) as running:
        yield running


def test_containers_run_the_packed_environment_and_get_the_drivers_credentials(site: Site) -> None:
    seen = site.driver.run("seen")["found"]
    for python, package, secret, endpoint in seen["executors"]:
        assert python.endswith("/environment/bin/python")
        assert "/container_" in python
        assert package.endswith("firearrow-0-py3-none-any.zip/firearrow/__init__.py")
        assert (secret, endpoint) == (SECRET, site.variables["AWS_ENDPOINT_URL"])
    assert len({python for python, *_ in seen["executors"]}) == 2
    assert SECRET not in seen["command"]


def test_what_a_container_lacks_is_one_sentence(site: Site) -> None:
    assert site.driver.run("checked", directories=["/nowhere"])["found"].endswith(
        " does not see the directory /nowhere"
    )


def test_a_killed_container_loses_and_doubles_nothing(site: Site) -> None:
    done = site.driver.run("totals", options={"path": site.store, **SPLIT}, kill=site.mark("files"))
    assert done["found"] == ALL
    assert Path(site.mark("files")).exists()
    lake = site.lake
    words = ["archive", "--path", site.store, "--to", lake, "--option", "maxOffsetsPerTrigger=1500"]
    found = site.driver.run("report", words=words, kill=site.mark("archive"))["found"]
    assert found["Archived"][0][:3] == ["T", MESSAGES, 3]
    assert Path(site.mark("archive")).exists()
    assert site.driver.run("totals", options={"path": site.store, "archive": lake})["found"] == ALL
    create_topic(site.broker, "again", QUEUES)
    to = ["--to-name-server", site.broker.namesrv, "--job", str(site.home / "replay"), "--to-topic", "again"]
    site.driver.run("report", words=["replay", "--path", site.store, *to], kill=site.mark("replay"))
    assert Path(site.mark("replay")).exists()
    assert of_views(stored(site.broker, "again", QUEUES)) == ALL["T"]
