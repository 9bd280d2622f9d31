"""Messages of OpenTelemetry's protocol, which clients use to send metrics; `otlpmessages.pyi` has their types.

Gauges, sums and histograms with explicit bounds are here. RocketMQ's clients send no other kinds.
"""

from firearrow.proxy.descriptors import member

_PACKAGES = tuple(f"opentelemetry.proto.{it}.v1" for it in ("collector.metrics", "metrics", "common", "resource"))


def __getattr__(name: str) -> object:
    """Make the class when it is first used."""
    made = globals()[name] = member(name, *_PACKAGES)
    return made
