"""The options of every command that has Spark at work: where it runs, how, and what is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from firearrow.cli.parameters import NOT_ASKED, Pairs, either, options, repeated, switch, valued
from firearrow.cli.values import count, pair

Progress = Annotated[bool | None, either("show progress on standard error (default: on a terminal)")]
Page = Annotated[Path | None, valued("FILE", "also write an HTML page with charts")]


@options
class SessionOptions:
    """How Spark is set, wherever it runs."""

    master: Annotated[str | None, NOT_ASKED] = None
    conf: Annotated[Pairs, repeated("KEY=VALUE", "a setting of Spark; may be repeated", pair)] = ()
    spark_log: Annotated[
        Path | None, valued("FILE", "file for Spark's own messages (default: only its error, if it does not start)")
    ] = None


@options
class RunOptions(SessionOptions):
    """Where Spark runs, and how a report is shown."""

    master: Annotated[
        str, valued("URL", "where Spark runs: local[N], spark://..., yarn, k8s://... (default: local[*])")
    ] = "local[*]"
    top: Annotated[int, valued("N", "largest number of rows to show of a table; 0 for all (default: 20)", count)] = 20
    json: Annotated[bool, switch("print one JSON object")] = False
    report: Page = None
    progress: Progress = None
