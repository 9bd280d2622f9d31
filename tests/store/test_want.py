"""A store that is refused one operation of the file system, whichever: no descriptor, no room.

Sends may be refused meanwhile. What was acknowledged can be read, by offset and by key, as soon as
the want is over: without a restart, and after an end of any kind.
"""

import errno
import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from firearrow.errors import StoreError
from firearrow.store import MessageStore
from firearrow.testing.fs import CrashableFileSystem
from tests.broker.fakes import HandClock
from tests.store.stores import BORN_MS, abandon, append, bodies, bodies_by_key, make_store, power_off, settle

MESSAGES = 26
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 3000,  # some ten messages
    "mapped_file_size_consume_queue": 200,  # ten entries
    "max_index_num": 20,  # twenty keys
}
NEEDS_ROOM = {"create", "half", "make", "reserve", "replace", "write", "resize"}
DERIVED = {"consumequeue", "index"}
ENDS = ("was closed", "was killed", "lost power")


class Want:
    """Refuses the ``number``-th operation, of all or of those on what is derived from the log.

    ``half``: a file is made before that, but empty.
    """

    def __init__(self, number: int, code: int, *, half: bool = False) -> None:
        self._number = number
        self._code = code
        self._half = half
        self.met = ""

    def __call__(self, operation: str, path: Path) -> None:
        if self._code == errno.EACCES and not DERIVED & set(path.parts):
            return
        self._number -= 1
        if self._number:
            return
        self.met = operation
        if self._half and operation == "create":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            self.met = "half"
        raise OSError(self._code, "refused", str(path))


class Life:
    """A store with two topics, all of whose files roll, and what it has acknowledged."""

    def __init__(self, root: Path, want: Want) -> None:
        root.mkdir()
        self._root = root
        self._clock = HandClock()
        self._fs = CrashableFileSystem(root)
        self.store = self._made(self._fs, root)
        self.sent: dict[str, list[bytes]] = {"A": [], "B": []}
        self.store.open(background=False)
        self._fs.before = want

    def _made(self, fs: CrashableFileSystem, root: Path) -> MessageStore:
        return make_store(root, fs=fs, clock=self._clock, **SIZES)

    def live(self) -> None:
        """Send, dispatch and flush, whatever is refused."""
        for number in range(MESSAGES):
            topic, body = "AB"[number % 5 == 1], b"%d" % number
            try:
                append(self.store, body.ljust(150), topic, properties={"KEYS": f"k{number}"}, now_ms=BORN_MS + number)
                self.sent[topic].append(body)
            except StoreError:
                self._clock.seconds += 2
            if number % 4 == 3:
                self.store.dispatch()
                self._wait()

    def _wait(self) -> None:
        self._clock.seconds += 61
        while (wait := self.store.catch_up_left_out()) is not None and wait < 1:
            pass
        with suppress(OSError):
            self.store.flush_step()

    def stop_refusing(self) -> None:
        """Have the want be over, if it ever came."""
        self._fs.before = lambda operation, path: None

    def recover(self) -> None:
        """What a running broker does by itself."""
        settle(self.store)
        for _ in range(3):
            self._wait()
        append(self.store, b"last".ljust(150), "A", now_ms=BORN_MS + MESSAGES)
        self.sent["A"].append(b"last")
        settle(self.store)

    def check(self) -> None:
        """Everything acknowledged is there."""
        for topic, sent in self.sent.items():
            assert [body.strip() for body in bodies(self.store, topic)] == sent
            for body in sent[:-1]:
                key = f"k{body.decode()}"
                assert bodies_by_key(self.store, key, topic) == [body.ljust(150)]

    def end(self, how: str) -> None:
        """End in one of the ways, and open again."""
        if how == "was closed":
            self.store.close()
        elif how == "was killed":
            abandon(self.store)
        else:
            self._clock.seconds += 61
            self.store.flush_step()
            self._root = self._root.with_suffix(".left")
            self._fs.crash(self._root, 1)
            power_off(self.store)
        self.store = self._made(CrashableFileSystem(self._root), self._root)
        self.store.open(background=False)


def refused(directory: Path, code: int, *, half: bool = False, first_end: int = 0) -> Iterator[tuple[Life, str, str]]:
    """A life for each operation that may be refused, what was, and how it is to end."""
    for number in itertools.count(1):
        want = Want(number, code, half=half)
        life = Life(directory / str(number), want)
        life.live()
        life.stop_refusing()
        if want.met and (code != errno.ENOSPC or want.met in NEEDS_ROOM):
            yield life, want.met, ENDS[(number + first_end) % len(ENDS)]
        life.store.close()
        if not want.met:
            return


@pytest.mark.parametrize(("code", "half"), [(errno.EMFILE, False), (errno.ENOSPC, True), (errno.EACCES, False)])
def test_one_refused_operation_costs_no_message(tmp_path: Path, code: int, half: bool) -> None:
    met = set()
    for life, operation, end in refused(tmp_path, code, half=half, first_end=half):
        try:
            life.recover()
            life.check()
            life.end(end)
            life.check()
        except BaseException as failure:
            failure.add_note(f"{operation} was refused, then the store {end}: {life.store.root}")
            raise
        met.add(operation)
    assert met >= ({"half", "reserve"} if half else {"create", "map", "sync", "sync names"})
