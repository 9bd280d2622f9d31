"""Options of several commands on a store: its directory, the configuration of its broker, readers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from firearrow.cli.interrupt import ending_at_once
from firearrow.cli.parameters import Options, switch, valued
from firearrow.cli.pipeline.options import Reading, SparkOptions
from firearrow.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from firearrow.store.config import StoreConfig
    from firearrow.store.offline import Layout

Directory = Annotated[Path, valued("DIR", "store directory")]
Json = Annotated[bool, switch("print one JSON object")]
Jobs = Annotated[int | None, valued("N", "number of processes that read the log (default: depends on its size)")]

_MADE_AS: Final = (
    "storeType",
    "useSeparateStorePathForRocksdbCQ",
    "mappedFileSizeConsumeQueue",
    "mapperFileSizeBatchConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
)
"""Keys for the kind and size of files. Other keys are ignored: they may be invalid here, or those of a slave."""


class LayoutOptions(Options):
    """Layout of a store."""

    file: Annotated[
        Path | None,
        valued(
            "FILE", "the broker's properties file: place of the log, kind and size of files, delay levels", name="-c"
        ),
    ] = None
    commitlog: Annotated[str | None, valued("DIR,...", "directory of the CommitLog (default: DIR/commitlog)")] = None
    index_slots: Annotated[
        int | None, valued("N", "hash slots of an IndexFile (default: a quarter of its entries)")
    ] = None
    delay_levels: Annotated[str | None, valued("TEXT", "messageDelayLevel of the broker (default: RocketMQ's)")] = None

    def of(self, directory: Path) -> Layout:
        """Give the layout of a store, by the options and the broker's file. Raises ConfigError."""
        from firearrow.store.offline import Layout

        settings = self._settings()
        slots = settings.get("maxHashSlotNum")
        return Layout.of(
            directory,
            settings.get("storePathCommitLog"),
            int(slots) if slots else None,
            settings.get("messageDelayLevel"),
            _made_as(settings) if self.file else None,
        )

    def _settings(self) -> dict[str, str]:
        """Keys of the broker that decide how to read its store; options override the file."""
        from firearrow.config import properties

        found = properties.load(self.file) if self.file else {}
        given = {
            "storePathCommitLog": self.commitlog,
            "maxHashSlotNum": self.index_slots,
            "messageDelayLevel": self.delay_levels,
        }
        found |= {key: str(value) for key, value in given.items() if value is not None}
        if not found.get("maxHashSlotNum", "1").isdecimal():
            raise ConfigError(f"maxHashSlotNum={found['maxHashSlotNum']} is not a number")
        return found


USUAL: Final = LayoutOptions()


def _made_as(settings: dict[str, str]) -> StoreConfig:
    from firearrow.config.table import update
    from firearrow.store.config import StoreConfig

    known = {key: text for key, text in settings.items() if key in _MADE_AS}
    return update(StoreConfig(), known)


class OnSpark(SparkOptions):
    """Executors of Spark that read the log, if any."""

    master: Annotated[
        str | None,
        valued(
            "URL",
            "read the log with executors of this Spark master; all must see DIR: local[N], "
            "spark://..., yarn, k8s://..., or sc://... for a Spark Connect server",
            name="--spark",
        ),
    ] = None

    def check(self, **places: Path | None) -> None:
        """Raise ConfigError for wrong options before the log is read.

        ``places`` are the files that the command writes, by the names of its options.
        """
        from firearrow.cli.pipeline.checks import check_places
        from firearrow.cli.pipeline.clusters import check_files

        given = [name for name in ("conf", "spark_log", "archives", "py_files") if getattr(self, name)]
        if given and not self.master:
            raise ConfigError(f"--{given[0].replace('_', '-')} can only be used with --spark")
        check_files(self.archives, self.py_files, "--spark", self.master)
        check_places({"spark_log": self.spark_log, **places})

    @contextmanager
    def session(self, what: str, directory: Path, *, progress: bool | None) -> Iterator[SparkSession]:
        """Start the chosen Spark for ``what``, and show its progress."""
        from firearrow.cli.output.screen import progress as shown
        from firearrow.cli.pipeline.checks import check_master, has_small_log
        from firearrow.cli.pipeline.clusters import needs_of
        from firearrow.cli.pipeline.jobs import require_pyspark, started

        assert self.master is not None, "the options name one"
        require_pyspark()
        check_master("--spark", self)
        is_small = has_small_log(directory)
        needs = needs_of(Reading(path=(str(directory),)))
        with (
            ending_at_once() as ending,
            started(self, ending, needs, progress=progress, is_small=is_small) as spark,
            shown(spark, what, wanted=progress),
        ):
            yield spark


HERE: Final = OnSpark()
