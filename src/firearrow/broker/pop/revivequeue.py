"""A revive queue: how far it is read, and which checkpoints of it are open.

A checkpoint may be done with when everything is read that acknowledged its messages in time. At the
end of the queue that is so if the timer has delivered what was for that time. Before the end, its
records tell: one that the timer has delivered comes behind all that were for an earlier time, and
one that was stored late enough behind all that did not wait.

There is room for `OPEN_MAX` open checkpoints. Of what is read beyond them only acknowledgements
count, and when most of those checkpoints are done, it is read again.

Source: upstream ``PopReviveService#consumeReviveMessage``.
"""

from __future__ import annotations

import logging
from typing import Final

from firearrow.broker.metrics.tally import ACK, CK, Tally
from firearrow.broker.pop.merging import Merging, Open
from firearrow.broker.pop.records import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG, acknowledgement_of, checkpoint_of
from firearrow.errors import MessageError, StoreError
from firearrow.message import properties
from firearrow.message.names import tag_code
from firearrow.message.record import Content
from firearrow.store import MessageStore

log = logging.getLogger(__name__)

LATE_MS: Final = 2000  # so late an acknowledgement still counts; Java: ackTimeInterval + SECOND
READ_RECORDS: Final = 16  # in a step: some 0.3 ms
OPEN_MAX: Final = 25_000  # checkpoints in memory: some 20 MB
FAILURES_SAID_MAX: Final = 100  # records that are named in the log

_CHECKPOINT: Final = tag_code(CHECKPOINT_TAG)
_ACKS: Final = frozenset(map(tag_code, (ACK_TAG, BATCH_ACK_TAG)))
_timer_out: Final = properties.finder(properties.TIMER_OUT_MS)


class ReviveQueue:
    """One queue of the revive topic; ``next_offset`` is where reading begins, ``broker_name`` whose
    records are that name no broker. A ``tally`` counts what is read."""

    def __init__(
        self,
        store: MessageStore,
        topic: str,
        queue_id: int,
        next_offset: int,
        broker_name: str,
        tally: Tally | None = None,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.merging = Merging(broker_name)
        self.known_ms = 0
        """Up to which time what was acknowledged is read, while there is more to read."""
        self.saved = next_offset
        """Up to where it is noted that it is not needed any more."""
        self._store = store
        self._tally = tally
        self._next = next_offset
        self._put_off = -1  # the first checkpoint that there was no room for
        self._failures = 0

    @property
    def needed(self) -> int:
        """The first queue offset that a start needs."""
        needed = self.merging.needed_offset(self._next)
        return min(needed, self._put_off) if self._put_off >= 0 else needed

    @property
    def next_offset(self) -> int:
        """The first queue offset that is not read."""
        return self._next

    @property
    def is_put_off(self) -> bool:
        """Tell whether there is no room for some checkpoints that were read."""
        return self._put_off >= 0

    @property
    def is_read(self) -> bool:
        """Tell whether it is read to its end."""
        return self._next >= self._store.max_queue_offset(self.topic, self.queue_id)

    def read_some(self) -> list[Open]:
        """Read some records; give the checkpoints that are open since then.

        StoreError if there are some that can't be read now: they will be read before others.
        """
        store, topic, queue_id = self._store, self.topic, self.queue_id
        at = max(self._next, store.min_queue_offset(topic, queue_id))
        added: list[Open] = []
        content = None
        for revive_offset, physical_offset, _, kind in store.iterate_from(topic, queue_id, at, READ_RECORDS):
            try:
                content = store.content_at(physical_offset)
                new = self._take(kind, content, revive_offset)
            except MessageError as error:
                self._note_failure(revive_offset, error)
            else:
                if new is not None:
                    added.append(new)
            self._next = revive_offset + 1
        if self._next <= at:
            raise StoreError(f"queue {queue_id} of {topic} can't be read at {at}")
        if content is not None:
            slot = _timer_out(content.properties) or b""
            delivered_ms = int(slot) if slot.isdigit() and len(slot) < 19 else 0
            self.known_ms = min(delivered_ms, content.store_timestamp_ms - LATE_MS)
        return added

    def _take(self, kind: int, content: Content, revive_offset: int) -> Open | None:
        """Note what a record says; MessageError if that can't be read."""
        has_room = self._put_off < 0
        if kind == _CHECKPOINT:
            if has_room and len(self.merging) >= OPEN_MAX:
                self._put_off, has_room = revive_offset, False
            if has_room:
                checkpoint = checkpoint_of(content.body)
                if self._tally is not None:
                    key = checkpoint.group, checkpoint.topic, CK, self.queue_id
                    self._tally.revive_out.add(key)
                return self.merging.add(checkpoint, revive_offset)
        elif kind in _ACKS:
            ack, stored_ms = acknowledgement_of(content.body), content.store_timestamp_ms
            if self._tally is not None:
                self._tally.revive_out.add((ack.group, ack.topic, ACK, self.queue_id))
            self.merging.acknowledge(ack, revive_offset, stored_ms, may_be_early=has_room)
        return None

    def _note_failure(self, revive_offset: int, error: MessageError) -> None:
        self._failures += 1
        if self._failures <= FAILURES_SAID_MAX:
            log.error(
                "record of popped messages is left out: it can't be read",
                extra={"topic": self.topic, "queue_id": self.queue_id, "queue_offset": revive_offset, "error": error},
            )

    def go_back(self) -> bool:
        """Read again from where there was no room, if there is some now."""
        goes = self._put_off >= 0 and len(self.merging) <= OPEN_MAX // 2
        if goes:
            self._next, self._put_off, self.known_ms = self._put_off, -1, 0
        return goes
