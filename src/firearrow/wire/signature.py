"""Signed requests: a client proves its identity to a broker or name server with access control.

It sends three ext fields: ``AccessKey``, the user's name; ``SecurityToken``, only of temporary users; and
``Signature``. The signature is the Base64 of an HMAC-SHA1 whose key is the secret. Its text is the values of all other
ext fields (including the first two), in the order of their names, and then the body. Nothing separates the values.

Worked example, access key ``user``, secret key ``secret``, of request 14 with ``topic=T`` and
``queueId=3``: the names in order are AccessKey, queueId, topic, the text is ``user3T`` and the
signature ``+6h/ctCG5Vwn7se/bVKkUCdWGSw=``.

RocketMQ 4 and 5 sign alike. Source: RocketMQ's ``AclClientRPCHook``, ``AclUtils``, ``AclSigner``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
SIGNING: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
SIGNED_WHOLE_SINCE: Final = 400  # older clients (up to V4_9_3) add that field behind the signature
_ORDERS_MAX: Final = 512  # kinds of headers; a client has a few dozen


@dataclass(frozen=True, slots=True)
class Credentials:
    """Identity of a client. The secret is never printed and never sent."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)


_orders: Final[dict[tuple[str, ...], Callable[[Mapping[str, str]], Any]]] = {}


def _values_in_order(names: tuple[str, ...]) -> Callable[[Mapping[str, str]], Any]:
    """Return a function that gives the values of such ext fields in the order that they are signed in.

    Requests of one kind have the same names in the same order, so these are sorted once.
    """
    if len(_orders) >= _ORDERS_MAX:
        _orders.clear()
    signed = [name for name in sorted(names) if name != SIGNATURE]
    # With a single name an itemgetter gives the value and no tuple: joining its letters gives the value again.
    _orders[names] = order = itemgetter(*signed) if signed else _nothing
    return order


def _nothing(_: Mapping[str, str]) -> tuple[str, ...]:
    return ()


def _digest(ext: Mapping[str, str], body: bytes, secret_key: str) -> bytes:
    names = tuple(ext)
    order = _orders.get(names) or _values_in_order(names)
    text = "".join(order(ext)).encode("utf-8", "replace") + body
    keyed = _keyed(secret_key).copy()
    keyed.update(text)
    return keyed.digest()


@lru_cache(maxsize=1024)
def _keyed(secret_key: str) -> hmac.HMAC:
    """Return an HMAC that has taken its key: copying it costs less than taking the key again."""
    return hmac.new(secret_key.encode("utf-8", "replace"), digestmod=hashlib.sha1)


def signature(ext: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """Return the signature of a request with these ext fields; an existing signature field is ignored."""
    return base64.b64encode(_digest(ext, body, secret_key)).decode()


def is_signed(ext: Mapping[str, str], body: bytes, secret_key: str, version: int) -> bool:
    """Tell whether a request of a client of a version has the signature that the secret makes.

    The comparison takes the same time wherever the two differ.
    """
    given = ext.get(SIGNATURE)
    if given is None:
        return False
    if version < SIGNED_WHOLE_SINCE and UNIQUE_KEY_QUERY in ext:
        ext = {name: value for name, value in ext.items() if name != UNIQUE_KEY_QUERY}
    wanted = base64.b64encode(_digest(ext, body, secret_key))
    return hmac.compare_digest(wanted, given.encode("utf-8", "replace"))


def sign(ext: dict[str, str], body: bytes, credentials: Credentials) -> None:
    """Add to the ext fields of a request the fields that name and prove its sender."""
    ext[ACCESS_KEY] = credentials.access_key
    if credentials.security_token:
        ext[SECURITY_TOKEN] = credentials.security_token
    ext[SIGNATURE] = signature(ext, body, credentials.secret_key)
