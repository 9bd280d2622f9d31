"""Java's whole numbers: the bounds of ``int`` and ``long``, and the form of their texts."""

from __future__ import annotations

from typing import Final

INT_MIN: Final = -(1 << 31)
INT_MAX: Final = (1 << 31) - 1
LONG_MIN: Final = -(1 << 63)
LONG_MAX: Final = (1 << 63) - 1

INT_TEXT: Final = "[+-]?[0-9]{1,10}"
LONG_TEXT: Final = "[+-]?[0-9]{1,19}"
"""Regular expressions. A text of this form may be beyond the bounds."""
