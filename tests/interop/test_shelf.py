"""Tools of others accept what is beside the code, the workflows and the chart, and the chart's commands work."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from firearrow.cli.parser import parser_for
from tests.deployment import FIREARROW, WITHIN_S, Deployment
from tests.interop.toolchain import go_tool
from tests.interop.waiting import wait_until
from tests.pages import ROOT

CHART = ROOT / "packaging" / "helm" / "firearrow"
NEWEST, OLDEST = "1.37.0", "1.28.0"
BIN = Path(sys.executable).parent
HELM = BIN / "helm"

# Values with which the chart has other parts than by default.
VALUES: dict[str, dict[str, Any]] = {
    "default": {},
    "small": {
        "namesrv": {"replicas": 1},
        "broker": {"replicas": 1},
        "proxy": {"enabled": False},
        "console": {"enabled": False},
    },
    "replicated": {
        "namesrv": {"replicas": 1},
        "broker": {"replicas": 1, "copies": 2},
        "proxy": {"enabled": False},
        "console": {"enabled": False},
    },
    "large": {
        "image": {"digest": f"sha256:{64 * 'a'}"},
        "imagePullSecrets": [{"name": "secret"}],
        "namesrv": {"replicas": 3, "config": {"supportActingMaster": "true"}},
        "broker": {
            "replicas": 4,
            "copies": 3,
            "config": {"flushDiskType": "SYNC_FLUSH", "fileReservedTime": "24"},
            "storage": {"size": "1Ti", "className": "fast"},
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "disk", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
        },
        "controller": {
            "replicas": 5,
            "config": {"scanNotActiveBrokerInterval": "1000"},
            "storage": {"size": "2Gi", "className": "fast"},
        },
        "proxy": {"config": {"topicRouteServiceCacheRefreshSeconds": "5"}, "service": {"type": "LoadBalancer"}},
        "console": {"names": ["console.example.com"], "prometheus": "http://prometheus:9090"},
    },
}


def accepted(*command: object, given: str = "") -> str:
    """Run a tool that must have nothing to say against something; return its output."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def rendered(values: str, kubernetes: str = NEWEST) -> str:
    """Return the chart's objects with some of `VALUES`."""
    options = ("--namespace", "messages", "--kube-version", kubernetes, "--values", "-")
    return accepted(HELM, "template", "mq", CHART, *options, given=json.dumps(VALUES[values]))


def objects(values: str) -> list[dict[str, Any]]:
    return [it for it in yaml.safe_load_all(rendered(values)) if it]


def containers(values: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Give each container with its name and the specification of its pod."""
    for it in objects(values):
        pod = it["spec"] if it["kind"] == "Pod" else it["spec"].get("template", {}).get("spec", {})
        for container in pod.get("containers", ()):
            yield container["name"], container, pod


def pods(values: str) -> dict[str, list[str]]:
    """Return the command of each pod of a stateful set by its name, with the variables that a kubelet replaces."""
    found = {}
    for it in objects(values):
        [container] = it["spec"]["template"]["spec"]["containers"] if it["kind"] == "StatefulSet" else [{}]
        for index in range(it["spec"]["replicas"] if container else 0):
            name = f"{it['metadata']['name']}-{index}"
            fields = {
                "metadata.name": name,
                "status.podIP": "127.0.0.1",
                "metadata.labels['apps.kubernetes.io/pod-index']": str(index),
            }
            variables = {
                each["name"]: fields[each["valueFrom"]["fieldRef"]["fieldPath"]] for each in container.get("env", ())
            }
            found[name] = [filled(word, variables) for word in container["args"]]
    return found


def filled(text: str, variables: Mapping[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda it: variables[it[1]], text)


class Release(Deployment):
    """The pods of the stateful sets of the chart with some of `VALUES`."""

    def __init__(self, values: str, home: Path, stack: ExitStack) -> None:
        super().__init__(home, stack, pods(values))
        self._containers = {name: container for name, container, _ in containers(values)}
        for name in self.commands:
            self.start(name)
        wait_until(self.is_well, WITHIN_S, "servers")

    @property
    def namesrv(self) -> str:
        return self.address("mq-firearrow-namesrv-0", 9876)

    def is_well(self) -> bool:
        """Run the check that `helm test` runs."""
        words = [self.here("check", word) for word in self._containers["check"]["args"]]
        return subprocess.run([FIREARROW, *words], capture_output=True, check=False).returncode == 0

    def before_stop(self, name: str) -> str:
        """Run the hook of a broker's pod, with shorter waits; return its output."""
        command = self._containers["broker"]["lifecycle"]["preStop"]["exec"]["command"]
        command = [re.sub(r"--(route-seconds|deadline) \d+", r"--\1 1", self.here(name, word)) for word in command]
        variables = {**os.environ, "POD_NAME": name, "PATH": f"{BIN}:{os.environ['PATH']}"}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


def test_actionlint_accepts_the_workflows() -> None:
    assert accepted(go_tool("actionlint"), "-shellcheck=", "-no-color") == ""


@pytest.mark.parametrize("values", VALUES)
def test_helm_accepts_the_chart(values: str) -> None:
    options = ("--strict", "--quiet", "--kube-version", NEWEST, "--values", "-")
    accepted(HELM, "lint", CHART, *options, given=json.dumps(VALUES[values]))


def test_helm_refuses_values_that_are_none() -> None:
    for wrong in ({"broker": {"replica": 2}}, {"broker": {"replicas": 0}}, {"image": {"digest": "latest"}}):
        command = list(map(str, (HELM, "template", CHART, "--kube-version", NEWEST, "--values", "-")))
        refused = subprocess.run(command, input=json.dumps(wrong), capture_output=True, text=True, check=False)
        assert refused.returncode != 0
        assert "values don't meet the specifications of the schema" in refused.stderr


@pytest.mark.parametrize("kubernetes", [OLDEST, NEWEST])
def test_kubernetes_knows_every_field_of_the_chart(kubernetes: str, tmp_path: Path) -> None:
    """The schemas come with a package; kubeconform resolves their references beside them, not by their addresses."""
    source = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{kubernetes}-local-strict"
    for kind in ("deployment-apps", "pod", "poddisruptionbudget-policy", "service", "statefulset-apps"):
        copy_schema(source.joinpath(f"{kind}-v1.json").read_text(), tmp_path / f"{kind}-v1.json")
    copy_schema(source.joinpath("_definitions.json").read_text(), tmp_path / "_definitions.json")
    location = f"{tmp_path}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    command = (go_tool("kubeconform"), "-strict", "-summary", "-schema-location", location)
    for values in VALUES:
        summary = accepted(*command, given=rendered(values, kubernetes))
        assert re.search(r"Valid: [1-9]\d*, Invalid: 0, Errors: 0, Skipped: 0", summary)
    misspelt = rendered("default").replace("replicas:", "replicaz:")
    refused = subprocess.run(list(map(str, command)), input=misspelt, capture_output=True, text=True, check=False)
    assert "additional properties 'replicaz' not allowed" in refused.stdout


def copy_schema(text: str, to: Path) -> None:
    schema = json.loads(text.replace('"/api/_definitions.json#', '"_definitions.json#'))
    del schema["$id"]
    to.write_text(json.dumps(schema))


@pytest.mark.parametrize("values", VALUES)
def test_each_command_of_the_chart_is_one_of_firearrow(values: str) -> None:
    names = []
    for name, container, pod in containers(values):
        lines = [container["args"]]
        stop = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
        if stop[:2] == ["sh", "-c"]:
            program, *words = shlex.split(stop[2])
            assert program == "firearrow"
            lines.append(words)
            waited = sum(int(words[words.index(option) + 1]) for option in ("--route-seconds", "--deadline"))
            assert pod["terminationGracePeriodSeconds"] > waited + 60
        for words in lines:
            parser, rest = parser_for(words)
            parser.raise_errors()
            assert parser.bound(rest).arguments
        names += [name, *(words[0] for words in lines[1:])]
    more = {
        "default": ["cluster", "console", "proxy"],
        "small": [],
        "replicated": ["controller"],
        "large": ["controller", *3 * ["broker"], "console", "proxy"],
    }
    assert sorted(names) == sorted(["namesrv", "broker", "check", *more[values]])


def test_an_update_of_the_chart_does_not_stop_all_masters_at_once() -> None:
    found = []
    for name, container, pod in containers("large"):
        if name == "broker":
            stop = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
            assert stop[0] == "sleep"
            assert pod["terminationGracePeriodSeconds"] > int(stop[1]) + 60
            found.append(int(stop[1]))
    assert found == [0, 20, 40, 60]


@pytest.mark.parametrize(("values", "budgets"), [("default", 3), ("large", 7)])
def test_ports_and_selectors_of_the_chart_fit(values: str, budgets: int) -> None:
    found = objects(values)
    labels = [it["spec"]["template"]["metadata"]["labels"] for it in found if "template" in it["spec"]]
    selectors = [it["spec"]["selector"] for it in found if "selector" in it["spec"]]
    wanted = [selector.get("matchLabels", selector) for selector in selectors]
    assert [selector for selector in wanted if sum(selector.items() <= own.items() for own in labels) != 1] == []
    offered = {port["name"] for _, container, _ in containers(values) for port in container.get("ports", ())}
    asked = re.findall(r"(?:port|targetPort): ([a-z]+)\b", rendered(values))
    assert set(asked) <= offered
    assert len([it for it in found if it["kind"] == "PodDisruptionBudget"]) == budgets


def test_a_broker_of_the_chart_is_drained_stopped_and_comes_back(tmp_path: Path) -> None:
    with ExitStack() as stack:
        release = Release("default", tmp_path, stack)
        assert "mq-firearrow-broker-1" in release.before_stop("mq-firearrow-broker-1")
        assert release.processes["mq-firearrow-broker-1"].stop() == 0
        assert not release.is_well()
        release.start("mq-firearrow-broker-1")
        wait_until(release.is_well, WITHIN_S, "the broker that comes back")


@pytest.mark.slow
def test_a_broker_of_the_chart_with_copies_survives_the_loss_of_its_master(tmp_path: Path) -> None:
    with ExitStack() as stack:
        release = Release("replicated", tmp_path, stack)

        def copies_in_sync() -> int:
            [row] = json.loads(release.run("replica", "sets", "-n", release.namesrv, "--json"))
            return len(row["inSync"].split())

        def master() -> str | None:
            return release.master("mq-firearrow-broker-0", release.namesrv)

        wait_until(lambda: copies_in_sync() == 2, WITHIN_S, "two copies in sync")
        first = master()
        assert first is not None
        release.run("topic", "create", "greetings", "-n", release.namesrv)
        release.run("message", "send", "greetings", "hello", "-n", release.namesrv)
        assert release.processes[first].stop() == 0
        wait_until(lambda: master() not in (None, first), WITHIN_S, "another master")
        assert "hello" in release.run("message", "cat", "greetings", "-n", release.namesrv)
        release.run("message", "send", "greetings", "again", "-n", release.namesrv)
        release.start(first)
        wait_until(lambda: copies_in_sync() == 2, WITHIN_S, "the former master as a copy")
        assert release.is_ready(first)
        assert release.is_well()
