"""Asking servers of which any one will do, as name servers do."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from firearrow.errors import MAY_PASS, MessageError, ProtocolError

log = logging.getLogger(__name__)

T = TypeVar("T")

_PASSED_OVER: Final = (*MAY_PASS, MessageError, ProtocolError)


async def first_answer(
    addresses: list[str], ask: Callable[[str], Awaitable[T]], *, wanted: str = "name server answers"
) -> T:
    """Ask one server after another until one answers; those that can't be reached, or whose answer
    can't be read, go to the end of the list.

    Raises ConnectionError with what each of them said when none answers, and at once the refusal
    that all would give.
    """
    failures: list[str] = []
    for address in tuple(addresses):
        try:
            return await ask(address)
        except _PASSED_OVER as error:
            failures.append(str(error))
            if address in addresses:  # it may have been replaced meanwhile
                addresses.remove(address)
                addresses.append(address)
            log.debug("server is passed over", extra={"address": address, "error": error})
    raise ConnectionError(f"no {wanted}: {'; '.join(failures)}")
