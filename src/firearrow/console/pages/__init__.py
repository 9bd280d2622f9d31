"""Pages of the console, by subject. Each module ends with the list of its pages and their addresses."""

from typing import Final

from firearrow.console.page import Declared
from firearrow.console.pages import (
    deadletters,
    find,
    groups,
    message,
    messages,
    overview,
    pending,
    sending,
    tail,
    topics,
    transactions,
)

PAGES: Final[tuple[Declared, ...]] = (
    *overview.PAGES,
    *topics.PAGES,
    *groups.PAGES,
    *messages.PAGES,
    *message.PAGES,
    *tail.PAGES,
    *find.PAGES,
    *sending.PAGES,
    *deadletters.PAGES,
    *pending.PAGES,
    *transactions.PAGES,
)
