"""Keeps the notes for the next start true when queues or index are rebuilt in place.

``closed.json`` (``inventory``) says what a closed store had, ``left-out-queues.tsv`` (``laggingqueues``)
which queues lack messages. A start rebuilds what does not fit them: of what was just made it must
not. What they say of all else still holds, as that the log ended further on.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec

from firearrow.store import inventory
from firearrow.store.fs import OS_FILES
from firearrow.store.laggingqueues import NAME as LEFT_OUT
from firearrow.store.laggingqueues import LaggingFile
from firearrow.store.offline.view import Layout, StoreView
from firearrow.store.reading.entries import QueueKey


def forget_made(layout: Layout, kept: Path, made: AbstractSet[QueueKey], *, index: bool) -> None:
    """Have the notes say nothing of queues, and perhaps the index, that were rebuilt.

    A queue that ends before what is noted of it as left out stays noted, for the next start. The
    notes as they were go to ``kept``.
    """
    _forget_in_inventory(layout.root, kept, made, index=index)
    noted = LaggingFile(layout.root, OS_FILES)
    noted.load()
    with StoreView(layout, owned=True) as view:
        whole = {
            key
            for key, end in noted.noted.items()
            if key in made and key in view.queues and view.queues[key].end >= end
        }
    if whole:
        _keep(layout.root / LEFT_OUT, kept)
        noted.renew(whole)


def _forget_in_inventory(root: Path, kept: Path, made: AbstractSet[QueueKey], *, index: bool) -> None:
    noted = inventory.load(root)
    if noted is None:
        return
    queues = {
        topic: {number: place for number, place in of_topic.items() if (topic, number) not in made}
        for topic, of_topic in noted.queues.items()
    }
    names = [] if index else noted.index
    left = msgspec.structs.replace(noted, queues=queues, index=names)
    if left != noted:
        _keep(root / inventory.NAME, kept)
        inventory.save(root, left, OS_FILES)


def _keep(path: Path, kept: Path) -> None:
    if not (kept / path.name).exists():
        OS_FILES.write_file(kept / path.name, [path.read_bytes()])
