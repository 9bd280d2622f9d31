"""A client's access to servers: the key that signs its requests, and its encryption."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:  # most programs of a client neither sign nor encrypt
    from firearrow.net.encryption import Tls
    from firearrow.wire.signature import Credentials


class Access(msgspec.Struct, frozen=True):
    """Access of a client: signed, encrypted, both or neither. It can be pickled."""

    credentials: Credentials | None = None
    tls: Tls | None = None


OPEN: Final = Access()
