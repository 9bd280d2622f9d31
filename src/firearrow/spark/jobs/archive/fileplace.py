"""Place of an archive: a directory of this machine, or a URI that Arrow and Delta know.

Arrow reads and writes the data files, and Delta its log. Both take credentials and endpoints from the environment
(``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_ENDPOINT_URL``...), or from a URI in Arrow's form:
``s3://KEY:SECRET@bucket/path?endpoint_override=HOST:PORT&scheme=http``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from firearrow.errors import ConfigError
from firearrow.files import make_directory, sync_directory
from firearrow.spark.planning.storage import open_files


def one_line(error: Exception) -> str:
    """Return the message of a library of many layers as one line."""
    text = re.sub(r"\x1b\[\d+m|↳|\s+", " ", str(error))
    return re.sub(r" +", " ", text).strip()[:300]


class FilePlace:
    """A directory for files, under one name for all its readers and writers. Can be pickled.

    ``what`` names its use in errors.
    """

    def __init__(self, root: Path | str, what: str = "archive") -> None:
        text = str(root)
        is_local = "://" not in text or text.startswith("file://")
        self.directory: Final = Path(text.removeprefix("file://")).absolute() if is_local else None
        self._given = text
        self._what = what

    def __getstate__(self) -> dict[str, object]:
        return {"directory": self.directory, "_given": self._given, "_what": self._what}

    def __str__(self) -> str:
        """Return the place without credentials, to show and to compare."""
        if self.directory is not None:
            return str(self.directory)
        scheme, host, path, _, _ = urlsplit(self._given)
        scheme = {"s3a": "s3"}.get(scheme, scheme)
        return f"{scheme}://{host.rpartition('@')[2]}{path.rstrip('/')}"

    @cached_property
    def files(self) -> pafs.FileSystem:
        """File system whose root is this place. Raises ConfigError for a URI that is none."""
        if self.directory is not None:
            return pafs.SubTreeFileSystem(str(self.directory), pafs.LocalFileSystem())
        return pafs.SubTreeFileSystem(self._path, self._system)

    @cached_property
    def _opened(self) -> tuple[pafs.FileSystem, str]:
        try:
            return open_files(self._given)
        except (pa.ArrowInvalid, OSError, ValueError, ImportError) as error:
            raise ConfigError(f"{self._what} {self}: {error}") from None

    @property
    def _system(self) -> pafs.FileSystem:
        return self._opened[0]

    @property
    def _path(self) -> str:
        return self._opened[1].rstrip("/")

    @property
    def delta_options(self) -> dict[str, str]:
        """Settings of the URI and of Arrow's file system, under Delta's names."""
        if self.directory is not None or not isinstance(self._system, pafs.S3FileSystem):
            return {}
        parts = urlsplit(self._given)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        options = {"AWS_REGION": self._system.region}
        endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
        if "endpoint_override" in query:
            endpoint = query["endpoint_override"]
            if "://" not in endpoint:
                endpoint = f"{query.get('scheme', 'https')}://{endpoint}"
            options["AWS_ENDPOINT_URL"] = endpoint
        if endpoint.startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
        if parts.username is not None:
            options["AWS_ACCESS_KEY_ID"] = unquote(parts.username)
            options["AWS_SECRET_ACCESS_KEY"] = unquote(parts.password or "")
        return options

    def open(self, path: str) -> pa.NativeFile:
        """Open a file to read it."""
        return self.files.open_input_file(path)

    def read(self, path: str) -> bytes:
        """Return a whole file."""
        with self.open(path) as file:
            data: bytes = file.read()
        return data

    def full(self, path: str) -> str:
        """Return the name of a file for other programs: a path, or a URI."""
        return f"{self}/{path}"

    def has(self, path: str) -> bool:
        """Tell whether there is a file or directory."""
        found: bool = self.files.get_file_info(path).type != pafs.FileType.NotFound
        return found

    def names(self) -> list[str]:
        """Return the names of the files of the directory, without its subdirectories; none if it is missing."""
        found = self.files.get_file_info(pafs.FileSelector("", allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == pafs.FileType.File)

    def create(self, path: str) -> pa.NativeFile:
        """Open a new file to write it; a remote file exists once it is closed."""
        if self.directory is not None:
            (self.directory / path).parent.mkdir(parents=True, exist_ok=True)
        return self.files.open_output_stream(path)

    def delete(self, path: str) -> None:
        """Remove a file; it may be gone already."""
        with suppress(FileNotFoundError):
            self.files.delete_file(path)

    # --- syncing to disk; an object store needs none ---

    def make(self) -> None:
        """Create the directory, if the place is one."""
        if self.directory is not None:
            make_directory(self.directory)

    def sync(self, paths: Iterable[str]) -> None:
        """Return once the contents of files are on the disk."""
        if self.directory is None:
            return
        for path in paths:
            descriptor = os.open(self.directory / path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def sync_names(self, paths: Iterable[str]) -> None:
        """Return once the names of files and of their directories are on the disk."""
        if self.directory is None:
            return
        above = {place for path in paths for place in Path(path).parents}
        for place in sorted(above, reverse=True):
            sync_directory(self.directory / place)
