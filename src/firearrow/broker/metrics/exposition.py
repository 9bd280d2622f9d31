"""Metrics as text, in Prometheus' format 0.0.4.

# HELP rocketmq_messages_in_total Messages that topics got
# TYPE rocketmq_messages_in_total counter
rocketmq_messages_in_total{cluster="DefaultCluster",...,topic="T",message_type="normal"} 3
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from firearrow.net.meter import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PIECE_LINES: Final = 500  # of an answer: a millisecond

Value = int | float | Histogram
Labels = Mapping[str, object]


class Sample(NamedTuple):
    """One value, with the labels that tell it from the others of its family."""

    labels: Labels
    value: Value


class Family(NamedTuple):
    """Values of one name. ``labels`` are all that its samples may have, besides those that all
    families have (``common``)."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


def pieces(
    samples_of: Iterable[tuple[Family, Iterable[Sample]]], common: Labels
) -> Iterator[bytes]:
    """Format families, some lines in a piece; one without samples is left out."""
    lines: list[str] = []
    written_common = _labels(common)
    for family, samples in samples_of:
        is_first = True
        for sample in samples:
            if is_first:
                lines.append(f"# HELP {family.name} {family.help}")
                lines.append(f"# TYPE {family.name} {family.kind}")
                is_first = False
            own = _labels(sample.labels)
            lines += _lines(family.name, ",".join(filter(None, (written_common, own))), sample)
            if len(lines) > PIECE_LINES:
                yield _piece(lines)
                lines.clear()
        yield _piece(lines)
        lines.clear()


def _piece(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _lines(name: str, labels: str, sample: Sample) -> Iterator[str]:
    value = sample.value
    if not isinstance(value, Histogram):
        yield f"{name}{{{labels}}} {value}"
        return
    total = 0
    before = f"{name}_bucket{{{labels}{',' if labels else ''}le="
    bounds = *(str(float(bound)) for bound in value.bounds), "+Inf"
    for bound, count in zip(bounds, value.counts, strict=True):
        total += count
        yield f'{before}"{bound}"}} {total}'
    yield f"{name}_count{{{labels}}} {total}"
    yield f"{name}_sum{{{labels}}} {value.sum}"


def _labels(labels: Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if "\\" in text or '"' in text or "\n" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return text
