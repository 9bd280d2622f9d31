"""Read scrapes of metrics as values by family and labels, among them a scrape of the original broker.

``tests/data/metrics/rocketmq-5.5.0.txt`` is a scrape of the original broker after the traffic of
`tests.metricstraffic`. With ``FIREARROW_RECORD=1``, ``tests/interop/test_metrics.py`` records it again.
"""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

GOLDEN = Path(__file__).parent / "data" / "metrics" / "rocketmq-5.5.0.txt"
COMMON = {"cluster", "node_id", "node_type", "otel_scope_name"}
COMMON_OF_CONTROLLER = {"address", "group", "peer_id", "otel_scope_name"}
_LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_PARTS = re.compile(r"_(bucket|sum|count)$")

Labels = frozenset[tuple[str, str]]


class Scraped(NamedTuple):
    """Family: its kind, and its values by name and labels, without the labels common to all."""

    kind: str
    values: dict[tuple[str, Labels], float]

    @property
    def labels(self) -> set[str]:
        """Names of all labels."""
        return {name for _, labels in self.values for name, _ in labels}

    @property
    def bounds(self) -> list[str]:
        """Bounds of a histogram, in ascending order."""
        found = {dict(labels).get("le") for _, labels in self.values} - {None}
        return sorted((bound for bound in found if bound), key=float)

    def value(self, **labels: str) -> float:
        """The one value that has these labels, perhaps among others."""
        wanted = set(labels.items())
        [found] = [value for (_, own), value in self.values.items() if wanted <= own]
        return found


def parse(text: str, common: Collection[str] = COMMON) -> Mapping[str, Scraped]:
    """Parse a scrape; raise AssertionError if Prometheus would reject it.

    The result omits the labels in ``common``, which all values have.
    """
    families: dict[str, Scraped] = {}
    current = ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, current, kind = line.split(" ")
            assert current not in families, f"{current} comes twice"
            families[current] = Scraped(kind, {})
        elif not line.startswith("# HELP "):
            found = _LINE.fullmatch(line)
            assert found, line
            name, written, number = found.groups()
            is_histogram = families[current].kind == "histogram"
            assert (_PARTS.sub("", name) if is_histogram else name) == current, line
            labels = _LABEL.findall(written or "")
            assert ",".join(f'{key}="{value}"' for key, value in labels) == (written or ""), line
            assert len({key for key, _ in labels}) == len(labels), line
            own = frozenset((key, value) for key, value in labels if key not in common)
            assert (name, own) not in families[current].values, f"{line} comes twice"
            families[current].values[name, own] = float(number)
    for name, family in families.items():
        assert family.kind != "histogram" or _is_sound(family), f"{name} does not add up"
    return families


def _is_sound(family: Scraped) -> bool:
    """Return True if the buckets of each histogram never decrease and the last equals the count."""
    rows: dict[Labels, dict[float, float]] = {}
    counts: dict[Labels, float] = {}
    for (name, labels), value in family.values.items():
        rest = frozenset(pair for pair in labels if pair[0] != "le")
        if name.endswith("_bucket"):
            rows.setdefault(rest, {})[float(dict(labels)["le"])] = value
        elif name.endswith("_count"):
            counts[rest] = value
    ordered = {rest: [value for _, value in sorted(row.items())] for rest, row in rows.items()}
    return counts.keys() == rows.keys() and all(
        values == sorted(values) and values[-1] == counts[rest] for rest, values in ordered.items()
    )


def golden() -> Mapping[str, Scraped]:
    """Return the scrape of the original broker."""
    return parse(GOLDEN.read_text(encoding="utf-8"))


async def get(port: int, path: str = "/metrics") -> tuple[int, str]:
    """Send an HTTP request; return the status and the text."""

    def ask() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
                return int(answer.status), str(answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(ask)
