"""Helpers for tests of applications on Firearrow, and of Firearrow itself.

A test needs `EmbeddedCluster`, `VirtualTime`, and the fixtures of `firearrow.testing.plugin` for pytest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from firearrow.testing.broker import EmbeddedBroker
    from firearrow.testing.cluster import BlockingCluster, EmbeddedCluster
    from firearrow.testing.loop import VirtualClock
    from firearrow.testing.storecheck import BrokenStore
    from firearrow.testing.virtual import VirtualTime

__all__ = ["BlockingCluster", "BrokenStore", "EmbeddedBroker", "EmbeddedCluster", "VirtualClock", "VirtualTime"]

_MODULES: Final = {
    "BlockingCluster": "cluster",
    "BrokenStore": "storecheck",
    "EmbeddedBroker": "broker",
    "EmbeddedCluster": "cluster",
    "VirtualClock": "loop",
    "VirtualTime": "virtual",
}


if not TYPE_CHECKING:  # so that a wrong name stays a type error

    def __getattr__(name: str) -> Any:
        """Import a server on first use, since pytest's plug-in is in this package, too."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = found
        return found
