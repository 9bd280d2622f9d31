"""What clients have sent, what was acknowledged and read, and what must be left of it in the end.

Everything that was acknowledged must be there: once, at the queue offset that the answer named,
with its bytes, so also in the order of the acknowledgements of one queue. What was sent and not
acknowledged may be there, at most once. What was read once is what is there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence


class History:
    """Sends to the queues of one topic. ``kept`` is what each queue is known to hold."""

    def __init__(self, queues: int) -> None:
        self.kept: list[list[bytes]] = [[] for _ in range(queues)]
        self.sent: set[bytes] = set()
        self.count = 0  # of acknowledged messages
        self._acknowledged: dict[tuple[int, int], bytes] = {}
        self._read: dict[tuple[int, int], bytes] = {}
        self._places: dict[int, str] = {}

    def acknowledge(self, queue_id: int, queue_offset: int, bodies: Iterable[bytes]) -> None:
        """Note an answer to messages that came together."""
        for at, body in enumerate(bodies, queue_offset):
            other = self._acknowledged.setdefault((queue_id, at), body)
            assert other == body, f"two messages are acknowledged at {at} of queue {queue_id}"
            self.count += 1

    def acknowledged_by(self, broker: str, physical_offset: int) -> None:
        """Note who acknowledged a message, and where in the log that is."""
        other = self._places.setdefault(physical_offset, broker)
        assert other == broker, f"{other} and {broker} acknowledge what is at {physical_offset}"

    def read(self, queue_id: int, queue_offset: int, body: bytes) -> None:
        """Note what a consumer got."""
        other = self._read.setdefault((queue_id, queue_offset), body)
        assert other == body, f"at {queue_offset} of queue {queue_id} there are two messages"

    @property
    def read_count(self) -> int:
        """How many places consumers have seen."""
        return len(self._read)

    def compare(self, new: Sequence[Sequence[bytes]]) -> None:
        """Check what each queue has got since the last time, when nothing is under way."""
        for queue_id, bodies in enumerate(new):
            for queue_offset, body in enumerate(bodies, len(self.kept[queue_id])):
                assert body in self.sent, "a message that nobody sent, or for the second time"
                self.sent.remove(body)
                place = queue_id, queue_offset
                acknowledged, read = (it.pop(place, body) for it in (self._acknowledged, self._read))
                assert body == acknowledged, "where a message was acknowledged there is another one"
                assert body == read, "where a message was read there is another one"
            self.kept[queue_id] += bodies
        assert not self._acknowledged, f"{len(self._acknowledged)} acknowledged messages are lost"
        assert not self._read, f"{len(self._read)} messages that were read are lost"
        self.sent.clear()

    def compare_epochs(self, starts: Sequence[tuple[int, int]]) -> dict[int, str]:
        """Check that one broker has acknowledged in each epoch, and give it; epochs come with the
        physical offsets where they begin."""
        found: dict[int, set[str]] = defaultdict(set)
        for physical_offset, broker in self._places.items():
            found[max(it for it, start in starts if start <= physical_offset)].add(broker)
        for epoch, brokers in found.items():
            assert len(brokers) == 1, f"{sorted(brokers)} acknowledged in epoch {epoch}"
        return {epoch: broker for epoch, (broker,) in found.items()}
