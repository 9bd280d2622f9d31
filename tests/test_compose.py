"""`compose.yaml` is a cluster that works: its commands run here as it has them, but for ports and places."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from firearrow.cli.parser import parser_for
from tests.deployment import PORTS, WITHIN_S, Deployment, read
from tests.interop.waiting import wait_until
from tests.pages import ROOT

SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
IMAGE = "${FIREARROW_IMAGE:-firearrow}"
COMMANDS: dict[str, list[str]] = {name: it["command"] for name, it in SERVICES.items() if it["image"] == IMAGE}


def monitored() -> dict[str, list[str]]:
    """Return the addresses that Prometheus scrapes by job."""
    found = yaml.safe_load((ROOT / "packaging/compose/prometheus.yml").read_text(encoding="utf-8"))
    return {job["job_name"]: job["static_configs"][0]["targets"] for job in found["scrape_configs"]}


class Composition(Deployment):
    """The services of Firearrow."""

    def is_healthy(self, service: str) -> bool:
        """Run the health check of a service."""
        _, *check = SERVICES[service]["healthcheck"]["test"]
        command = [sys.executable, *(self.here(service, word) for word in check[1:])]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextmanager
def composed(home: Path) -> Iterator[Composition]:
    with ExitStack() as stack:
        found = Composition(home, stack, COMMANDS)
        for service in COMMANDS:
            found.start(service)
        for service in COMMANDS:
            wait_until(lambda it=service: found.is_healthy(it), WITHIN_S, f"health of {service}")  # type: ignore[misc]
        yield found


def test_it_is_as_the_specification_of_compose_says() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_it_has_a_whole_cluster() -> None:
    kinds = [command[0] for command in COMMANDS.values()]
    assert kinds == ["namesrv", *3 * ["controller"], *2 * ["broker"], "proxy", "console"]
    assert SERVICES.keys() - COMMANDS.keys() == {"prometheus", "grafana"}


@pytest.mark.parametrize("service", COMMANDS)
def test_each_command_is_one_of_firearrow(service: str) -> None:
    parser, rest = parser_for(COMMANDS[service])
    parser.raise_errors()
    assert parser.bound(rest).arguments


def test_the_check_in_containers_runs_commands_of_firearrow() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = re.findall(r"^\t@docker compose exec -T ([\w-]+) firearrow (.*)$", makefile, re.MULTILINE)
    assert len(lines) == 3
    for service, line in lines:
        parser, rest = parser_for(line.split())
        parser.raise_errors()
        assert service in COMMANDS
        assert parser.bound(rest).arguments


def test_addresses_are_those_of_services() -> None:
    words = " ".join(word for command in COMMANDS.values() for word in command)
    named = re.findall(r"([a-z][a-z0-9-]*?):(\d{4,5})\b", re.sub(r"\bn\d-|http://", "", words))
    targets = [tuple(target.split(":")) for targets in monitored().values() for target in targets]
    ours = {(name, port) for name, port in (*named, *targets) if name in COMMANDS}
    assert {name for name, _ in {*named, *targets}} <= SERVICES.keys()
    assert [(name, port) for name, port in ours if int(port) not in PORTS[COMMANDS[name][0]]] == []
    published = [it.split(":") for service in SERVICES.values() for it in service.get("ports", ())]
    assert {host for host, _, _ in published} == {"127.0.0.1"}


def test_images_of_others_are_pinned_and_files_that_are_mounted_exist() -> None:
    images = [service["image"] for name, service in SERVICES.items() if name not in COMMANDS]
    assert [
        image for image in images if not re.fullmatch(r"docker\.io/[\w/]+:v?[\d.]+@sha256:[0-9a-f]{64}", image)
    ] == []
    mounts = [it for service in SERVICES.values() for it in service.get("volumes", ()) if it.startswith("./")]
    assert [it for it in mounts if not (ROOT / it.split(":")[0]).is_file()] == []
    rules = yaml.safe_load((ROOT / "packaging/compose/prometheus.yml").read_text(encoding="utf-8"))["rule_files"]
    assert rules == [it.split(":")[1] for it in mounts if "alerts" in it]
    assert "rocketmq" in monitored()
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home in [it.split(":")[1] for it in mounts]


@pytest.mark.slow
def test_the_cluster_works_and_survives_the_loss_of_its_master(tmp_path: Path) -> None:
    with composed(tmp_path) as cluster:
        name_server, proxy = cluster.address("namesrv", 9876), cluster.address("proxy", 8080)
        master = wait_until(lambda: cluster.master("broker-a", name_server), WITHIN_S, "a master")
        cluster.run("topic", "create", "greetings", "-n", name_server)
        cluster.run("message", "send", "greetings", "hello", "-n", proxy)
        for target in (target for targets in monitored().values() for target in targets):
            service, port = target.split(":")
            assert b"# TYPE" in read(cluster.address(service, int(port)), "/metrics")
        wait_until(lambda: b"broker-a" in read(cluster.address("console", 8088), "/"), WITHIN_S, "a page with brokers")
        assert cluster.processes[master].stop() == 0
        taken = (None, master)
        wait_until(lambda: cluster.master("broker-a", name_server) not in taken, WITHIN_S, "another master")
        assert "hello" in cluster.run("message", "cat", "greetings", "-n", name_server)
        cluster.run("message", "send", "greetings", "again", "-n", name_server)
        cluster.start(master)
        wait_until(lambda: cluster.is_healthy(master), WITHIN_S, "the former master")
        assert "again" in cluster.run("message", "cat", "greetings", "-n", name_server)
