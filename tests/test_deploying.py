"""The commands of `Containerfile` and of the unit for systemd behave as these files expect.

The tests need neither a container engine nor systemd. They run the commands unchanged except for ports and
places, with exactly the variables that the files set.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from configparser import ConfigParser
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.pages import ROOT

UNIT = ROOT / "packaging" / "firearrow.service"
BIN = Path(sys.executable).parent


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def unit() -> ConfigParser:
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read(UNIT)
    return parser


@contextmanager
def served(command: Sequence[str], store: Path, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Run servers on free ports; yield the ports. SIGTERM must end the servers cleanly."""
    at = command.index("--store") + 1
    changed = [*command[:at], str(store), *command[at + 1 :]]
    changed += ["--namesrv-port", "0", "--broker-port", "0"]
    with subprocess.Popen([BIN / "firearrow", *changed], stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdout is not None
        try:
            found = re.fullmatch(r"ready namesrv=\S+:(\d+) broker=\S+:(\d+) grpc=\S+\n", process.stdout.readline())
            assert found
            yield found[1], found[2]
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    assert (store / "checkpoint").exists()
    assert not (store / "abort").exists()


def test_a_container_serves_and_knows_whether_it_does(tmp_path: Path) -> None:
    given = dict(instructions())
    assert json.loads(given["ENTRYPOINT"]) == ["firearrow"]
    command = json.loads(given["CMD"])
    assert command[command.index("--store") + 1].startswith(given["VOLUME"])
    variables = dict(pair.split("=", 1) for pair in shlex.split(given["ENV"]))
    assert variables["HOME"] == given["VOLUME"] == given["WORKDIR"]
    variables["HOME"] = str(tmp_path)
    variables["PATH"] = variables["PATH"].replace("/opt/firearrow/bin", str(BIN))
    variables["PATH"] = variables["PATH"].replace("$PATH", os.defpath)
    *python, code = json.loads(given["HEALTHCHECK"].partition(" CMD ")[2])
    python[0] = shutil.which(python[0], path=variables["PATH"])
    with served(command, tmp_path / "store", variables) as (name_server, broker):
        code = code.replace("9876", name_server).replace("10911", broker)
        subprocess.run([*python, code], check=True, env=variables)
    ended = subprocess.run([*python, code], stderr=subprocess.PIPE, check=False, env=variables)
    assert ended.returncode == 1


def test_a_container_is_built_of_what_is_here_for_a_user_without_rights() -> None:
    ignored = (ROOT / ".containerignore").read_text(encoding="utf-8").splitlines()
    copied = [rest.split()[:-1] for word, rest in instructions() if word == "COPY"]
    names = {name for names in copied for name in names if not name.startswith(("-", "/"))}
    assert {f"!{name}" for name in names} <= set(ignored)
    assert all((ROOT / name).exists() for name in names)
    given = dict(instructions())
    assert given["USER"] != "0"
    assert given["EXPOSE"] == "9876 10911 8081 8088"


def test_an_image_has_a_pinned_base_and_labels_of_its_sources() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    arguments = dict(rest.partition("=")[::2] for word, rest in instructions() if word == "ARG")
    base = re.fullmatch(
        r"docker\.io/library/python:(3\.\d+)\.\d+-slim-\w+@sha256:[0-9a-f]{64}", arguments.pop("PYTHON")
    )
    assert base
    assert f"Programming Language :: Python :: {base[1]}" in project["classifiers"]
    assert {rest.split()[0] for word, rest in instructions() if word == "FROM"} == {"${PYTHON}"}
    given = dict(pair.split("=", 1) for pair in shlex.split(dict(instructions())["LABEL"]))
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in given.items()}
    assert labels["licenses"] == project["license"]
    assert labels["source"] == project["urls"]["Homepage"]
    assert {labels[name.lower()] for name in arguments} == {f"${{{name}}}" for name in arguments}
    command = ["make", "--no-print-directory", "--dry-run", "image"]
    made = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert set(re.findall(r"--build-arg (\w+)=", made)) == arguments.keys()


def test_hadolint_accepts_the_containerfile() -> None:
    checked = subprocess.run([BIN / "hadolint", ROOT / "Containerfile"], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")


def leaves(values: dict[str, Any], above: str = "") -> list[str]:
    """Return the path of each value, without keys below what is free: configuration, resources, annotations."""
    free = {"config", "resources", "annotations", "nodeSelector", "affinity"}
    nested = [(f"{above}{name}", name, value) for name, value in values.items()]
    return [
        leaf
        for path, name, value in nested
        for leaf in (leaves(value, f"{path}.") if isinstance(value, dict) and name not in free else [path])
    ]


def test_each_value_of_the_chart_is_documented() -> None:
    values = yaml.safe_load((ROOT / "packaging/helm/firearrow/values.yaml").read_text(encoding="utf-8"))
    text = (ROOT / "docs/deploying.md").read_text(encoding="utf-8")
    documented = {
        it for row in re.findall(r"^\| (`[a-z].*?) \|", text, re.MULTILINE) for it in re.findall(r"`([\w.]+)`", row)
    }
    assert {leaf for leaf in leaves(values) if leaf not in documented} == set()


def test_a_service_serves_and_stops(tmp_path: Path) -> None:
    service = unit()["Service"]
    line = service["ExecStart"].replace("${STATE_DIRECTORY}", str(tmp_path))
    options = service["Environment"].strip('"').removeprefix("FIREARROW_OPTIONS=")
    program, *command = shlex.split(line.replace("$FIREARROW_OPTIONS", options))
    assert program == "/opt/firearrow/bin/firearrow"
    store = Path(command[command.index("--store") + 1])
    with served(command, store, {"STATE_DIRECTORY": str(tmp_path)}):
        assert service["KillSignal"] == "SIGTERM"
    assert service["Restart"] == "on-failure"


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """Use systemd's own parser if it is installed, else only check the names of the sections."""
    assert unit().sections() == ["Unit", "Service", "Install"]
    analyze = shutil.which("systemd-analyze")
    if analyze is not None:
        copy = tmp_path / UNIT.name
        text = UNIT.read_text(encoding="utf-8")
        copy.write_text(text.replace("/opt/firearrow/bin/firearrow", str(BIN / "firearrow")))
        done = subprocess.run([analyze, "verify", "--man=no", copy], capture_output=True, text=True, check=False)
        assert UNIT.name not in done.stderr
        assert done.returncode == 0
