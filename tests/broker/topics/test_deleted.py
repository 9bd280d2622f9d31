"""Deleted topics: noted as long as the log holds their records, also after a crash."""

from pathlib import Path

from firearrow.broker.topics.deleted import DeletedTopics
from tests.broker.fakes import HandClock


def deleted_in(root: Path) -> DeletedTopics:
    deleted = DeletedTopics(HandClock(), root, 2)
    deleted.load()
    return deleted


def test_a_record_before_the_deletion_is_covered(tmp_path: Path) -> None:
    deleted_in(tmp_path).note("T", 4096)
    deleted = deleted_in(tmp_path)
    assert deleted.covers("T", 4095)
    assert not deleted.covers("T", 4096)
    assert not deleted.covers("U", 0)


def test_what_retention_took_is_forgotten(tmp_path: Path) -> None:
    deleted = deleted_in(tmp_path)
    deleted.note("T", 4096)
    deleted.note("U", 5000)
    deleted.forget_before(4096)
    deleted.file.save()
    again = deleted_in(tmp_path)
    assert not again.covers("T", 0)
    assert again.covers("U", 4999)


def test_without_a_deletion_there_is_no_file(tmp_path: Path) -> None:
    deleted = deleted_in(tmp_path)
    deleted.forget_before(1 << 40)
    deleted.file.save()
    assert list(tmp_path.iterdir()) == []
