"""Opens the origin that options name, for batches, streams and jobs alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firearrow.spark.files import FileOrigin
from firearrow.spark.filters import PushedFilters
from firearrow.spark.options import Options

if TYPE_CHECKING:
    from firearrow.spark.origin import Origin


def open_origin(options: Options, narrow: PushedFilters | None = None) -> Origin:
    """Where the messages are: the files of stores, or brokers; and an archive, if one is named.

    ``narrow`` is what a query needs.
    """
    if options.place.archive is not None:
        from firearrow.spark.jobs.archived import ArchivedOrigin, live_options

        return ArchivedOrigin(options, open_origin(live_options(options), narrow))
    if options.place.name_servers:
        from firearrow.spark.brokers import BrokerOrigin  # the half that needs no files

        return BrokerOrigin(options, narrow)
    return FileOrigin(options, narrow)
