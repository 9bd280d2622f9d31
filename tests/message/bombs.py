"""Bodies of some KiB that unpack to 65 MiB."""

from __future__ import annotations

from firearrow.client.blocking import Producer
from firearrow.message.compress import Compression, compress
from tests.message.writing import with_compression


class Bombs:
    """Compressor of a producer that sends a bomb in place of each body."""

    def __init__(self, kind: Compression) -> None:
        self._packed = compress(bytes(65 << 20), kind, 9), with_compression(0, kind)

    def packed(self, _: bytes) -> tuple[bytes, int]:
        """Give the bomb."""
        return self._packed


def send_bombs(name_server: str, topic: str, kind: Compression = Compression.ZLIB, count: int = 1) -> None:
    """Send bombs to a topic."""
    with Producer(name_server, group="p") as producer:
        producer.inner._compressor = Bombs(kind)  # type: ignore[assignment]
        for _ in range(count):
            producer.send(topic, b"x")
