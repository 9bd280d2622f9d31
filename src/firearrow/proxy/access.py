"""Users of calls, proved by their header field ``authorization``.

``MQv2-HMAC-SHA1 Credential=<user>[/...], SignedHeaders=x-mq-date-time, Signature=<hex>``: the signature is the HMAC of
the field ``x-mq-date-time`` by the user's secret. RocketMQ does not look at the age of the time, and clients write it
in several forms; so a signature that somebody has read can be used again. Use TLS.

Source: RocketMQ's ``DefaultAuthenticationContextBuilder``, ``AclSigner``.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from firearrow.auth.model import Action, ResourceType
from firearrow.errors import BrokerError
from firearrow.net.grpc import Call
from firearrow.proxy.messages import Code
from firearrow.proxy.statuses import ProxyError

_ALGORITHM: Final = "MQv2-HMAC-SHA1"
_PACKAGE: Final = "apache.rocketmq.v2."


def _words_of(call: Call) -> dict[str, str]:
    """Return the words of the header field by their names; none for another algorithm."""
    algorithm, _, text = call.fields.get(b"authorization", b"").decode("utf-8", "replace").partition(" ")
    if algorithm != _ALGORITHM:
        return {}
    return dict(word.strip().partition("=")[::2] for word in text.split(","))


def claimed_user(call: Call) -> str:
    """Return the user that a call names, which it has not proved yet; empty if it names none."""
    return _words_of(call).get("Credential", "").partition("/")[0]


class Exempt(str):
    """User of a call that is exempt from permissions; empty if the call is unsigned and also exempt from signatures."""

    __slots__ = ()


class WhiteLists(NamedTuple):
    """Names of requests that are exempt from signatures, and of requests that are exempt from permissions."""

    unsigned: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()


_NO_LISTS: Final = WhiteLists()


def white_lists(authentication: str, authorization: str, *, asks_rights: bool) -> WhiteLists:
    """Read the lists of names and codes. A user without a signature has no rights.

    Java: DefaultAuthorizationContextBuilder believes the user that such a request names.
    """
    unsigned, allowed = _listed(authentication), _listed(authorization)
    return WhiteLists(unsigned & allowed if asks_rights else unsigned, allowed)


def _listed(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def name_of(call: Call) -> str:
    """Return the name of the message of a call's request."""
    name = call.method.name
    return f"{_PACKAGE}{name}Command" if name == "Telemetry" else f"{_PACKAGE}{name}Request"


class Users(Protocol):
    """The check of users."""

    def user_of(self, call: Call) -> str | None:
        """Return the user of a call, None if users are not checked; ProxyError if a call proves none."""
        ...

    def check_topic(self, user: str | None, address: str, topic: str, *actions: Action) -> None:
        """Raise ProxyError unless a user may do one of the actions on a topic."""
        ...

    def check_group(self, user: str | None, address: str, group: str) -> None:
        """Raise ProxyError unless a user may consume as a group."""
        ...

    def check_cluster(self, user: str | None, address: str, action: Action) -> None:
        """Raise ProxyError unless a user may do an action on the cluster."""
        ...


class Anyone:
    """No check."""

    def user_of(self, call: Call) -> str | None:
        """Return None."""
        return None

    def check_topic(self, user: str | None, address: str, topic: str, *actions: Action) -> None:
        """Allow everything."""

    def check_group(self, user: str | None, address: str, group: str) -> None:
        """Allow everything."""

    def check_cluster(self, user: str | None, address: str, action: Action) -> None:
        """Allow everything."""


class Control(Protocol):
    """Users and rights of the servers (`broker.access.control.AccessControl`)."""

    def password_of(self, username: str) -> str | None:
        """Return the secret of a user; raises BrokerError for an unknown or disabled one."""
        ...

    def check(self, username: str, ip: str, kind: ResourceType, name: str, actions: Sequence[Action]) -> None:
        """Raise the BrokerError for a user that may do none of the actions."""
        ...


class Signed:
    """Check of signatures and rights; ``control`` returns the present users and rights of ``cluster``."""

    def __init__(self, control: Callable[[], Control], cluster: str, lists: WhiteLists) -> None:
        self._control = control
        self._cluster = cluster
        self._lists = lists

    def check_topic(self, user: str | None, address: str, topic: str, *actions: Action) -> None:
        """Raise ProxyError unless a user may do one of the actions on a topic."""
        self._check(user, address, ResourceType.TOPIC, topic, actions)

    def check_group(self, user: str | None, address: str, group: str) -> None:
        """Raise ProxyError unless a user may consume as a group."""
        self._check(user, address, ResourceType.GROUP, group, (Action.SUB,))

    def check_cluster(self, user: str | None, address: str, action: Action) -> None:
        """Raise ProxyError unless a user may do an action on the cluster."""
        self._check(user, address, ResourceType.CLUSTER, self._cluster, (action,))

    def _check(self, user: str | None, address: str, kind: ResourceType, name: str, actions: Sequence[Action]) -> None:
        assert user is not None, "a call without a user is refused"
        if isinstance(user, Exempt):
            return
        try:
            self._control().check(user, address.rpartition(":")[0].strip("[]"), kind, name, actions)
        except BrokerError as error:
            raise ProxyError(Code.UNAUTHORIZED, error.remark) from None

    def user_of(self, call: Call) -> str | None:
        """Return the user that has signed a call; ProxyError if none has, and the call needs one."""
        if self._lists == _NO_LISTS:
            return self._proved(call)
        name = name_of(call)
        if name in self._lists.unsigned:
            try:
                return Exempt(self._proved(call))
            except ProxyError:
                return Exempt()
        user = self._proved(call)
        return Exempt(user) if name in self._lists.allowed else user

    def _proved(self, call: Call) -> str:
        words = _words_of(call)
        username = claimed_user(call)
        if not username:
            raise ProxyError(Code.UNAUTHORIZED, "username cannot be null.")
        try:
            secret = self._control().password_of(username)
        except BrokerError as error:
            raise ProxyError(Code.UNAUTHORIZED, error.remark) from None
        signed = hmac.new((secret or "").encode(), call.fields.get(b"x-mq-date-time", b""), "sha1").hexdigest()
        if not secret or not hmac.compare_digest(signed.encode(), words.get("Signature", "").lower().encode()):
            raise ProxyError(Code.UNAUTHORIZED, "check signature failed.")
        return username
