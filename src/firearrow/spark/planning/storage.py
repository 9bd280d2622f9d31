"""Files of a store on any file system that Arrow knows, read by ranges.

``firearrow.store.reading.storage`` has the files of this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs

from firearrow.errors import ConfigError
from firearrow.store.reading.storage import Entry, LocalStorage, Storage

MiB: Final = 1 << 20
GCS_RETRY_SECONDS: Final = 3  # by default Arrow looks for credentials for 15 minutes
_HADOOP_SCHEMES: Final = {"s3a": "s3"}
_GCS_SCHEMES: Final = ("gs", "gcs")


class RemoteStorage:
    """Files of a file system of Arrow, read by ranges."""

    window_bytes_max = 16 * MiB

    def __init__(self, root: str, files: pafs.FileSystem, path: str) -> None:
        self.root = root
        self._files = files
        self._path = path.rstrip("/")

    def entries(self, directory: str) -> list[Entry]:
        """The content of a directory, sorted; empty without the directory."""
        place = f"{self._path}/{directory}".rstrip("/")
        selector = pafs.FileSelector(place, allow_not_found=True)
        return sorted(
            Entry(info.base_name, info.size or 0, info.type == pafs.FileType.File)
            for info in self._files.get_file_info(selector)
        )

    def window(self, path: str, start: int, end: int) -> memoryview:
        """The bytes of a file from ``start`` to before ``end``, fewer if it is shorter."""
        with self._files.open_input_file(f"{self._path}/{path}") as file:
            end = min(end, file.size())
            return memoryview(file.read_at(end - start, start) if end > start else b"")

    def read(self, path: str) -> memoryview:
        """A whole file."""
        return self.window(path, 0, 1 << 62)

    def place(self, path: str) -> RemotePath:
        """A path below the root, for readers of small files."""
        return RemotePath(self, path)

    def modified_ns(self, path: str) -> int:
        """Time of the last change of a file (ns), 0 where it is not known."""
        return self._files.get_file_info(f"{self._path}/{path}").mtime_ns or 0


class _RemoteStatus(NamedTuple):
    st_mtime_ns: int


class RemotePath(NamedTuple):
    """The used part of a ``Path``, for a path in a remote storage."""

    storage: RemoteStorage
    path: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> RemotePath:
        """The directory of the path."""
        return RemotePath(self.storage, self.path.rpartition("/")[0])

    def __truediv__(self, name: str, /) -> RemotePath:
        return RemotePath(self.storage, f"{self.path}/{name}")

    def __str__(self) -> str:
        return f"{self.storage.root}/{self.path}"

    def glob(self, pattern: str, /) -> Iterator[RemotePath]:
        """The files in a directory that match; none without the directory."""
        for entry in self.storage.entries(self.path):
            if entry.is_file and fnmatch(entry.name, pattern):
                yield self / entry.name

    def exists(self) -> bool:
        """Tell whether the path exists."""
        return any(entry.name == self.name for entry in self.storage.entries(self.parent.path))

    def stat(self) -> _RemoteStatus:
        """The time of its last change."""
        return _RemoteStatus(self.storage.modified_ns(self.path))

    def read_bytes(self) -> bytes:
        """The content of a file."""
        return bytes(self.storage.read(self.path))


def open_storage(root: str) -> Storage:
    """The files below a path of this machine or a URI. Raises ConfigError for an unusable URI."""
    if "://" not in root:
        return LocalStorage(root)
    try:
        files, path = open_files(root)
    except (pa.ArrowInvalid, OSError, ValueError, ImportError) as error:
        raise ConfigError(f"option path={root!r}: {error}") from None
    if isinstance(files, pafs.LocalFileSystem):
        return LocalStorage(path)
    return RemoteStorage(root, files, path)


def open_files(uri: str) -> tuple[pafs.FileSystem, str]:
    """Arrow's file system for a URI, and the path in it. Raises Arrow's errors."""
    files, path = pafs.FileSystem.from_uri(_arrow_uri(uri))
    return files, path


def _arrow_uri(uri: str) -> str:
    """The URI as Arrow knows it, with a limit of its retries."""
    scheme, _, rest = uri.partition("://")
    scheme = _HADOOP_SCHEMES.get(scheme, scheme)
    if scheme in _GCS_SCHEMES and "retry_limit_seconds=" not in rest:
        rest += f"{'&' if '?' in rest else '?'}retry_limit_seconds={GCS_RETRY_SECONDS}"
    return f"{scheme}://{rest}"


def why_unreadable(error: OSError) -> str:
    """The reason as a sentence."""
    if "OAuth2 access token" in str(error):
        return (
            "there are no credentials for Google Cloud (GOOGLE_APPLICATION_CREDENTIALS names a file"
            " of them; gs://anonymous@bucket/... does without)"
        )
    return str(error)
