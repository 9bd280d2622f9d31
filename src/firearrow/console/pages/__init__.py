"""Pages of the console, by subject. Each module ends with the list of its pages and their addresses."""

from typing import Final

from firearrow.console.page import Declared
from firearrow.console.pages import (
    <<<<<<< HEAD
    api,
    <<<<<<< HEAD
    sending,
    =======
    deadletters,
    =======
    pending,
    >>>>>>> console-messages,
    >>>>>>> console-messages
    find,
    brokers,
    changes,
    clients,
    configs,
    deadletters,
    disks,
    groups,
    message,
    messages,
    overview,
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
    *changes.PAGES,
    *api.PAGES,
    *sql.PAGES,
    *messages.PAGES,
    *message.PAGES,
    *tail.PAGES,
    *deadletters.PAGES,
    *find.PAGES,
    *sending.PAGES,
    *brokers.PAGES,
    *configs.PAGES,
    *clients.PAGES,
    *disks.PAGES,
    *pending.PAGES,
    *transactions.PAGES,
)
