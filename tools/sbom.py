"""Write a bill of materials (CycloneDX 1.6, JSON): what Firearrow, its extras and its console bring.

The versions are those of this environment, so those that the tests of a release ran with.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from hatchling.builders.utils import get_reproducible_timestamp
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from firearrow import __version__
from firearrow.console.vendored import VENDORED

ROOT: Final = Path(__file__).parent.parent


def requirements() -> dict[str, list[Requirement]]:
    """Return the requirements of each extra by its name; those without an extra have the name ``""``.

    Where an extra names another one, it has the requirements of that.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists: dict[str, list[str]] = {"": project["dependencies"], **project["optional-dependencies"]}

    def of(extra: str) -> list[Requirement]:
        asked = list(map(Requirement, lists[extra]))
        own = [name for it in asked if it.name == project["name"] for name in it.extras]
        return [it for it in asked if it.name != project["name"]] + [it for name in own for it in of(name)]

    return {extra: of(extra) for extra in lists}


def installed(asked: Iterable[Requirement]) -> dict[str, set[str]]:
    """Return the packages that requirements bring, each with the packages that it brings in turn.

    Raises PackageNotFoundError if one is not installed here.
    """
    found: dict[str, set[str]] = {}
    pending = _applicable(asked, [""])
    while pending:
        one = pending.pop()
        name = canonicalize_name(one.name)
        brought = _applicable(map(Requirement, distribution(name).requires or ()), ["", *one.extras])
        names = {canonicalize_name(it.name) for it in brought}
        if name not in found or not names <= found[name]:
            found.setdefault(name, set()).update(names)
            pending += brought
    return found


def _applicable(asked: Iterable[Requirement], extras: Sequence[str]) -> list[Requirement]:
    return [it for it in asked if it.marker is None or any(it.marker.evaluate({"extra": extra}) for extra in extras)]


def _component(name: str, version: str, kind: str = "pypi", licence: str | None = None) -> Component:
    url = PackageURL(kind, name=name, version=version)
    licences = [LicenseFactory().make_from_string(licence)] if licence else []
    return Component(
        name=name, version=version, type=ComponentType.LIBRARY, purl=url, bom_ref=str(url), licenses=licences
    )


def _package(name: str, extras: Sequence[str]) -> Component:
    """Describe an installed package, and the extras that bring it; the core is the extra ``""``."""
    metadata = distribution(name).metadata
    classifiers = [it for it in metadata.get_all("Classifier", []) if it.startswith("License ::")]
    named = metadata.get_all("License-Expression", [it.rpartition(" :: ")[2] for it in classifiers])
    component = _component(name, metadata["Version"], licence=named[0] if len(named) == 1 else None)
    component.properties = [Property(name="firearrow:extra", value=extra) for extra in extras]
    return component


def bill() -> str:
    """Return the bill as JSON; the same sources and environment give the same bytes."""
    brought = {extra: installed(asked) for extra, asked in requirements().items()}
    names = sorted(set().union(*brought.values()))
    packages = {name: _package(name, [it for it in brought if name in brought[it]]) for name in names}
    vendored = {it.package: _component(it.package, it.version, "npm", it.license) for it in VENDORED}
    root = _component("firearrow", __version__, licence="Apache-2.0")
    bom = Bom(components=[*packages.values(), *vendored.values()])
    bom.metadata.component = root
    bom.metadata.timestamp = datetime.fromtimestamp(get_reproducible_timestamp(), UTC)
    bom.serial_number = uuid5(NAMESPACE_URL, " ".join(sorted(str(it.purl) for it in (root, *bom.components))))
    direct = {canonicalize_name(it.name) for asked in requirements().values() for it in asked} & packages.keys()
    bom.register_dependency(root, [*(packages[name] for name in direct), *vendored.values()])
    for found in brought.values():
        for name, own in found.items():
            bom.register_dependency(packages[name], [packages[it] for it in own])
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"
