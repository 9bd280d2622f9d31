"""Pages of the console, by subject. Each module ends with the list of its pages and their addresses."""

from typing import Final

from firearrow.console.page import Declared
from firearrow.console.pages import (
    access,
    alerts,
    api,
    brokers,
    changes,
    clients,
    configs,
    deadletters,
    disks,
    find,
    groups,
    lites,
    message,
    messages,
    overview,
    pending,
    replicas,
    sending,
    sql,
    tail,
    topics,
    transactions,
)

PAGES: Final[tuple[Declared, ...]] = (
    *overview.PAGES,
    *topics.PAGES,
    *groups.PAGES,
    *access.PAGES,
    *alerts.PAGES,
    *api.PAGES,
    *brokers.PAGES,
    *changes.PAGES,
    *clients.PAGES,
    *configs.PAGES,
    *deadletters.PAGES,
    *disks.PAGES,
    *find.PAGES,
    *lites.PAGES,
    *message.PAGES,
    *messages.PAGES,
    *pending.PAGES,
    *replicas.PAGES,
    *sending.PAGES,
    *sql.PAGES,
    *tail.PAGES,
    *transactions.PAGES,
)
