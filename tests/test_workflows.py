"""Workflows, forms and updates: they run what people run, read as their host reads them, and are pinned."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pages import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

PUBLISHING = re.compile(r"docker (login|push|buildx imagetools) |gh release create |helm push ")
"""What a workflow runs beside `make`: it hands over what a target has built."""


def workflow(path: Path) -> dict[str, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    found["on"] = found.pop(True)  # in YAML 1.1 that is what `on` means
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in workflow(path)["jobs"].values() for step in job.get("steps", ())]


def commands() -> list[str]:
    return [step["run"] for path in WORKFLOWS for step in steps(path) if "run" in step]


def test_workflows_run_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    made = [run.split()[1] for run in commands() if run.startswith("make ")]
    assert set(made) <= targets
    assert set(made) >= {"check", "unit", "client", "test", "site", "dist", "image", "compose-check", "chart", "bench"}
    assert [run for run in commands() if not run.startswith("make ") and not PUBLISHING.match(run)] == []


def test_ci_and_workflows_run_the_same() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    [line] = re.findall(r"^exec (.*)$", script, re.MULTILINE)
    assert line in commands()


def test_the_versions_of_python_are_those_of_the_packages() -> None:
    named = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    jobs = workflow(GITHUB / "workflows/tests.yml")["jobs"]
    assert jobs["unit"]["strategy"]["matrix"]["python"] == named
    assert jobs["client"]["strategy"]["matrix"]["python"] == named
    minors = re.findall(r"^minors=\((.*)\)", (ROOT / "tools/interpreters.sh").read_text(encoding="utf-8"), re.MULTILINE)
    assert [f"3.{minor}" for minor in reversed(minors[0].split())] == named
    assert PROJECT["requires-python"] == f">={named[0]},<3.{int(named[-1].partition('.')[2]) + 1}"


def test_tests_for_macos_exist() -> None:
    command = ["make", "--no-print-directory", "--eval", "paths: ; @echo $(CLIENT)", "paths"]
    paths = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert "tests/client/routing/test_routes.py" in paths


def test_actions_are_pinned_to_one_commit_each() -> None:
    lines = [line for path in WORKFLOWS for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    pinned = [re.search(r"uses: ([\w/-]+)@([0-9a-f]{40}) # v[0-9.]+$", line) for line in lines]
    assert [line for line, found in zip(lines, pinned, strict=True) if not found and "uses: ./" not in line] == []
    pins = {found[0].partition("uses: ")[2] for found in pinned if found}
    assert len({pin.partition("@")[0] for pin in pins}) == len(pins)


def test_workflows_may_do_only_what_a_job_needs() -> None:
    for path in WORKFLOWS:
        found = workflow(path)
        assert found["permissions"] == {"contents": "read"}, path.name
        assert not [name for name, job in found["jobs"].items() if "timeout-minutes" not in job and "uses" not in job]
        checkouts = [step for step in steps(path) if step.get("uses", "").startswith("actions/checkout@")]
        assert all(step["with"]["persist-credentials"] is False for step in checkouts), path.name


def test_a_release_is_tested_then_built_then_published_with_attestations() -> None:
    found = workflow(GITHUB / "workflows/release.yml")
    assert found["on"] == {"push": {"tags": ["v*"]}}
    jobs = found["jobs"]
    assert jobs["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert [jobs[name]["needs"] for name in ("build", "publish")] == ["tests", "build"]
    assert jobs["publish"]["environment"] == "pypi"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "password" not in jobs["publish"]["steps"][-1]["with"]
    attested = [step["with"] for step in jobs["build"]["steps"] if step.get("uses", "").startswith("actions/attest@")]
    assert [sorted(given) for given in attested] == [["subject-path"], ["sbom-path", "subject-path"]]


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("vendor.dependabot", [GITHUB / "dependabot.yml"]),
        ("vendor.github-issue-config", [GITHUB / "ISSUE_TEMPLATE/config.yml"]),
        ("vendor.github-issue-forms", [GITHUB / "ISSUE_TEMPLATE/problem.yml", GITHUB / "ISSUE_TEMPLATE/proposal.yml"]),
    ],
)
def test_files_are_as_their_readers_expect(schema: str, paths: list[Path]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, paths)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_hooks_before_a_commit_run_targets_of_the_makefile() -> None:
    found = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook for repo in found["repos"] for hook in repo["hooks"]]
    assert hooks
    assert {hook["entry"].split()[0] for hook in hooks} == {"make"}
    assert {hook["language"] for hook in hooks} == {"system"}
