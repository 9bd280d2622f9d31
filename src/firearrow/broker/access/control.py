"""Access control of a broker: the checks before a request is handled, made from its row.

The sender of a request must prove its user by a signature. For each topic and group that the request names, the user
needs the permission that the row demands (`wire.requests`). A request that names no topic and no group needs the
permission on the cluster. A code has no handler without a row, so no request is served without a decision about its
permissions.

Allowed requests are remembered, in a table for each code, until a user or a policy changes. So a send costs one look
into a table in addition to its signature. Headers of the most frequent codes get their typed form here, which the
processors would otherwise get from the wire (`wire.frame`). An admitted request has a pass (`_Pass`), and its signature
is not checked again. A waiting request is refused once it would not be admitted any more: the processor that answers it
checks its pass (`Peer.resume`), and after each change of a user or a policy all waiting requests are reviewed
(`review_of`).

Source: RocketMQ's ``AuthenticationPipeline``, ``AuthorizationPipeline``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from firearrow.auth.audit import Audit
from firearrow.auth.checks import Authentication, Authorization, UsersAndPolicies
from firearrow.auth.metadata import Metadata, RightsChanged
from firearrow.auth.model import Action, ResourceType, UserStatus, no_permission
from firearrow.auth.setup import credentials_of, metadata_of
from firearrow.broker.access.requestresources import (
    LMQ_MARK,
    Finder,
    MessagesByPlace,
    RequestResources,
    fields_naming,
    finder_of,
    text_field_of,
)
from firearrow.broker.admission import Check
from firearrow.broker.config import BrokerConfig
from firearrow.clock import Clock, SystemClock
from firearrow.errors import BrokerError
from firearrow.events import Event, Events
from firearrow.message.names import SYSTEM_TOPIC_PREFIX, group_of, is_retry, lite_parts
from firearrow.net import tls
from firearrow.net.access import Access
from firearrow.net.refusals import AdmissionPass, admitted_by
from firearrow.net.server import ConnectionClosed, Peer
from firearrow.replication.proof import HaAccess
from firearrow.services import Alarm, Scheduler
from firearrow.store import MessageStore
from firearrow.wire import requests
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.frame import AnyCommand
from firearrow.wire.hotheaders import HOT_HEADERS
from firearrow.wire.requests import Ask, PermissionScope, Row
from firearrow.wire.signature import ACCESS_KEY

ALLOWED_MAX: Final = 10_000  # remembered for each code
REVIEW_SECONDS: Final = 0.004  # for waiting requests, in one turn of the event loop
NAMED_MAX: Final = 10_000  # topics and groups in one request; each is looked up, in 2 µs
NOBODY = ""

_KINDS: Final = {
    PermissionScope.CLUSTER: ResourceType.CLUSTER,
    PermissionScope.TOPIC: ResourceType.TOPIC,
    PermissionScope.GROUP: ResourceType.GROUP,
}
_CHANGES: Final = requests.Action.CREATE | requests.Action.UPDATE | requests.Action.DELETE

Ext = Mapping[str, str]


class _RequestRule(NamedTuple):
    """Fields and decision for the requests of a code.

    Allowed requests are remembered by the header ``fields``; with None none is remembered, nor is a request whose field
    ``text`` may name more. The decision None lets any user send them.
    """

    fields: tuple[str, ...] | None
    authorize: _Authorize | None
    is_change: bool = False
    text: str | None = None


class _Need(NamedTuple):
    """Actions on a resource; the user needs one of them."""

    kind: ResourceType
    name: str
    actions: tuple[Action, ...]


_Authorize = Callable[[str, str, AnyCommand, Ext], list[_Need]]
"""Raises the BrokerError for a user at an address that may not send a request. Returns the required permissions,
nothing if the result does not matter.
"""


class _Pass(AdmissionPass):
    """Decision about a request, or about several of a user that name the same. ``known`` is the count of changes of
    rights at the decision.
    """

    __slots__ = ("_authorize", "_ext", "_ip", "_known", "_password", "control")

    def __init__(self, control: AccessControl, username: str, ip: str, ext: Ext, authorize: _Authorize | None) -> None:
        super().__init__(username)
        self.control = control
        self._password = control.authentication.password_of(username) if username else None
        self._ip = ip
        self._ext = ext
        self._authorize = authorize
        self._known = control.changes

    def check(self, request: AnyCommand) -> None:
        """Raise the BrokerError that would refuse the request now."""
        control = self.control
        if self._known == control.changes:
            return
        try:
            if self.username:
                control.authentication.check_again(self.username, self._password)
            if self._authorize is not None:
                self._authorize(self.username, self._ip, request, self._ext)
        except BrokerError as error:
            self.note_refusal(request, error)
            raise
        self._known = control.changes

    def note_refusal(self, request: AnyCommand, error: BrokerError) -> None:
        """Write to the audit log that a request was refused to its user."""
        code = Code(request.code)
        self.control.audit.refused(self.username, self._ip, code.name, int(code), error.remark)


def access_of(config: BrokerConfig) -> Access:
    """Return a broker's own access to other servers: its credentials and its TLS. Raises ConfigError if a file can't be
    used.
    """
    return tls.access_of(config, credentials_of(config.inner_client_authentication_credentials))


def ha_access_of(
    config: BrokerConfig, users: Callable[[], Metadata | None], events: Events, before: HaAccess | None = None
) -> HaAccess:
    """Return the access for slaves at the HA port; ConfigError if a file can't be used. ``before`` is the access of the
    last role: a change of the role does not fail for a file.
    """
    encrypts = config.tls_server_mode == "enforcing"
    if config.ha_allow_unauthenticated:
        return HaAccess(is_left_open=encrypts or config.authentication_enabled)
    if before is None:
        access = access_of(config)
        before = HaAccess(
            config.authentication_enabled,
            access.credentials,
            lambda name: _secret_of_super(users(), name),
            access.tls.context() if encrypts and access.tls is not None else None,
            tls.TlsContexts(config).lasting(SystemClock().monotonic) if encrypts else None,
        )
    found = replace(before, changed=Event())  # the listeners were of that role
    events.listen(RightsChanged, lambda it: found.changed(it.username))
    return found


def _secret_of_super(users: Metadata | None, name: str) -> str | None:
    """Secret of a super user; None for any other user."""
    user = None if users is None else users.users.get(name)
    is_one = user is not None and user.is_super and user.user_status != UserStatus.DISABLE
    return user.password if user is not None and is_one else None


class Senders:
    """Senders without access control: no users, and everything is allowed.

    With access control, `AccessControl` is in its place.
    """

    asks_rights: bool = False
    """Tell whether a send to a topic needs a permission."""

    def user_of(self, request: AnyCommand) -> str:
        """Return the proved sender of a request, `NOBODY` without access control."""
        return NOBODY

    def may_publish(self, user: str, ip: str, topic: str | None = None) -> bool:
        """Tell whether a user may send to a topic now, or to any at all (None)."""
        return True


class AccessControl(Senders):
    """Checks of requests by their codes. ``metadata`` has the users and their permissions."""

    def __init__(
        self, config: BrokerConfig, metadata: UsersAndPolicies, store: MessagesByPlace, clock: Clock, events: Events
    ) -> None:
        self._config = config
        self.asks_rights: bool = config.authorization_enabled
        self._store = store
        self._cluster = config.broker_cluster_name
        seconds = config.stateful_authentication_cache_expired_second
        self.authentication: Final = Authentication(
            metadata,
            clock.monotonic,
            remember_seconds=seconds if config.is_stateful else 0.0,
            remembered_max=config.stateful_authentication_cache_max_num,
        )
        self._authorization = Authorization(metadata)
        self.audit: Final = Audit(clock.monotonic)
        self._allowed: list[dict[Hashable, _Pass]] = []
        self._publishers: dict[tuple[str, str, str | None], bool] = {}
        self.changes: int = 0  # count of changes of users and policies
        events.listen(RightsChanged, self.authentication.forget_all)
        events.listen(RightsChanged, self._authorization.forget)
        events.listen(RightsChanged, self._rights_changed)
        events.listen(ConnectionClosed, lambda closed: self.authentication.forget(closed.peer))

    def _rights_changed(self, _: RightsChanged) -> None:
        self.changes += 1
        for allowed in self._allowed:
            allowed.clear()
        self._publishers.clear()

    def user_of(self, request: AnyCommand) -> str:
        """Return the proved sender of a request that was admitted."""
        admitted = admitted_by(request)
        return NOBODY if admitted is None else admitted.username

    def password_of(self, username: str) -> str | None:
        """Return the secret of an enabled user; raises BrokerError for any other."""
        return self.authentication.password_of(username)

    def check(self, username: str, ip: str, kind: ResourceType, name: str, actions: Sequence[Action]) -> None:
        """Raise the BrokerError for a user that may do none of the actions on a topic or group."""
        if not self.asks_rights or self._authorization.is_super(username):
            return
        try:
            self._authorization.check(username, *_need_of(kind, name, tuple(actions)), ip)
        except BrokerError as error:
            self.audit.refused(username, ip, kind.word, 0, error.remark)
            raise

    def may_publish(self, user: str, ip: str, topic: str | None = None) -> bool:
        """Tell whether a user may send to a topic now, or to any at all (None)."""
        key = user, ip, topic
        found = self._publishers.get(key)
        if found is None:
            if len(self._publishers) >= ALLOWED_MAX:
                self._publishers.clear()
            found = self._publishers[key] = self._publishes(user, ip, topic)
        return found

    def _publishes(self, user: str, ip: str, topic: str | None) -> bool:
        may_all, may_anyone = self._may(Code.SEND_MESSAGE_V2)
        if may_all and may_anyone:
            return True
        if may_anyone or not self.authentication.has(user):
            return self.authentication.has(user)
        kind, name, actions = _need_of(ResourceType.TOPIC, topic or "", (Action.PUB,))
        return self._authorization.allows(user, kind, name if topic else None, actions, ip)

    def _may(self, code: Code) -> tuple[bool, bool]:
        """Tell whether requests of a code are exempt from signatures, and whether from permissions."""
        config, number = self._config, str(int(code))
        may_anyone = number in _listed(config.authorization_whitelist)
        return number in _listed(config.authentication_whitelist), (may_anyone or not config.authorization_enabled)

    def condition(self, row: Row, *, is_exempt: bool = False) -> Check | None:
        """Return the check for requests of a code; None if no check is necessary.

        With ``is_exempt`` they are exempt from permissions, and from signatures if the user of their peer is `NOBODY`.
        """
        may_all, may_anyone = self._may(row.code)
        if not self._config.authentication_enabled or (may_all and may_anyone):
            return None
        needs_none = may_anyone or is_exempt
        return self._check_of(row, _RequestRule((), None) if needs_none else self._rule_of(row))

    def _check_of(self, row: Row, rule: _RequestRule) -> Check:
        code, name, header = int(row.code), row.code.name, HOT_HEADERS.get(row.code)
        user_of, audit = self.authentication.user_of, self.audit
        fields, authorize, is_change, text = rule
        allowed: dict[Hashable, _Pass] = {}
        self._allowed.append(allowed)
        named: Callable[[Ext], object] = _nothing
        if fields is None:
            named = _not_remembered
        elif fields:
            named = itemgetter(*fields) if text is None else _sends(itemgetter(*fields), text)

        def admitted(username: str, peer: Peer, request: AnyCommand, ext: Ext, *also: str) -> _Pass:
            if authorize is not None:
                needs = authorize(username, peer.ip, request, ext)
                if is_change:
                    what = ",".join(f"{need.kind.word}:{need.name}" for need in needs)
                    audit.changes(username, peer.ip, name, code, what)
            kept = {field: ext[field] for field in (*(fields or ()), *also) if field in ext}
            return _Pass(self, username, peer.ip, ext if fields is None else kept, authorize)

        def check(peer: Peer, request: AnyCommand) -> None:
            before = request.admitted_by
            if type(before) is _Pass and before.control is self:  # the broker may have started again
                before.check(request)
                return
            ext = request.ext
            try:
                username = user_of(peer, request, ext) if peer.user is None else peer.user
                try:
                    key = username, peer.ip, named(ext)
                except KeyError:  # the field may be missing
                    found = admitted(username, peer, request, ext, text or "")
                else:
                    known = allowed.get(key)
                    found = known or admitted(username, peer, request, ext)
                    if known is None:
                        _remember(allowed, key, found)
            except BrokerError as error:
                audit.refused(peer.user or ext.get(ACCESS_KEY, ""), peer.ip, name, code, error.remark)
                raise
            request.admitted_by = found
            if header is not None:
                request.ext = _typed(ext, header)

        return check

    def _rule_of(self, row: Row) -> _RequestRule:
        """Make the function that decides whether a user may send a request of a code."""
        finder = finder_of(row, self._store, self._cluster)
        topic_fields, group_fields = fields_naming(row)
        text = text_field_of(row)
        is_change = requests.Trait.READS not in row.traits and any(ask.actions in _CHANGES for ask in row.asks)
        find = finder or _in_fields(topic_fields, group_fields)
        remembered = (finder is None or text is not None) and not is_change
        fields = (*topic_fields, *group_fields) if remembered else None
        return _RequestRule(fields, self._decider(row, find, is_change=is_change), is_change, text)

    def _decider(self, row: Row, find: Finder, *, is_change: bool) -> _Authorize:
        authorization = self._authorization

        def authorize(username: str, ip: str, request: AnyCommand, ext: Ext) -> list[_Need]:
            is_super = authorization.is_super(username)
            if is_super and not is_change:
                return []
            needs = self._needs(row.asks, find(request, ext))
            if not is_super:
                if len(needs) > NAMED_MAX:
                    raise no_permission(
                        f"the request names {len(needs)} topics and groups, the limit is "
                        f"{NAMED_MAX} for a user that is no super user"
                    )
                for need in needs:
                    authorization.check(username, *need, ip)
            return needs

        return authorize

    def _needs(self, asks: Iterable[Ask], named: RequestResources) -> list[_Need]:
        needs: dict[_Need, None] = {}
        for ask in asks:
            actions = _actions_of(ask)
            if ask.resource is PermissionScope.CLUSTER:
                needs[_Need(ResourceType.CLUSTER, self._cluster, actions)] = None
                continue
            names = named.topics if ask.resource is PermissionScope.TOPIC else named.groups
            for name in names:
                need = _need_of(_KINDS[ask.resource], name, actions)
                if Action.PUB in need.actions and name.startswith(SYSTEM_TOPIC_PREFIX):
                    # Slaves and other brokers of the name ask by the present state: messages in flight, and messages
                    # that wait for their time.
                    need = _Need(ResourceType.CLUSTER, self._cluster, (Action.UPDATE,))
                needs[need] = None
        if not needs and not named.is_all:
            for ask in asks:
                needs[_Need(ResourceType.CLUSTER, self._cluster, _actions_of(ask))] = None
        return list(needs)


class RequestHolder(Protocol):
    """Part of the broker that holds waiting requests."""

    def reviewed(self) -> Iterator[Callable[[], None]]:
        """Yield calls that refuse requests that would not be admitted now; each takes little time."""
        ...


def review_of(
    holders: Iterable[RequestHolder], events: Events, scheduler: Scheduler, monotonic: Callable[[], float]
) -> None:
    """Refuse waiting requests as soon as a change of users or policies forbids them.

    The review takes turns of some milliseconds. `Peer.resume` checks requests that are answered meanwhile.
    """
    left: list[Iterator[Callable[[], None]]] = []

    def go_on() -> None:
        until = monotonic() + REVIEW_SECONDS
        if not left:
            left.append(chain.from_iterable(holder.reviewed() for holder in holders))
        for review in left[0]:
            review()
            if monotonic() >= until:
                alarm.set(0.0)
                return

    def begin(_: RightsChanged) -> None:
        left.clear()
        alarm.set_earlier(0.0)

    alarm = Alarm(scheduler, go_on)
    events.listen(RightsChanged, begin)


def _nothing(_: Ext) -> None:
    """Names in a request that needs none."""


def _not_remembered(_: Ext) -> None:
    raise KeyError


def _sends(named: Callable[[Ext], object], text_field: str) -> Callable[[Ext], object]:
    """Names in a send, unless its properties may have others."""

    def of_send(ext: Ext) -> object:
        if LMQ_MARK in ext[text_field]:
            raise KeyError
        return named(ext)

    return of_send


def _remember(allowed: dict[Hashable, _Pass], key: Hashable, found: _Pass) -> None:
    if len(allowed) >= ALLOWED_MAX:
        allowed.clear()
    allowed[key] = found


def _need_of(kind: ResourceType, name: str, actions: tuple[Action, ...]) -> _Need:
    """Return the need for a name. A retry topic belongs to its group: only its consumers put messages there. A lite
    topic belongs to its parent.
    """
    if is_retry(name):
        of_group = tuple(action for action in actions if action is not Action.PUB)
        return _Need(ResourceType.GROUP, group_of(name) or "", of_group or (Action.SUB,))
    lite = lite_parts(name) if kind is ResourceType.TOPIC else None
    return _Need(kind, lite[0] if lite else name, actions)


def _actions_of(ask: Ask) -> tuple[Action, ...]:
    return tuple(Action[action.name or ""] for action in ask.actions)


def _in_fields(topic_fields: tuple[str, ...], group_fields: tuple[str, ...]) -> Finder:
    def find(_: AnyCommand, ext: Ext) -> RequestResources:
        return RequestResources(
            [name for field in topic_fields if (name := ext.get(field))],
            [name for field in group_fields if (name := ext.get(field))],
        )

    return find


def _typed(ext: Ext, header: type[msgspec.Struct]) -> Ext | msgspec.Struct:
    """Return the typed form of a header; one that can't be typed stays the same, for its handler to refuse."""
    try:
        return msgspec.convert(ext, header, strict=False)
    except msgspec.ValidationError:
        return ext


def _listed(text: str) -> set[str]:
    return {part.strip() for part in text.split(",")}


def metadata_for(config: BrokerConfig, root: Path, events: Events) -> Metadata | None:
    """Open users and policies if the configuration asks for them; ConfigError if that fails."""
    home = os.environ.get("ROCKETMQ_HOME")
    return metadata_of(config, root / "config", events, Path(home) if home else None) if config.has_users else None


def senders_of(
    config: BrokerConfig, metadata: Metadata | None, store: MessageStore, clock: Clock, events: Events
) -> Senders:
    """Make the part that decides about senders: access control, if it is enabled."""
    if metadata is None or not config.authentication_enabled:
        return Senders()
    return AccessControl(config, metadata, store, clock, events)
