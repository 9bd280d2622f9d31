"""Pages of the console, by subject. Each module ends with the list of its pages and their addresses."""

from typing import Final

from firearrow.console.page import Declared
from firearrow.console.pages import (
    access,
    alerts,
    brokers,
    clients,
    configs,
    disks,
    groups,
    lites,
    overview,
    replicas,
    topics,
)

PAGES: Final[tuple[Declared, ...]] = (
    *overview.PAGES,
    *topics.PAGES,
    *groups.PAGES,
    *brokers.PAGES,
    *configs.PAGES,
    *clients.PAGES,
    *disks.PAGES,
    *replicas.PAGES,
    *access.PAGES,
    *lites.PAGES,
    *alerts.PAGES,
)
