"""Events of users and policies, for parts that keep values derived from them."""

from __future__ import annotations

from typing import NamedTuple


class RightsChanged(NamedTuple):
    """A user or its policies were created, changed or deleted."""

    username: str
