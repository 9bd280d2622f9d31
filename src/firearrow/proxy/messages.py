"""Messages and enums of RocketMQ 5's gRPC protocol, `apache.rocketmq.v2`; `messages.pyi` has their types.

``messages.SendMessageRequest.FromString(received)``, ``messages.Code.OK``.
"""

from firearrow.proxy.descriptors import member


def __getattr__(name: str) -> object:
    """Make the class when it is first used."""
    made = globals()[name] = member(name, "apache.rocketmq.v2")
    return made
