"""A node of Kubernetes: it takes the pods of the API server, and runs their containers as processes of this host.

It is scheduler and kubelet at once. A container has its own files, process ids and host name by Linux's namespaces;
its network is that of this host, on which each pod has an address of its own.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

from tests.spark.cluster import SPARK_HOME
from tests.spark.kubernetes.controlplane import CORE, ControlPlane

NODE = "node-1"
POLL_SECONDS = 0.1
HOME = "/opt/spark/work-dir"

Json = dict[str, Any]


@dataclass(frozen=True)
class Container:
    """A running container, and the address of its pod."""

    process: subprocess.Popen[bytes]
    address: str

    def kill(self) -> None:
        """Kill all of its processes."""
        self.process.kill()
        self.process.wait()


class Node:
    """The pods of a node; a pod that asks for another kind of node stays pending."""

    def __init__(self, plane: ControlPlane, home: Path) -> None:
        self._plane = plane
        self._home = home
        self._containers: dict[str, Container] = {}
        self._addresses = (f"127.0.1.{number}" for number in count(1))

    def close(self) -> None:
        """Kill what still runs."""
        for container in self._containers.values():
            container.kill()

    def look(self) -> None:
        """Do what the pods of the API server need next."""
        pods = {pod["metadata"]["uid"]: pod for pod in self._plane.listed(f"{CORE}/pods")}
        for name in self._containers.keys() - pods.keys():
            self._containers.pop(name).kill()
        for name, pod in pods.items():
            self._serve(name, pod)

    def _serve(self, name: str, pod: Json) -> None:
        container = self._containers.get(name)
        if "deletionTimestamp" in pod["metadata"]:
            if container:
                self._containers.pop(name).kill()
            self._plane.ask("DELETE", _path(pod), {"gracePeriodSeconds": 0})
        elif "nodeSelector" in pod["spec"]:
            if "conditions" not in pod["status"]:
                self._report(pod, {"conditions": [_UNSCHEDULABLE]})
        elif "nodeName" not in pod["spec"]:
            target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
            binding = {"metadata": {"name": pod["metadata"]["name"]}, "target": target}
            self._plane.ask("POST", f"{_path(pod)}/binding", binding)
        elif container is None:
            self._start(name, pod)
        elif container.process.poll() is not None and pod["status"]["phase"] == "Running":
            code = container.process.returncode
            self._report(pod, _status(pod, container, {"terminated": {"exitCode": code}}, code == 0))

    def _start(self, name: str, pod: Json) -> None:
        """Start the container of a pod, unless a volume of it does not exist yet."""
        home = self._home / pod["metadata"]["name"]
        volumes: dict[str, Path] = {}
        for volume in pod["spec"].get("volumes", []):
            path = self._volume(pod, volume, home)
            if path is None:
                return
            volumes[volume["name"]] = path
        address = next(self._addresses)
        [wanted] = pod["spec"]["containers"]
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in wanted.get("volumeMounts", [])}
        facts = {"metadata.name": pod["metadata"]["name"], "status.podIP": address}
        hosts = home / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{address} {pod['spec']['hostname']}\n")
        script = _script(home / "root", {**image(), **mounts, "/etc/hosts": hosts}, pod["spec"]["hostname"])
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                [*_NAMESPACES, "sh", "-c", script, "container", *wanted["args"]],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_VARIABLES | _variables(wanted, facts),
            )  # fmt: skip
        self._containers[name] = Container(process, address)
        self._report(pod, _status(pod, self._containers[name], {"running": {}}, None))

    def _volume(self, pod: Json, volume: Json, home: Path) -> Path | None:
        """Return the directory of a volume; of those that Spark does not read, an empty one."""
        namespace = f"{CORE}/namespaces/{pod['metadata']['namespace']}"
        path: Path = home / "volumes" / volume["name"]
        path.mkdir(parents=True, exist_ok=True)
        if "configMap" in volume:
            found = self._plane.ask("GET", f"{namespace}/configmaps/{volume['configMap']['name']}")
            if found is None:
                return None
            for name, text in found["data"].items():
                (path / name).write_text(text)
        if "persistentVolumeClaim" in volume:
            claim = f"{namespace}/persistentvolumeclaims/{volume['persistentVolumeClaim']['claimName']}"
            name = self._plane.change("GET", claim)["spec"]["volumeName"]
            path = Path(self._plane.change("GET", f"{CORE}/persistentvolumes/{name}")["spec"]["hostPath"]["path"])
        return path

    def _report(self, pod: Json, status: Json) -> None:
        self._plane.ask("PATCH", f"{_path(pod)}/status", {"status": status})  # a deleted pod has none


def _path(pod: Json) -> str:
    return f"{CORE}/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


# --- what a node says of a pod ---

_UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
}


def _status(pod: Json, container: Container, state: Json, succeeded: bool | None) -> Json:
    [wanted] = pod["spec"]["containers"]
    of_container = {
        "name": wanted["name"],
        "image": wanted["image"],
        "imageID": wanted["image"],
        "ready": succeeded is None,
        "restartCount": 0,
        "state": state,
    }
    return {
        "phase": "Running" if succeeded is None else "Succeeded" if succeeded else "Failed",
        "podIP": container.address,
        "podIPs": [{"ip": container.address}],
        "containerStatuses": [of_container],
    }


# --- containers ---

_NAMESPACES = (
    *("unshare", "--user", "--map-root-user", "--mount", "--uts", "--pid", "--fork", "--kill-child=KILL"),
    "--mount-proc",
)
_JAVA_HOME = Path(shutil.which("java") or "java").resolve().parents[1]
_VARIABLES = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "JAVA_HOME": str(_JAVA_HOME),
    "SPARK_HOME": "/opt/spark",
    "HOME": HOME,
}
_HOST = ("/bin", "/dev", "/etc", "/lib", "/lib64", "/usr")


def image() -> dict[str, Path]:
    """Return the files of an image, by their places in it: a system with Java, Python and Spark."""
    paths = [*_HOST, str(_JAVA_HOME), sys.base_prefix, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    files = {path: Path(path) for path in paths if Path(path).exists()}
    files |= {f"/opt/spark/{part}": SPARK_HOME / part for part in ("jars", "python")}
    return {**files, "/opt/entrypoint.sh": Path(__file__).with_name("entrypoint.sh")}


def _variables(container: Json, facts: Mapping[str, str]) -> dict[str, str]:
    return {
        variable["name"]: facts[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        if "valueFrom" in variable
        else variable.get("value", "")
        for variable in container["env"]
    }


def _script(root: Path, mounts: Mapping[str, Path], hostname: str) -> str:
    """Return the shell script that builds the files of a container, and runs the entrypoint of its image in them."""
    at = shlex.quote(str(root))
    lines = ["set -e", f"mkdir {at}", f"mount -t tmpfs tmpfs {at}", f"mkdir -p {at}/proc {at}{HOME}"]
    lines += [f"mkdir -m 1777 {at}/tmp", f"hostname {shlex.quote(hostname)}"]
    for target, source in sorted(mounts.items()):
        to, given = shlex.quote(f"{root}{target}"), shlex.quote(str(source))
        made = f"mkdir -p {to}" if source.is_dir() else f"mkdir -p $(dirname {to}); [ -e {to} ] || touch {to}"
        lines += [made, f"mount --rbind {given} {to}"]
    lines += [f"mount --rbind /proc {at}/proc", f'set -- chroot {at} env -C {HOME} /opt/entrypoint.sh "$@"', '"$@"']
    return "\n".join(lines)


@contextmanager
def node(plane: ControlPlane, home: Path) -> Iterator[Node]:
    """Run a node for a ``with`` block."""
    home.mkdir(parents=True)
    end = Event()
    made = Node(plane, home)

    def look() -> None:
        while not end.wait(POLL_SECONDS):
            made.look()

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield made
        finally:
            end.set()
            try:
                looking.result()
            finally:
                made.close()
