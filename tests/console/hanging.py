"""Brokers that hang: they stay connected and registered, and answer nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from firearrow.testing.broker import EmbeddedBroker


@contextmanager
def hanging(broker: EmbeddedBroker) -> Iterator[None]:
    """Make a broker answer no request for a ``with`` block."""
    core = broker.server
    handlers, several = core._handlers, core._bulk_handlers
    before, several_before = dict(handlers), dict(several)
    several.clear()
    handlers.update(dict.fromkeys(handlers, lambda *_: None))
    try:
        yield
    finally:
        handlers.update(before)
        several.update(several_before)
