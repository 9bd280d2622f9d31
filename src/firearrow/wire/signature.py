"""Signed requests: how a client proves who it is to a broker or name server with access control.

Three ext fields say it: ``AccessKey``, the user's name; ``SecurityToken``, only of temporary users;
and ``Signature``, the Base64 of an HMAC-SHA1 whose key is the secret and whose text is the values
of all other ext fields (these two among them), in the order of their names, and then the body.
Nothing separates the values.

Worked example, access key ``user``, secret key ``secret``, of request 14 with ``topic=T`` and
``queueId=3``: the names in order are AccessKey, queueId, topic, the text is ``user3T`` and the
signature ``+6h/ctCG5Vwn7se/bVKkUCdWGSw=``.

RocketMQ 4 and 5 sign alike. Source: upstream ``AclClientRPCHook``, ``AclUtils``, ``AclSigner``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who a client is. The secret is never printed and never sent."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)


def signature(ext: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """The signature of a request with these ext fields; one that is there is not looked at."""
    text = "".join([ext[name] for name in sorted(ext) if name != SIGNATURE]).encode() + body
    return base64.b64encode(hmac.digest(secret_key.encode(), text, hashlib.sha1)).decode()


def sign(ext: dict[str, str], body: bytes, credentials: Credentials) -> None:
    """Add to the ext fields of a request those that name and prove its sender."""
    ext[ACCESS_KEY] = credentials.access_key
    if credentials.security_token:
        ext[SECURITY_TOKEN] = credentials.security_token
    ext[SIGNATURE] = signature(ext, body, credentials.secret_key)
