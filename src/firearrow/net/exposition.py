"""Metrics as text, in Prometheus' format 0.0.4.

# HELP rocketmq_messages_in_total Messages that topics got
# TYPE rocketmq_messages_in_total counter
rocketmq_messages_in_total{cluster="DefaultCluster",...,topic="T",message_type="normal"} 3
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeVar

from firearrow.net.meter import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PIECE_LINES: Final = 500  # of an answer: about a millisecond

K = TypeVar("K", bound=Hashable)
S = TypeVar("S")
Value = int | float | Histogram
Labels = Mapping[str, object]


class MetricSample(NamedTuple):
    """One value, with the labels that tell it from the others of its family."""

    labels: Labels
    value: Value


class Family(NamedTuple):
    """Values of one name. ``labels`` are all labels that its samples may have, except the ones that all families have
    (``common``).
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


TARGET: Final = Family("target_info", "gauge", "What is scraped")

Samples = Iterator[tuple[Family, Iterable[MetricSample]] | None]
"""Families with their values; None where the gathering takes long and may continue in a later turn of the event loop.
"""


class MetricPart(NamedTuple):
    """Metrics of a part that a server may have; ``families`` are all that its samples may be of."""

    families: Sequence[Family]
    samples: Callable[[], Iterator[tuple[Family, Iterable[MetricSample]]]]


class Metrics(NamedTuple):
    """Metrics of a server at one time: families with values, and the labels of all values."""

    samples: Samples
    labels: Labels


SCOPE: Final = "otel_scope_name"  # label with the name of RocketMQ's meter


def keyed(
    values: Callable[[S], Mapping[K, Value]], labels: Callable[[S, K], Labels]
) -> Callable[[S], Iterator[MetricSample]]:
    """Return a reading of `Counts` or `Histograms`, with the labels of each key."""

    def read(sources: S) -> Iterator[MetricSample]:
        for key, value in list(values(sources).items()):  # requests may add keys during a scrape
            yield MetricSample(labels(sources, key), value)

    return read


def common_labels(given: str, families: Iterable[Family], *, in_delta: bool, **fixed: str) -> dict[str, str]:
    """Return the labels of all values.

    ``given`` is ``name:value``, several separated by a comma. A name of the ``families``' labels is ignored, and the
    ``fixed`` labels take precedence.
    """
    pairs = [pair.partition(":") for pair in given.split(",") if pair]
    own = {name for family in families for name in family.labels} | {"le"}
    labels = {name: value for name, _, value in pairs if name not in own}
    if in_delta:
        labels["aggregation"] = "delta"
    return labels | fixed


def pieces(metrics: Metrics) -> Iterator[bytes]:
    """Format families, some lines in a piece; a family without samples is left out."""
    lines: list[str] = []
    written_common = _labels(metrics.labels)
    for each in metrics.samples:
        if each is None:
            yield b""
            continue
        family, samples = each
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


def _lines(name: str, labels: str, sample: MetricSample) -> Iterator[str]:
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
