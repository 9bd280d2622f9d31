"""Newest handles of messages whose invisible time was changed, for consumers that have only an older one.

A change of the invisible time replaces the handle of a message. A proxy changes it for its consumers, which are not
told the new handle. If that proxy ends, another one asks here (19003) for the handle that counts now.

An older handle counts as long as the message was invisible all the time since: each change came before the time of the
one before was over. When that time is over the message is redelivered, and only its new delivery counts. An
acknowledged message stays known to the end of that time: a change by another proxy, which holds it still, is refused.
The books are in memory: a broker that restarts does not know the older handles any more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from firearrow.broker.pop.revivelog import PopBatch
from firearrow.wire.pop import Handle

MESSAGES_MAX: Final = 100_000
"""Messages whose newest handle is remembered; half a kilobyte each. The oldest are forgotten first."""
EARLIER_MAX: Final = 16
"""Pop times of older handles of a message: the first, and the last."""
_FORGOTTEN_MAX: Final = 8  # messages, for each that is noted

Place = tuple[str, str, int, int]
"""Topic, group, queue and queue offset of a message."""


class _Newest(NamedTuple):
    """Newest handle of a message, and the pop times of those that it has replaced."""

    handle: Handle
    earlier: tuple[int, ...]
    is_done: bool = False

    def has(self, handle: Handle) -> bool:
        """Tell whether a handle is the newest, or an older one."""
        return handle.pop_ms == self.handle.pop_ms or handle.pop_ms in self.earlier


class Successors:
    """Newest handles by the places of their messages."""

    def __init__(self) -> None:
        self._newest: OrderedDict[Place, _Newest] = OrderedDict()

    def __len__(self) -> int:
        """Number of messages."""
        return len(self._newest)

    def note(self, place: Place, old: Handle, new: Handle, now_ms: int) -> None:
        """Note that a handle was replaced."""
        newest = self._newest
        for oldest in list(islice(newest, _FORGOTTEN_MAX)):
            if len(newest) < MESSAGES_MAX and newest[oldest].handle.visible_ms > now_ms:
                break
            del newest[oldest]
        known = newest.pop(place, None)
        earlier: tuple[int, ...] = ()
        if known is not None and known.handle.pop_ms == old.pop_ms:
            earlier = known.earlier[:1] + known.earlier[1:][2 - EARLIER_MAX :]
        if old.visible_ms > now_ms:
            newest[place] = _Newest(new, (*earlier, old.pop_ms))

    def find(self, place: Place, old: Handle, now_ms: int) -> Handle | None:
        """Return the newest handle of a message by an older one; None if the message is not invisible by it now."""
        known = self._newest.get(place)
        if known is None or known.is_done or known.handle.visible_ms <= now_ms:
            return None
        return known.handle if known.has(old) else None

    def is_done(self, place: Place, handle: Handle) -> bool:
        """Tell whether a message was acknowledged by a handle that has replaced this one, or by this one itself."""
        known = self._newest.get(place)
        return known is not None and known.is_done and known.has(handle)

    def done(self, batch: PopBatch, queue_offsets: Iterable[int]) -> None:
        """Note that messages of a batch were acknowledged, if no other handle has replaced the batch's.

        Another proxy may go on with changes of their invisible time: that must not bring them back.
        """
        if not self._newest:
            return
        for queue_offset in queue_offsets:
            place = batch.topic, batch.group, batch.queue_id, queue_offset
            known = self._newest.get(place)
            if known is not None and known.handle.pop_ms == batch.handle.pop_ms:
                self._newest[place] = known._replace(is_done=True)
