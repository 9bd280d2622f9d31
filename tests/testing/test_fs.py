"""Copies of directories that change meanwhile; the store's tests have the crashes."""

import threading
from pathlib import Path

from firearrow.testing.fs import copy_whole


def test_a_copy_has_all_that_is_there_at_one_moment(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "b" / "deep").write_text("deep")
    going = threading.Event()
    done = threading.Event()

    def change() -> None:
        number = 0
        while not done.is_set() and number < 200:  # in the end it may stay as it is
            number += 1
            new = tmp_path / f"{number}.tmp"  # elsewhere: at no moment is it in the source
            new.write_text("x" * number)
            new.rename(source / "a" / "state")
            going.set()

    thread = threading.Thread(target=change)
    thread.start()
    going.wait()
    copy_whole(source, tmp_path / "copy")
    done.set()
    thread.join()
    names = {path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*")}
    assert names == {"a", "a/b", "a/b/deep", "a/state"}
    assert set((tmp_path / "copy" / "a" / "state").read_text()) == {"x"}
