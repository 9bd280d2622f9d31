"""Users of calls, proved by their header field ``authorization``.

``MQv2-HMAC-SHA1 Credential=<user>[/...], SignedHeaders=x-mq-date-time, Signature=<hex>``: the signature is the HMAC of
the field ``x-mq-date-time`` by the user's secret. RocketMQ does not look at the age of the time, and clients write it
in several forms; so a signature that somebody has read can be used again. Use TLS.

Source: RocketMQ's ``DefaultAuthenticationContextBuilder``, ``AclSigner``.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final, Protocol

from firearrow.errors import BrokerError
from firearrow.net.grpc import Call
from firearrow.proxy.messages import Code
from firearrow.proxy.statuses import ProxyError

_ALGORITHM: Final = "MQv2-HMAC-SHA1"


class Users(Protocol):
    """The check of users."""

    def user_of(self, call: Call) -> str | None:
        """Return the user of a call, None if users are not checked; ProxyError if a call proves none."""
        ...


class Anyone:
    """No check."""

    def user_of(self, call: Call) -> str | None:
        """Return None."""
        return None


class Signed:
    """Check of signatures; ``password_of`` returns a user's secret, or raises the BrokerError for an unknown one."""

    def __init__(self, password_of: Callable[[str], str | None]) -> None:
        self._password_of = password_of

    def user_of(self, call: Call) -> str | None:
        """Return the user that has signed a call; ProxyError if none has."""
        algorithm, _, text = call.fields.get(b"authorization", b"").decode("utf-8", "replace").partition(" ")
        words = dict(word.strip().partition("=")[::2] for word in text.split(","))
        username = words.get("Credential", "").partition("/")[0]
        if algorithm != _ALGORITHM or not username:
            raise ProxyError(Code.UNAUTHORIZED, "username cannot be null.")
        try:
            secret = self._password_of(username)
        except BrokerError as error:
            raise ProxyError(Code.UNAUTHORIZED, error.remark) from None
        signed = hmac.new((secret or "").encode(), call.fields.get(b"x-mq-date-time", b""), "sha1").hexdigest()
        if not secret or not hmac.compare_digest(signed.encode(), words.get("Signature", "").lower().encode()):
            raise ProxyError(Code.UNAUTHORIZED, "check signature failed.")
        return username
