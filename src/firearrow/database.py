"""RocksDB databases: their options, and their errors as Firearrow's.

RocketMQ keeps ConsumeQueues and some configuration in RocksDB with ``storeType=defaultRocksDB``. With the options here,
either broker can open the databases of the other. Memory and open files are limited: the original takes a gigabyte of
cache and every file.

RocksDB comes with the package ``rocksdict``, which the extra ``rocksdb`` installs. Source: RocketMQ's
``RocksDBOptionsFactory``, ``ConfigHelper``.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple

from firearrow.errors import CorruptStore, MissingPackage
from firearrow.files import DIRECTORY_MODE, make_directories

if TYPE_CHECKING:
    from rocksdict import Cache, ColumnFamily, Options, Rdict, WriteBatch

KiB: Final = 1024
MiB: Final = 1024 * KiB
DEFAULT: Final = "default"
_LOG_FILES_MAX: Final = 3
_SECRET_MODE: Final = 0o700
_SECRET_FILE_MODE: Final = 0o600
_SNAPSHOT_ATTEMPTS: Final = 5  # a writer may remove files between their listing and their opening
_NOT_LINKED: Final = {"LOCK", "rocksdict-config.json"}


def _library() -> ModuleType:
    try:
        import rocksdict
    except ImportError:
        raise MissingPackage("RocksDB needs", "rocksdict", "rocksdb") from None
    return rocksdict


class FamilyOptions(NamedTuple):
    """A column family.

    ``compression`` has RocketMQ's names of two methods: for young files and, if ``universal`` compaction ends in one
    large file, for that file. A look-up reads ``block_bytes``.
    """

    name: str
    write_buffer_bytes: int
    compression: tuple[str, str] = ("none", "none")
    universal: bool = False
    block_bytes: int = 32 * KiB


class _Errors:
    """Translates RocksDB's errors, which are all bare Exceptions.

    Damage becomes a CorruptStore, unless the caller is ``writing`` and handles a failing disk. Any other error becomes
    an OSError.
    """

    def __init__(self, path: Path, *, writing: bool = False) -> None:
        self._path = path
        self._writing = writing

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is Exception:
            text = str(error)
            if text.startswith("Corruption") and not self._writing:
                raise CorruptStore(f"{self._path}: {text}") from error
            full = "No space left" in text
            raise OSError(errno.ENOSPC if full else errno.EIO, text, str(self._path)) from error


class Table:
    """One column family: keys in order of their bytes."""

    def __init__(self, rows: Rdict, path: Path) -> None:
        self._rows = rows
        self._errors = _Errors(path)
        self._write_errors = _Errors(path, writing=True)

    def get(self, key: bytes) -> bytes | None:
        """Value of a key."""
        with self._errors:
            value: bytes | None = self._rows.get(key)
            return value

    def some(self, start: bytes, count: int, end: bytes | None = None) -> list[tuple[bytes, bytes]]:
        """Up to ``count`` rows from a key on, and before the ``end`` if it is given.

        Rows that were removed behind the end cost nothing.
        """
        options = None
        if end is not None:
            options = _library().ReadOptions()
            options.set_iterate_upper_bound(end)
        with self._errors:
            rows = self._rows.items(from_key=start, read_opt=options)
            return list(islice(rows, count))  # type: ignore[arg-type]

    def rows(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """All rows whose keys begin with a prefix, in their state at the call."""
        with self._errors:
            for key, value in self._rows.items(from_key=prefix):
                assert isinstance(key, bytes)
                if not key.startswith(prefix):
                    return
                yield key, value

    def flush(self) -> None:
        """Return once all rows are on the disk; OSError if the write fails."""
        with self._write_errors:
            self._rows.flush(wait=True)

    def close(self) -> None:
        """Release the family; the database is closed with its last one."""
        with self._errors:
            self._rows.close()


class Batch:
    """Changes that ``Database.write`` makes atomically."""

    def __init__(self, changes: WriteBatch, database: Database) -> None:
        self.changes = changes
        self._database = database

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Set a value."""
        self.changes.put(key, value, self._database.handle(family))

    def put_all(self, family: str, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Set a value for each of many keys; sorted keys are written in half the time."""
        each = map(self.changes.put, keys, values, repeat(self._database.handle(family)))
        deque(each, maxlen=0)  # a loop without a Python step for each

    def delete(self, family: str, key: bytes) -> None:
        """Remove a row, if it exists."""
        self.changes.delete(key, self._database.handle(family))

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        """Remove the rows from one key to before another."""
        self.changes.delete_range(start, end, self._database.handle(family))


class Database:
    """An open directory with a RocksDB database. The first family is ``default``.

    Any thread may use it. With ``log_ahead`` every write is durable when it returns, otherwise only flushed rows are. A
    database that ``has_secrets`` is for its user alone. Raises ConfigError without the package, OSError or CorruptStore
    where the database can't be opened.
    """

    def __init__(
        self,
        path: Path,
        families: Sequence[FamilyOptions],
        *,
        cache_bytes: int,
        open_files_max: int,
        log_ahead: bool,
        has_secrets: bool = False,
    ) -> None:
        rocksdict = _library()
        assert families[0].name == DEFAULT
        self._library = rocksdict
        self._write_errors = _Errors(path, writing=True)
        cache = rocksdict.Cache(cache_bytes)
        options = [_options(family, cache) for family in families]
        options[0].set_max_open_files(open_files_max)
        self._write_options = rocksdict.WriteOptions()
        self._write_options.disable_wal = not log_ahead
        self._write_options.sync = log_ahead
        self._later_options = rocksdict.WriteOptions()
        self._later_options.disable_wal = not log_ahead
        make_directories(path, _SECRET_MODE if has_secrets else DIRECTORY_MODE)
        self._secrets = path if has_secrets else None
        with _Errors(path):
            others = {family.name: option for family, option in zip(families[1:], options[1:], strict=True)}
            self._default = rocksdict.Rdict(str(path), options[0], column_families=others)
            parts = {name: self._default.get_column_family(name) for name in others}
            self._handles = {family.name: self._default.get_column_family_handle(family.name) for family in families}
        parts = {DEFAULT: self._default, **parts}
        self.tables: Final = {name: Table(part, path) for name, part in parts.items()}
        self._hide_secrets()

    def _hide_secrets(self) -> None:
        """Remove all rights of other users: RocksDB makes its files with the default rights of the process."""
        if self._secrets is None:
            return
        # RocksDB removes files at any time, and a group may share another user's files.
        for place, mode in (
            (self._secrets, _SECRET_MODE),
            *((file, _SECRET_FILE_MODE) for file in self._secrets.iterdir()),
        ):
            with suppress(FileNotFoundError, PermissionError):
                place.chmod(mode)

    def handle(self, family: str) -> ColumnFamily:
        """Handle of a family, for ``Batch``."""
        handle: ColumnFamily = self._handles[family]
        return handle

    def batch(self) -> Batch:
        """An empty batch."""
        return Batch(self._library.WriteBatch(raw_mode=True), self)

    def write(self, batch: Batch, *, sync: bool = True) -> None:
        """Make the changes of a batch atomically; OSError if the disk fails.

        With a log ahead, the batch is durable on return, unless that is left to ``sync``.
        """
        options = self._write_options if sync else self._later_options
        with self._write_errors:
            self._default.write(batch.changes, options)

    def sync(self) -> None:
        """Return once the log has all batches on the disk; OSError if the disk fails."""
        with self._write_errors:
            self._default.flush_wal(True)

    def close(self) -> None:
        """Close the database. Rows that were not flushed may be missing at the next start."""
        self._handles.clear()
        for table in reversed(self.tables.values()):
            table.close()
        self._hide_secrets()


class Snapshot:
    """A database's contents on the disk, read while another process writes it.

    It writes nothing to the directory and takes no lock. Raises ConfigError without the package, OSError or
    CorruptStore where the database can't be opened.
    """

    def __init__(self, path: Path, families: Sequence[str]) -> None:
        there = families_of(path)
        for attempts_left in range(_SNAPSHOT_ATTEMPTS - 1, -1, -1):
            try:
                self._default, parts = _read_only(path, [name for name in families if name in there])
            except (OSError, CorruptStore):
                if not attempts_left:
                    raise
            else:
                break
        self.tables: Final = {name: Table(part, path) for name, part in parts.items()}

    def close(self) -> None:
        """Release the database."""
        for table in reversed(self.tables.values()):
            table.close()


def _read_only(path: Path, families: Sequence[str]) -> tuple[Rdict, dict[str, Rdict]]:
    """Open a database through links to its files, as the binding writes a file beside them.

    All files are open on return, so the links, or the files, may be removed.
    """
    library = _library()
    options = [library.Options(raw_mode=True) for _ in families]
    options[0].set_max_open_files(-1)
    others = dict(zip(families[1:], options[1:], strict=True))
    with TemporaryDirectory(prefix="firearrow-") as links, _Errors(path):
        for file in path.iterdir():
            if file.name not in _NOT_LINKED:
                (Path(links) / file.name).symlink_to(file.absolute())
        access = library.AccessType.read_only(False)
        default = library.Rdict(links, options[0], others, access)
        parts = {name: default.get_column_family(name) for name in others}
    return default, {DEFAULT: default, **parts}


def families_of(path: Path) -> list[str]:
    """Families of the database in a directory, none if there is no database."""
    if not (path / "CURRENT").exists():
        return []
    library = _library()
    with _Errors(path):
        names: list[str] = library.Rdict.list_cf(str(path), library.Options(raw_mode=True))
    return names


def _options(family: FamilyOptions, cache: Cache) -> Options:
    """A family's options: RocketMQ's, except for their sizes."""
    import rocksdict

    table = rocksdict.BlockBasedOptions()
    table.set_format_version(5)  # the newest that RocketMQ's RocksDB 8.4 reads
    table.set_block_size(family.block_bytes)
    table.set_bloom_filter(16, False)
    table.set_block_cache(cache)
    # A cache of this size would not hold a filter of a million keys, and would read it for every look-up.
    table.set_cache_index_and_filter_blocks(False)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(family.write_buffer_bytes)
    options.set_max_write_buffer_number(4)
    options.set_keep_log_file_num(_LOG_FILES_MAX)
    options.set_max_background_jobs(2)
    young, last = family.compression
    options.set_compression_type(getattr(rocksdict.DBCompressionType, young)())
    if family.universal:
        options.set_optimize_filters_for_hits(True)
        options.set_compaction_style(rocksdict.DBCompactionStyle.universal())
        options.set_bottommost_compression_type(getattr(rocksdict.DBCompressionType, last)())
    return options
