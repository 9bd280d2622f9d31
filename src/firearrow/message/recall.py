"""The handle for the recall of a message that waits for its delivery time.

It is the Base64 for URLs (with ``-_``) of five words with a space between them: ``v1``, the topic, the broker's name,
the time in ms and the unique key. For example ``djEgVCBicm9rZXItYSAxNzk1MDAwMDAwMDAxIFUx`` is
``v1 T broker-a 1795000000001 U1``.

Source: RocketMQ's ``RecallMessageHandle``.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

from firearrow.errors import MessageError

_VERSION: Final = "v1"
_TEXT: Final = re.compile(r"[A-Za-z0-9_-]+={0,2}")
_TIME: Final = re.compile(r"[0-9]{1,18}")


class RecallHandle(NamedTuple):
    """Content of a handle. ``time_ms`` is the delivery time, within the timer's precision."""

    topic: str
    broker_name: str
    time_ms: int
    unique_key: str

    def encode(self) -> str:
        """Return the text of the handle."""
        words = _VERSION, self.topic, self.broker_name, str(self.time_ms), self.unique_key
        return urlsafe_b64encode(" ".join(words).encode()).decode()

    @staticmethod
    def decode(text: str) -> RecallHandle:
        """Read a handle, with or without padding; raises MessageError if the text is none.

        A malformed time reads as -1. Words behind the fifth are ignored.
        """
        bare = text.rstrip("=")
        if not _TEXT.fullmatch(text) or len(bare) % 4 == 1:
            raise MessageError("recall handle is invalid", "recallHandle")
        raw = urlsafe_b64decode(bare + "=" * (-len(bare) % 4)).decode(errors="replace")
        words = raw.rstrip(" ").split(" ")
        if len(words) < 5 or words[0] != _VERSION:
            raise MessageError("recall handle is invalid", "recallHandle")
        time_ms = int(words[3]) if _TIME.fullmatch(words[3]) else -1
        return RecallHandle(words[1], words[2], time_ms, words[4])
