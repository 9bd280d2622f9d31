"""Sends messages for tests that block."""

from __future__ import annotations

from firearrow.client.blocking import Producer


def send(name_server: str, topic: str, count: int) -> None:
    """Send messages, with keys."""
    with Producer(name_server, group="p") as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, key=f"o-{number}")
