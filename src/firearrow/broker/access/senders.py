"""The senders of requests, to whom the broker turns later of its own accord."""

from __future__ import annotations

from firearrow.wire.frame import AnyCommand

NOBODY = ""


class Senders:
    """Knows of no user, and lets everybody do everything: there is no access control.

    With it, `firearrow.broker.access.control.AccessControl` is in its place.
    """

    asks_rights = False
    """Tell whether it takes a permission to send to a topic."""

    def user_of(self, request: AnyCommand) -> str:
        """Give the user that has proved to have sent a request, `NOBODY` if none has."""
        return NOBODY

    def may_publish(self, user: str, ip: str, topic: str | None = None) -> bool:
        """Tell whether a user may send to a topic by now, or to any at all (None)."""
        return True
