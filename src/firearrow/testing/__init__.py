"""Help for tests of what stands on Firearrow, and of Firearrow itself.

A test needs `EmbeddedCluster`, `VirtualTime` and what pytest gets from `firearrow.testing.plugin`.
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


if not TYPE_CHECKING:  # a wrong name stays an error of types

    def __getattr__(name: str) -> Any:
        """Import a server only for who asks for one: pytest's plug-in is in this package, too."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = found
        return found
