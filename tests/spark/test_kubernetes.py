"""Jobs on pods, against Kubernetes' own API server; the node is a part of these tests. `make kubernetes` runs them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.interop.waiting import wait_until
from tests.pages import DOCS, blocks
from tests.spark.brokers import create_topic, stored
from tests.spark.cluster_driver import POD
from tests.spark.kubernetes.controlplane import CORE, ControlPlane, control_plane
from tests.spark.kubernetes.node import node
from tests.spark.sites import ALL, MESSAGES, QUEUES, SECRET, SPLIT, Site, of_views, site_at

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

PAGE = DOCS / "spark-clusters.md"
RECIPE = PAGE.read_text().partition("\n## Kubernetes\n")[2].partition("\n## ")[0]
NAMESPACE = "analytics"
ACCOUNT = "firearrow"
PODS = f"{CORE}/namespaces/{NAMESPACE}/pods"
CONFIG_MAPS = f"{CORE}/namespaces/{NAMESPACE}/configmaps"
KILLED_WITHIN_S = 120
COMMAND = """
import sys
from firearrow.cli.main import main
from firearrow.cli.pipeline import clusters
clusters.START_SECONDS_OF_OTHERS = 3.0
clusters.SLOW_SECONDS = 1.0
sys.exit(main(sys.argv[1:]))
"""


def manifests() -> list[dict[str, Any]]:
    """The objects that the documentation tells an operator to create."""
    [block] = blocks(PAGE, "yaml")
    return list(yaml.safe_load_all(block.code))


def prepare(plane: ControlPlane, shared: Path) -> None:
    """Create these objects, and what controllers and an operator of Kubernetes would create."""
    name, size = {"name": "jobs"}, {"storage": "1Gi"}
    of_both = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {**of_both, "capacity": size, "hostPath": {"path": str(shared)}}
    claim = {**of_both, "resources": {"requests": size}, "volumeName": "jobs"}
    in_namespace = {**name, "namespace": NAMESPACE}
    plane.create({"kind": "Namespace", "metadata": {"name": NAMESPACE}})
    plane.create({"kind": "ServiceAccount", "metadata": {"name": "default", "namespace": NAMESPACE}})
    plane.create({"kind": "PersistentVolume", "metadata": name, "spec": volume})
    plane.create({"kind": "PersistentVolumeClaim", "metadata": in_namespace, "spec": claim})
    for manifest in manifests():
        plane.create(manifest)


def settings(plane: ControlPlane, home: Path, account: str) -> list[str]:
    """The settings of the recipe, with a token of a service account."""
    token = home / f"token-{account}"
    token.write_text(plane.token(NAMESPACE, account))
    return [
        f"spark.kubernetes.namespace={NAMESPACE}",
        "spark.kubernetes.container.image=registry.example/spark:1",
        f"spark.kubernetes.authenticate.caCertFile={plane.certificate}",
        f"spark.kubernetes.authenticate.oauthTokenFile={token}",
        f"spark.kubernetes.executor.volumes.persistentVolumeClaim.jobs.mount.path={home}",
        "spark.kubernetes.executor.volumes.persistentVolumeClaim.jobs.options.claimName=jobs",
        "spark.executor.instances=2",
    ]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("site")


@pytest.fixture(scope="module")
def plane(home: Path) -> Iterator[ControlPlane]:
    with control_plane(home / "plane") as plane:
        prepare(plane, home)
        with node(plane, home / "node"):
            yield plane


@pytest.fixture(scope="module")
def site(plane: ControlPlane, home: Path) -> Iterator[Site]:
    quick = "spark.kubernetes.executor.apiPollingInterval=2s"  # until a deleted pod has a successor
    with site_at(home, f"k8s://{plane.url}", *settings(plane, home, ACCOUNT), quick, variables={}) as running:
        yield running


def delete_pod(plane: ControlPlane, mark: Path) -> str:
    """Delete the pod whose name a task writes to a file; return that name."""
    name = wait_until(lambda: mark.read_text() if mark.exists() else "", KILLED_WITHIN_S, "a task of a pod")
    plane.change("DELETE", f"{PODS}/{name}")
    return name


def names(plane: ControlPlane) -> set[str]:
    return {pod["metadata"]["name"] for pod in plane.listed(PODS)}


def failure(plane: ControlPlane, home: Path, account: str, *more: str) -> list[str]:
    """The sentences of the command instead of the result of a job, with the token of an account."""
    own = ("spark.driver.host=127.0.0.1", "spark.scheduler.maxRegisteredResourcesWaitingTime=1s")
    options = [word for it in (*settings(plane, home, account), *own, *more) for word in ("--conf", it)]
    words = ["pipeline", "accounting", "--path", str(home / "store"), "--master", f"k8s://{plane.url}", *options]
    ended = subprocess.run([sys.executable, "-c", COMMAND, *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    return ended.stderr.splitlines()


def test_the_recipe_has_the_options_of_these_tests(plane: ControlPlane, home: Path) -> None:
    documented = set(re.findall(r"--conf (spark\.kubernetes\.[\w.]+)=", RECIPE))
    assert documented == {setting.partition("=")[0] for setting in settings(plane, home, ACCOUNT)[:-1]}


def test_pods_run_the_packed_environment_and_get_the_drivers_credentials(site: Site, plane: ControlPlane) -> None:
    seen = site.driver.run("seen")["found"]
    for python, package, secret, endpoint in seen["executors"]:
        assert python == "/opt/spark/work-dir/environment/bin/python"
        assert package == "./firearrow-0-py3-none-any.zip/firearrow/__init__.py"
        assert (secret, endpoint) == (SECRET, site.variables["AWS_ENDPOINT_URL"])
    assert len(seen["executors"]) == 2
    assert SECRET not in seen["command"]
    pods = plane.listed(PODS)
    assert len(pods) == 2
    assert {pod["status"]["phase"] for pod in pods} == {"Running"}
    assert json.dumps(pods).count(SECRET) == 2  # the documentation says so


def test_what_a_pod_lacks_is_one_sentence(site: Site) -> None:
    found = site.driver.run("checked", directories=["/nowhere"])["found"]
    assert re.fullmatch(r"executor on firearrow-\S+-exec-\d does not see the directory /nowhere \(.*\)", found)
    assert found.endswith(" (2 hosts lack something)")


@pytest.mark.parametrize("job", ["totals", "streamed"])
def test_a_deleted_pod_loses_and_doubles_nothing(site: Site, plane: ControlPlane, job: str) -> None:
    mark = site.home / f"{job}-{POD}"
    of_stream = {"maxOffsetsPerTrigger": "2500"} if job == "streamed" else {}
    arguments = {"checkpoint": str(site.home / "checkpoint")} if job == "streamed" else {}
    with ThreadPoolExecutor(1) as pool:
        deleting = pool.submit(delete_pod, plane, mark)
        done = site.driver.run(job, options={"path": site.store, **SPLIT, **of_stream}, kill=str(mark), **arguments)
        deleted = deleting.result()
    assert done["found"] == ({**ALL, "batches": [2]} if job == "streamed" else ALL)
    pods = wait_until(lambda: found if len(found := names(plane)) == 2 else set(), KILLED_WITHIN_S, "another pod")
    assert deleted not in pods


def test_a_killed_container_loses_and_doubles_nothing(site: Site) -> None:
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
    views = stored(site.broker, "again", QUEUES)
    assert of_views(views) == ALL["T"]
    read = {"nameServer": site.broker.namesrv, "subscribe": "again", "splitBytes": "64k"}
    assert site.driver.run("totals", options=read)["found"] == {"again": of_views(views)}


def test_a_pod_that_stays_pending_is_one_sentence(site: Site, plane: ControlPlane) -> None:
    early, late = failure(plane, site.home, ACCOUNT, "spark.kubernetes.node.selector.disk=none")
    for seconds, said in ((1, early), (3, late)):
        assert said == (
            f"firearrow: no executor of {site.master} has started within {seconds} s: 'kubectl -n {NAMESPACE} get"
            " pods,events' says why its pods wait or fail; pods that run must reach the driver at"
            " spark.driver.host=127.0.0.1"
        )
    assert len(plane.listed(PODS)) == 2  # those of the other application
    assert len(plane.listed(CONFIG_MAPS)) == 1


@pytest.mark.parametrize(
    ("kind", "verb", "said"),
    [
        ("configmaps", "create", "POST {}/configmaps: configmaps is forbidden"),
        ("pods", "create", "POST {}/pods: pods is forbidden"),
        ("pods", "watch", "WATCH {}/pods: Forbidden"),
    ],
)
def test_a_missing_permission_is_one_sentence(site: Site, plane: ControlPlane, kind: str, verb: str, said: str) -> None:
    name = f"without-{verb}-{kind}"
    for manifest in json.loads(json.dumps(manifests()).replace(ACCOUNT, name)):
        for rule in manifest.get("rules", []):
            if kind in rule["resources"]:
                rule["verbs"].remove(verb)
        plane.create(manifest)
    *_, found = failure(plane, site.home, name)
    place = f"{plane.url}{CORE}/namespaces/{NAMESPACE}"
    assert found.startswith(f"firearrow: Spark does not start: Kubernetes refuses {said.format(place)}")
