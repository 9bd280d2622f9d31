"""Files of others that the wheel brings, so that no request leaves the machine: name, version, source and SHA-256.

`python -m tools.vendor` brings them from the npm registry and checks the sums. A test compares files and table.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final, NamedTuple


class Vendored(NamedTuple):
    """A file, and its place in a package of npm."""

    file: str
    package: str
    version: str
    place: str
    license: str
    sha256: str


VENDORED: Final = (
    Vendored(
        "htmx.js",
        "htmx.org",
        "4.0.1",
        "dist/htmx.min.js",
        "0BSD",
        "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    ),
    Vendored(
        "htmx-sse.js",
        "htmx.org",
        "4.0.1",
        "dist/ext/hx-sse.min.js",
        "0BSD",
        "18ef2761356ec1fe0bb6d92612315b37517a7c1e9856b661c5ae81fef239d103",
    ),
    Vendored(
        "uplot.js",
        "uplot",
        "1.6.32",
        "dist/uPlot.iife.min.js",
        "MIT",
        "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    ),
    Vendored(
        "uplot.css",
        "uplot",
        "1.6.32",
        "dist/uPlot.min.css",
        "MIT",
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    ),
)  # fmt: skip


@cache
def asset(name: str) -> str:
    """Give the address of a file of the package; it changes with the content, so that browsers may keep it for ever."""
    data = files("firearrow.console").joinpath("static", name).read_bytes()
    return f"/static/{name}?{sha256(data).hexdigest()[:12]}"
