"""The numbered files of one address space, wherever their bytes come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from mmap import mmap
from typing import Any, Final, NamedTuple

Buffer = mmap | bytes | memoryview


class Files(NamedTuple):
    """Files with a ``base``, ``size_bytes`` and ``end``, in order.

    ``of`` gives the bytes of one, none if it is gone by now; behind ``data_end`` all of them are
    zero. Both are of the kind of file that ``files`` has.
    """

    files: Sequence[Any]
    of: Callable[[Any], Buffer]
    data_end: Callable[[Any], int] = lambda file: int(file.size_bytes)


NO_FILES: Final = Files((), lambda _: b"")
