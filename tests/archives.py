"""Tar archives that tests unpack."""

import tarfile
from pathlib import Path


def unpack(archive: Path, to: Path) -> None:
    """Unpack an archive; its files stay within `to` if this version of Python can ensure that."""
    with tarfile.open(archive) as files:
        # Python before 3.11.4 has no filters, nor `extractall` an argument for one.
        files.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        files.extractall(to)
