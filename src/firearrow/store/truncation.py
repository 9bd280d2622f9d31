"""Give up the end of a log: records of a slave that its master never had.

This happens while the store is being opened, before recovery. Recovery then finds that the log ends sooner, and cuts
queues and index as after any unclean end. So a log gets shorter in one way only. Everything that refers to the log
(queues, index, timer, offsets) is made consistent with it by the usual steps of a start.

No part of the end comes back, whenever the machine fails. First the note of the last stop is removed: because of it the
next start would miss the end of the log. Then the checkpoint forgets the places that it vouches for, or later records
in the same place would count as flushed. Then the log is cut, its files from the last one on, and the rest of the last
file is zeroed durably. A failure in between leaves a log that is whole up to some place not before the cut: the caller
then repeats the cut.

Java: AutoSwitchHAClient moves positions in memory only, so that the old end is there again after a crash
(apache/rocketmq#10666).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from firearrow.logs import Log
from firearrow.store import inventory
from firearrow.store.checkpoint import Checkpoint
from firearrow.store.commitlog import CommitLog
from firearrow.store.fs import FileSystem
from firearrow.store.recovery import Recovered

log: Final = Log(__name__)


def cut_log(commit_log: CommitLog, physical_offset: int, checkpoint: Checkpoint, root: Path, fs: FileSystem) -> bool:
    """Give up a loaded log from a physical offset on; tell whether there was anything.

    Durable on return. ``checkpoint`` still has its times, as the start of the walk; `save_after_cut` makes it fit.
    Raises OSError.
    """
    assert physical_offset >= 0
    if next(commit_log.segments.data(physical_offset), None) is None:
        return False
    log.warning(
        "end of the CommitLog is given up: the master does not have it", extra={"end_physical_offset": physical_offset}
    )
    inventory.remove(root, fs)
    Checkpoint().save(root / "checkpoint", fs)
    if checkpoint.queues_physical_offset >= physical_offset:
        checkpoint.queues_physical_offset = 0
    commit_log.segments.cut_durably(physical_offset)
    return True


def save_after_cut(checkpoint: Checkpoint, recovered: Recovered, root: Path, fs: FileSystem) -> None:
    """Save a checkpoint that vouches for nothing after the end of a log that was cut."""
    last_ms = recovered.last_store_ms
    checkpoint.log_ms = min(checkpoint.log_ms, last_ms)
    checkpoint.queues_ms = min(checkpoint.queues_ms, last_ms)
    checkpoint.index_ms = min(checkpoint.index_ms, last_ms)
    assert checkpoint.queues_physical_offset <= recovered.log_end_offset
    checkpoint.save(root / "checkpoint", fs)
