"""Access control of a broker: what is asked before a request is handled, made from its row.

Who sends a request must prove it by a signature, and each thing that the request names must be
allowed to them by an action of the row (`wire.requests`). What names no topic and no group needs
the action on the cluster. A code has no handler without a row, so nothing is served that was not
thought of.

What was allowed is remembered, a set for each code, until a user or a policy changes: so a send
costs one look into a set besides its signature. Headers of the most frequent codes get their typed
form then, which the processors would have got from the wire (`wire.frame`). A request that is
admitted says so, and is not looked at again.

Source: upstream ``AuthenticationPipeline``, ``AuthorizationPipeline``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from firearrow.auth.audit import Audit
from firearrow.auth.checks import Authentication, Authorization
from firearrow.auth.events import RightsChanged
from firearrow.auth.metadata import Metadata
from firearrow.auth.model import Action, Kind
from firearrow.auth.setup import credentials_of, metadata_of
from firearrow.broker.config import BrokerConfig
from firearrow.broker.named import (
    LMQ_MARK,
    Finder,
    Named,
    fields_naming,
    finder_of,
    text_field_of,
)
from firearrow.broker.requests import Check
from firearrow.broker.senders import NOBODY, Senders
from firearrow.clock import Clock
from firearrow.errors import BrokerError
from firearrow.events import Events
from firearrow.message.names import SYSTEM_TOPIC_PREFIX, group_of, is_retry, lite_parts
from firearrow.net import tls
from firearrow.net.access import Access
from firearrow.net.server import ConnectionClosed, Peer
from firearrow.store import MessageStore
from firearrow.wire import requests
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.frame import HOT_HEADERS, AnyCommand
from firearrow.wire.requests import Ask, Resource, Row
from firearrow.wire.signature import ACCESS_KEY

ALLOWED_MAX: Final = 10_000  # that are remembered for each code

_KINDS: Final = {
    Resource.CLUSTER: Kind.CLUSTER,
    Resource.TOPIC: Kind.TOPIC,
    Resource.GROUP: Kind.GROUP,
}
_CHANGES: Final = requests.Action.CREATE | requests.Action.UPDATE | requests.Action.DELETE

Ext = Mapping[str, str]
_Authorize = Callable[[str, Peer, AnyCommand, Ext], None]


class _Rule(NamedTuple):
    """What requests of a code are remembered by if they are allowed, which those are, and what
    decides about others; ``named`` raises KeyError for one that is not to be remembered."""

    named: Callable[[Ext], object]
    allowed: set[Hashable]
    authorize: _Authorize | None


class _Need(NamedTuple):
    """One of these actions on a resource."""

    kind: Kind
    name: str
    actions: tuple[Action, ...]


def access_of(config: BrokerConfig) -> Access:
    """How a broker gets in at other servers, and as whom; ConfigError if a file can't be used."""
    text = config.inner_client_authentication_credentials
    found = tls.access_of(config)
    return replace(found, credentials=credentials_of(text)) if text else found


class _Admitted(NamedTuple):
    """What is noted in an admitted request: no header that a client writes can say it."""

    user: str


class AccessControl(Senders):
    """Checks of requests by their codes. ``metadata`` are the users and what they may do."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: Metadata,
        store: MessageStore,
        clock: Clock,
        events: Events,
    ) -> None:
        self._config = config
        self.asks_rights = config.authorization_enabled
        self._store = store
        self._cluster = config.broker_cluster_name
        seconds = config.stateful_authentication_cache_expired_second
        self._authentication = Authentication(
            metadata,
            clock.monotonic,
            remember_seconds=seconds if config.is_stateful else 0.0,
            remembered_max=config.stateful_authentication_cache_max_num,
        )
        self._authorization = Authorization(metadata)
        self._audit = Audit(clock.monotonic)
        self._allowed: list[set[Hashable]] = []
        self._publishers: dict[tuple[str, str, str | None], bool] = {}
        self._admitted: dict[str, _Admitted] = {}  # by user
        events.listen(RightsChanged, self._authentication.forget_all)
        events.listen(RightsChanged, self._authorization.forget)
        events.listen(RightsChanged, self._forget_allowed)
        events.listen(ConnectionClosed, lambda closed: self._authentication.forget(closed.peer))

    def _forget_allowed(self, _: RightsChanged) -> None:
        for allowed in self._allowed:
            allowed.clear()
        self._publishers.clear()
        self._admitted.clear()

    def user_of(self, request: AnyCommand) -> str:
        """Give the user that has proved to have sent a request that was admitted."""
        admitted = request.admitted_by
        return admitted.user if type(admitted) is _Admitted else NOBODY

    def may_publish(self, user: str, ip: str, topic: str | None = None) -> bool:
        """Whether a user may send to a topic by now, or to any at all (None)."""
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
        if may_anyone or not self._authentication.has(user):
            return self._authentication.has(user)
        kind, name, actions = _need_of(Kind.TOPIC, topic or "", (Action.PUB,))
        return self._authorization.allows(user, kind, name if topic else None, actions, ip)

    def _may(self, code: Code) -> tuple[bool, bool]:
        """Whether requests of a code need no signature, and whether no permission."""
        config, number = self._config, str(int(code))
        may_anyone = number in _listed(config.authorization_whitelist)
        return number in _listed(config.authentication_whitelist), (
            may_anyone or not config.authorization_enabled
        )

    def condition(self, row: Row) -> Check | None:
        """What is asked before a request of a code is handled; None if nothing is."""
        may_all, may_anyone = self._may(row.code)
        if not self._config.authentication_enabled or (may_all and may_anyone):
            return None
        return self._check_of(row, None if may_anyone else self._rule_of(row))

    def _check_of(self, row: Row, rule: _Rule | None) -> Check:
        code, name, header = int(row.code), row.code.name, HOT_HEADERS.get(row.code)
        user_of, audit = self._authentication.user_of, self._audit
        named, allowed, authorize = rule or _NO_RULE
        admitted = self._admitted

        def check(peer: Peer, request: AnyCommand) -> None:
            if type(request.admitted_by) is _Admitted:
                return
            ext = request.ext
            try:
                username = user_of(peer, request, ext)
                if authorize is not None:
                    try:
                        key = username, peer.ip, named(ext)
                    except KeyError:  # it need not have all of them
                        authorize(username, peer, request, ext)
                    else:
                        if key not in allowed:
                            authorize(username, peer, request, ext)
                            _remember(allowed, key)
            except BrokerError as error:
                audit.refused(ext.get(ACCESS_KEY, ""), peer.ip, name, code, error.remark)
                raise
            known = admitted.get(username)
            request.admitted_by = known or admitted.setdefault(username, _Admitted(username))
            if header is not None:
                request.ext = _typed(ext, header)

        return check

    def _rule_of(self, row: Row) -> _Rule:
        """What decides whether a user may send a request of a code."""
        finder = finder_of(row, self._store, self._cluster)
        topic_fields, group_fields = fields_naming(row)
        check_all = self._checks_of(row, finder or _in_fields(topic_fields, group_fields))
        text = text_field_of(row)
        is_special = finder is not None and text is None
        if is_special or any(ask.actions in _CHANGES for ask in row.asks):
            return _Rule(_not_remembered, set(), check_all)
        names = (*topic_fields, *group_fields)
        allowed: set[Hashable] = set()
        self._allowed.append(allowed)
        named = itemgetter(*names) if names else _nothing
        return _Rule(named if text is None else _sends(named, text), allowed, check_all)

    def _checks_of(self, row: Row, find: Finder) -> _Authorize:
        authorization, audit = self._authorization, self._audit
        code, is_change = int(row.code), any(ask.actions in _CHANGES for ask in row.asks)

        def check_all(username: str, peer: Peer, request: AnyCommand, ext: Ext) -> None:
            needs: list[_Need] = []
            if is_change or not authorization.is_super(username):
                needs = self._needs(row.asks, find(request, ext))
            if not authorization.is_super(username):
                for need in needs:
                    authorization.check(username, *need, peer.ip)
            if is_change:
                what = ",".join(f"{need.kind.word}:{need.name}" for need in needs)
                audit.changes(username, peer.ip, row.code.name, code, what)

        return check_all

    def _needs(self, asks: Iterable[Ask], named: Named) -> list[_Need]:
        needs: dict[_Need, None] = {}
        for ask in asks:
            actions = _actions_of(ask)
            if ask.resource is Resource.CLUSTER:
                needs[_Need(Kind.CLUSTER, self._cluster, actions)] = None
                continue
            names = named.topics if ask.resource is Resource.TOPIC else named.groups
            for name in names:
                need = _need_of(_KINDS[ask.resource], name, actions)
                if Action.PUB in need.actions and name.startswith(SYSTEM_TOPIC_PREFIX):
                    # Brokers go by what is there: who is popped what, and what waits for its time.
                    need = _Need(Kind.CLUSTER, self._cluster, (Action.UPDATE,))
                needs[need] = None
        if not needs and not named.is_all:
            for ask in asks:
                needs[_Need(Kind.CLUSTER, self._cluster, _actions_of(ask))] = None
        return list(needs)


def _nothing(_: Ext) -> None:
    """The names in a request that needs none."""


def _not_remembered(_: Ext) -> None:
    raise KeyError


def _sends(named: Callable[[Ext], object], text_field: str) -> Callable[[Ext], object]:
    """The names in a send, unless its properties may have others."""

    def of_send(ext: Ext) -> object:
        if LMQ_MARK in ext[text_field]:
            raise KeyError
        return named(ext)

    return of_send


_NO_RULE: Final = _Rule(_nothing, set(), None)


def _remember(allowed: set[Hashable], key: Hashable) -> None:
    if len(allowed) >= ALLOWED_MAX:
        allowed.clear()
    allowed.add(key)


def _need_of(kind: Kind, name: str, actions: tuple[Action, ...]) -> _Need:
    """A retry topic is its group's; only who consumes puts anything there. A lite topic is its
    parent's."""
    if is_retry(name):
        of_group = tuple(action for action in actions if action is not Action.PUB)
        return _Need(Kind.GROUP, group_of(name) or "", of_group or (Action.SUB,))
    lite = lite_parts(name) if kind is Kind.TOPIC else None
    return _Need(kind, lite[0] if lite else name, actions)


def _actions_of(ask: Ask) -> tuple[Action, ...]:
    return tuple(Action[action.name or ""] for action in ask.actions)


def _in_fields(topic_fields: tuple[str, ...], group_fields: tuple[str, ...]) -> Finder:
    def find(_: AnyCommand, ext: Ext) -> Named:
        return Named(
            [name for field in topic_fields if (name := ext.get(field))],
            [name for field in group_fields if (name := ext.get(field))],
        )

    return find


def _typed(ext: Ext, header: type[msgspec.Struct]) -> Ext | msgspec.Struct:
    """The typed form of a header; one that has none stays as it is, for its handler to refuse."""
    try:
        return msgspec.convert(ext, header, strict=False)
    except msgspec.ValidationError:
        return ext


def _listed(text: str) -> set[str]:
    return {part.strip() for part in text.split(",")}


def metadata_for(config: BrokerConfig, root: Path, events: Events) -> Metadata | None:
    """Open users and policies if the configuration asks for them; ConfigError if it can't be."""
    home = os.environ.get("ROCKETMQ_HOME")
    return (
        metadata_of(config, root / "config", events, Path(home) if home else None)
        if config.has_users
        else None
    )


def senders_of(
    config: BrokerConfig,
    metadata: Metadata | None,
    store: MessageStore,
    clock: Clock,
    events: Events,
) -> Senders:
    """What decides about senders: access control, if it is wanted."""
    if metadata is None or not config.authentication_enabled:
        return Senders()
    return AccessControl(config, metadata, store, clock, events)
