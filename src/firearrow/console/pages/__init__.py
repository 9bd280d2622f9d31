"""Pages of the console, by subject. Each module ends with the list of its pages and their addresses."""

from typing import Final

from firearrow.console.page import Declared
from firearrow.console.pages import find, groups, message, messages, overview, sending, tail, topics

PAGES: Final[tuple[Declared, ...]] = (
    *overview.PAGES,
    *topics.PAGES,
    *groups.PAGES,
    *messages.PAGES,
    *message.PAGES,
    *tail.PAGES,
    *find.PAGES,
    *sending.PAGES,
)
