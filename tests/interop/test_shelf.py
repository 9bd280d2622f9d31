"""Tools of others accept what is beside the code, the workflows and the chart, and the chart's commands work."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from firearrow.cli.parser import parser_for
from tests.interop.servers import free_port, running
from tests.interop.toolchain import go_tool
from tests.interop.waiting import wait_until
from tests.pages import ROOT

CHART = ROOT / "packaging" / "helm" / "firearrow"
NEWEST, OLDEST = "1.37.0", "1.27.0"
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
    "large": {
        "image": {"digest": f"sha256:{64 * 'a'}"},
        "imagePullSecrets": [{"name": "secret"}],
        "namesrv": {"replicas": 3, "config": {"supportActingMaster": "true"}},
        "broker": {
            "replicas": 4,
            "config": {"flushDiskType": "SYNC_FLUSH", "fileReservedTime": "24"},
            "storage": {"size": "1Ti", "className": "fast"},
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "disk", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
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


def filled(text: str, values: Mapping[str, str]) -> str:
    """Replace the variables of a container, in either of the forms of Kubernetes and the shell."""
    return re.sub(r"\$\(?(\w+)\)?", lambda it: values[it[1]], text)


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
    replicated = [] if values == "small" else ["cluster", "console", "proxy"]
    assert sorted(names) == sorted(["namesrv", "broker", "check", *replicated])


def test_ports_and_selectors_of_the_chart_fit() -> None:
    found = objects("default")
    labels = [it["spec"]["template"]["metadata"]["labels"] for it in found if "template" in it["spec"]]
    selectors = [it["spec"]["selector"] for it in found if "selector" in it["spec"]]
    wanted = [selector.get("matchLabels", selector) for selector in selectors]
    assert [selector for selector in wanted if sum(selector.items() <= own.items() for own in labels) != 1] == []
    offered = {port["name"] for _, container, _ in containers("default") for port in container.get("ports", ())}
    asked = re.findall(r"(?:port|targetPort): ([a-z]+)\b", rendered("default"))
    assert set(asked) <= offered
    assert len([it for it in found if it["kind"] == "PodDisruptionBudget"]) == 3


def test_a_broker_of_the_chart_is_drained_stopped_and_comes_back(tmp_path: Path) -> None:
    """Run the commands of the chart's pods here, with other ports and places, and shorter waits of the drain."""
    pods = {name: container for name, container, _ in containers("default")}
    args = {name: container["args"] for name, container in pods.items()}
    stop = pods["broker"]["lifecycle"]["preStop"]["exec"]["command"]
    namesrv = free_port(0)
    servers = re.compile(r"mq-firearrow-namesrv-0\.[\w.-]+:9876;[\w.-]+:9876")

    def here(words: list[str], pod: str) -> list[str]:
        variables = {"POD_NAME": pod, "POD_IP": "127.0.0.1"}
        texts = (servers.sub(f"localhost:{namesrv}", word) for word in words)
        texts = (re.sub(r"--(route-seconds|deadline) \d+", r"--\1 1", text) for text in texts)
        return [filled(text, variables).replace("/var/lib/firearrow", str(tmp_path / pod)) for text in texts]

    def broker(number: int) -> list[str]:
        pod = f"mq-firearrow-broker-{number}"
        (tmp_path / pod).mkdir(exist_ok=True)
        ports = ["--set=metricsPromExporterPort=0", "--grpc-port=0", f"--broker-port={free_port(-2, 0, 1)}"]
        return [str(BIN / "firearrow"), *here(args["broker"], pod), "--host=127.0.0.1", *ports]

    def is_well() -> bool:
        command = [str(BIN / "firearrow"), *here(args["check"], "check")]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    command = [str(BIN / "firearrow"), *args["namesrv"], "--host=127.0.0.1", f"--port={namesrv}"]
    with running(command, tmp_path / "namesrv.log"), running(broker(0), tmp_path / "0.log"):
        with running(broker(1), tmp_path / "1.log") as first:
            wait_until(is_well, 60, "both brokers")
            variables = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
            command = here(stop, "mq-firearrow-broker-1")
            drained = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
            assert drained.returncode == 0, drained.stderr
            assert "mq-firearrow-broker-1" in drained.stdout
            assert first.stop() == 0
        assert not is_well()
        with running(broker(1), tmp_path / "again.log"):
            wait_until(is_well, 60, "the broker that comes back")
