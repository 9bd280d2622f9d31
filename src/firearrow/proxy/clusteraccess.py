"""Access control in cluster mode: the proxy proves users and checks their rights, with users and policies of brokers.

Brokers see the proxy's own user (``innerClientAuthenticationCredentials``), which must be a super user: only super
users get passwords. So the rights of a client are the proxy's decision, by the rows of a broker's access control
(`wire.requests`, `broker.access.control`). A user and its policies are asked for once, and again while they are in use:
a change takes effect after the refresh time of their keys (20 s).

A request that refers to a message by its place in the log is checked by the topic of that message, which the broker
is asked for. Handles and transaction ids are not signed. With others' offsets a client could otherwise copy their
messages into its own dead letter queue, or end their transactions.

Source: RocketMQ's ``ProxyAuthenticationMetadataProvider``, ``ProxyAuthorizationMetadataProvider``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, cast

from firearrow.auth.metadata import RightsChanged
from firearrow.auth.model import SUBJECT_USER, Acl, Action, ResourceType, Subject, User, policies_of
from firearrow.broker.access.control import AccessControl
from firearrow.broker.admission import Check
from firearrow.broker.config import BrokerConfig
from firearrow.clock import Clock
from firearrow.errors import BrokerError, FirearrowError, MessageError, NotFound
from firearrow.events import Events
from firearrow.logs import Log
from firearrow.message import properties
from firearrow.message.record import decode_record
from firearrow.net.grpc import Call, Method
from firearrow.net.replies import Reply, Running, run
from firearrow.net.server import Peer
from firearrow.net.tasks import Tasks
from firearrow.proxy.access import Exempt, Signed, white_lists
from firearrow.proxy.answercache import AnswerCache, CacheLimits
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.messages import Code
from firearrow.proxy.statuses import ProxyError
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import AuthAcl, AuthUserInfo
from firearrow.wire.codes import RequestCode
from firearrow.wire.frame import AnyCommand
from firearrow.wire.requests import REQUESTS
from firearrow.wire.signature import ACCESS_KEY

log: Final = Log(__name__)

Ask = Callable[[RequestCode, Mapping[str, str]], Awaitable[AnyCommand]]
"""Asks a broker of the cluster; raises as `net.client.Client.call`."""

_PLACES: Final = {RequestCode.CONSUMER_SEND_MSG_BACK: "offset", RequestCode.END_TRANSACTION: "commitLogOffset"}
"""Fields with the place of a message, by the codes of requests that clients make."""


class OpensLater(Exception):
    """A call can't be opened before a coroutine has ended, which asks servers for the user of the call."""

    def __init__(self, coming: Running[None]) -> None:
        super().__init__()
        self.coming = coming


def patient(method: Method) -> Method:
    """Return a method that handles a call again as soon as the user of the call is known."""

    def handle(call: Call, data: bytes) -> bytes | None:
        try:
            return method.handler(call, data)
        except OpensLater as later:

            def again(_: object) -> None:
                if call.is_over:  # the client has given it up
                    return
                answer = handle(call, data)
                if answer is not None:
                    call.answer(answer)

            run(later.coming, again, again)
            return None

    return method._replace(handler=handle)


class Sender:
    """Sender of a request as the checks of a broker see it."""

    __slots__ = ("ip", "user")

    def __init__(self, user: str | None, address: str) -> None:
        self.user: str | None = user
        self.ip: Final = address.rpartition(":")[0].strip("[]")


class _Named(NamedTuple):
    """Topic and properties of a stored message."""

    topic: str
    properties: bytes


class _Places:
    """The message that a check is about, in place of a store."""

    def __init__(self) -> None:
        self.message: _Named | None = None

    def named_at(self, physical_offset: int) -> _Named:
        """Return the message; MessageError if the broker has none."""
        if self.message is None:
            raise MessageError(f"there is no message at {physical_offset}")
        return self.message


class _Rights(NamedTuple):
    """A user and its policies."""

    user: User
    acl: Acl | None


class ClusterAccess:
    """Users of the brokers of a cluster, and checks of requests before they are sent."""

    def __init__(self, config: ProxyConfig, ask: Ask, tasks: Tasks, clock: Clock, events: Events) -> None:
        self._ask = ask
        self._places = _Places()
        self._changed = events.of(RightsChanged)
        self.users: dict[str, User] = {}
        self._acls: dict[str, Acl] = {}
        self._failures: dict[str, Exception] = {}  # of questions for users, until the call that waits has failed
        keys = BrokerConfig(
            broker_cluster_name=config.rocketmq_cluster_name,
            authentication_enabled=True,
            authorization_enabled=config.authorization_enabled,
            authentication_strategy=config.authentication_strategy,
            stateful_authentication_cache_max_num=config.stateful_authentication_cache_max_num,
            stateful_authentication_cache_expired_second=config.stateful_authentication_cache_expired_second,
            authentication_whitelist=config.authentication_whitelist,
            authorization_whitelist=config.authorization_whitelist,
        )
        self._control = AccessControl(keys, self, self._places, clock, events)
        self._checks: dict[int, Check | None] = {}
        self._cluster = config.rocketmq_cluster_name
        lists = config.authentication_whitelist, config.authorization_whitelist
        self._lists = white_lists(*lists, asks_rights=config.authorization_enabled)
        limits = CacheLimits(
            min(config.user_cache_refresh_seconds, config.acl_cache_refresh_seconds),
            min(config.user_cache_expired_seconds, config.acl_cache_expired_seconds),
            min(config.user_cache_max_num, config.acl_cache_max_num),
        )
        self._known = AnswerCache("user", self._ask_rights, tasks, clock.monotonic, limits)

    # --- users ---

    def acl_of(self, username: str) -> Acl | None:
        """Return the known policies of a user."""
        return self._acls.get(username)

    def password_of(self, username: str) -> str | None:
        """Return the secret of a user; raises BrokerError for an unknown or disabled one, OpensLater if no broker was
        asked yet.
        """
        failure = self._failures.pop(username, None)
        if failure is not None:
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, f"user {username} is not known: {failure}")
        if not self._known.is_ready(username):
            raise OpensLater(self._learn(username))
        return self._control.password_of(username)

    async def _learn(self, username: str) -> None:
        """Wait until a user is known, or until no broker has answered: then the next look at the user fails."""
        try:
            await self._known.get(username)
        except (OSError, FirearrowError) as error:
            self._failures[username] = error

    def check_named(self, username: str, ip: str, kind: ResourceType, name: str, actions: Sequence[Action]) -> None:
        """Raise the BrokerError for a user that may do none of the actions."""
        self._control.check(username, ip, kind, name, actions)

    async def _ask_rights(self, username: str) -> _Rights | None:
        """Ask for a user and its policies, and forget all earlier decisions about a user that has changed."""
        answer = await self._ask(RequestCode.AUTH_GET_USER, {"username": username})
        found: _Rights | None = None
        if answer.body:
            user = User.of(fastjson.decode(answer.body, AuthUserInfo))
            if not user.password:
                log.error("user has no password for the proxy: the proxy's own user must be a super user")
            found = _Rights(user, await self._ask_acl(username))
        before = self.users.get(username), self._acls.get(username)
        if found is None:
            self.users.pop(username, None)
            self._acls.pop(username, None)
        else:
            self.users[username] = found.user
            if found.acl is None:
                self._acls.pop(username, None)
            else:
                self._acls[username] = found.acl
        if before != (self.users.get(username), self._acls.get(username)):
            self._changed(RightsChanged(username))
        return found

    async def _ask_acl(self, username: str) -> Acl | None:
        subject = Subject(subject_type=SUBJECT_USER, username=username)
        try:
            answer = await self._ask(RequestCode.AUTH_GET_ACL, {"subject": subject.key})
        except NotFound:
            return None
        if not answer.body:
            return None
        return Acl(subject=subject, policies=policies_of(fastjson.decode(answer.body, AuthAcl)))

    # --- requests ---

    def place_of(self, request: AnyCommand) -> str | None:
        """Return the place of the message that a request refers to; None if its rights do not depend on one."""
        if not self._control.asks_rights:
            return None
        field = _PLACES.get(request.code)  # type: ignore[call-overload]
        return None if field is None else request.ext.get(field)

    async def admit(self, peer: Peer, request: AnyCommand, ask: Callable[[str], Reply[AnyCommand]]) -> None:
        """Raise BrokerError unless a remoting client may make a request, which has its signature. ``ask`` asks for the
        message at a place.
        """
        username = request.ext.get(ACCESS_KEY)
        if username:
            await self._known.get(username)
        place = self.place_of(request) if username in self.users else None
        self._check(peer, request, None if place is None else await ask(place))

    def check(self, sender: Sender, request: AnyCommand, stored: AnyCommand | None = None) -> None:
        """Raise ProxyError unless a sender may make a request. ``stored`` is the answer with the message that the
        request refers to.
        """
        if isinstance(sender.user, Exempt):
            return
        try:
            self._check(cast(Peer, sender), request, stored)  # of a peer it reads the user and the address
        except BrokerError as error:
            raise ProxyError(Code.UNAUTHORIZED, error.remark) from None

    def _check(self, peer: Peer, request: AnyCommand, stored: AnyCommand | None) -> None:
        code = request.code
        if code not in self._checks:
            self._checks[code] = self._control.condition(REQUESTS[RequestCode(code)])
        check = self._checks[code]
        if check is None:
            return
        self._places.message = None if stored is None else _named_in(stored)
        ext = request.ext
        try:
            check(peer, request)
        finally:
            request.ext, request.admitted_by = ext, None  # the next server decides for itself
            self._places.message = None

    def users_of_calls(self) -> Signed:
        """Return the check of the users of calls."""
        control = _Control(self)
        return Signed(lambda: control, self._cluster, self._lists)


class _Control:
    """Rights as `Signed` asks for them."""

    def __init__(self, access: ClusterAccess) -> None:
        self.password_of = access.password_of
        self.check = access.check_named


def _named_in(answer: AnyCommand) -> _Named | None:
    if answer.code:
        return None
    try:
        view = decode_record(answer.body)
    except MessageError:
        return None
    return _Named(view.topic, properties.encode(view.properties))
