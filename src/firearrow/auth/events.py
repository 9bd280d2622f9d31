"""What happens to users and policies, for whoever keeps something that follows from them."""

from __future__ import annotations

from typing import NamedTuple


class RightsChanged(NamedTuple):
    """A user was made, changed or deleted, or what it may do was."""

    username: str
