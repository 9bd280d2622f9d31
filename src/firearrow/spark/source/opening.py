"""Choice of the origin that a reader's options name."""

from __future__ import annotations

from firearrow.spark.options import Options
from firearrow.spark.source.files import FileOrigin
from firearrow.spark.source.filters import PushedFilters
from firearrow.spark.source.origin import Origin


def open_origin(options: Options, narrow: PushedFilters | None = None) -> Origin:
    """Open the origin that the options name: files of stores or brokers, with an archive if there is one.

    ``narrow`` holds the filters of a query.
    """
    if options.place.archive is not None:
        from firearrow.spark.jobs.archive.archivedorigin import ArchivedOrigin, live_options

        return ArchivedOrigin(options, open_origin(live_options(options), narrow))
    if options.place.name_servers:
        from firearrow.spark.source.brokers import BrokerOrigin  # the half that needs no files

        return BrokerOrigin(options, narrow)
    return FileOrigin(options, narrow)
