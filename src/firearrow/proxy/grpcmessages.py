"""Messages of gRPC's own services: health and reflection; `grpcmessages.pyi` has their types.

Versions v1 and v1alpha of reflection differ in names only; the messages here belong to v1.
"""

from firearrow.proxy.descriptors import member


def __getattr__(name: str) -> object:
    """Make the class when it is first used."""
    made = globals()[name] = member(name, "grpc.health.v1", "grpc.reflection.v1")
    return made
