"""Access control: users, policies, and the review of waiting requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from firearrow.auth.metadata import Metadata
from firearrow.broker.access import control as access
from firearrow.broker.access.processor import AuthProcessor
from firearrow.broker.admission import Condition
from firearrow.broker.config import BrokerConfig
from firearrow.broker.feature import Base, Feature, Handlers
from firearrow.wire.codes import RequestCode


class AccessFeature(Feature):
    """Users and policies, if there are any, and the decision about each request."""

    def __init__(self, base: Base, users: Metadata | None) -> None:
        self._base = base
        self.users = users
        self.senders: Final = access.senders_of(base.settings.broker, users, base.store, base.clock, base.events)

    @property
    def conditions(self) -> Sequence[Condition]:
        """The condition that access control sets, if it is on."""
        control = self.senders
        return [control.condition] if isinstance(control, access.AccessControl) else []

    def review(self, holders: Sequence[access.RequestHolder]) -> None:
        """Refuse waiting requests as soon as a change of users or policies forbids them."""
        access.review_of(holders, self._base.events, self._base.loop, self._base.clock.monotonic)

    def saved_handlers(self) -> Handlers:
        """Handlers of users and policies."""
        follows = self._base.replicas.is_slave
        return {} if self.users is None else auth_handlers(self.users, self._base.settings.broker, follows=follows)

    def close(self) -> None:
        """Close the database of users."""
        if self.users is not None:
            self.users.close()


def auth_handlers(users: Metadata, config: BrokerConfig, *, follows: bool) -> Handlers:
    """Make the handlers of users and policies; a slave ``follows``."""
    auth = AuthProcessor(users, config, follows=follows)
    return {
        RequestCode.AUTH_CREATE_USER: auth.create_user,
        RequestCode.AUTH_UPDATE_USER: auth.update_user,
        RequestCode.AUTH_DELETE_USER: auth.delete_user,
        RequestCode.AUTH_GET_USER: auth.user,
        RequestCode.AUTH_LIST_USER: auth.users,
        RequestCode.AUTH_CREATE_ACL: auth.put_acl,
        RequestCode.AUTH_UPDATE_ACL: auth.put_acl,
        RequestCode.AUTH_DELETE_ACL: auth.delete_acl,
        RequestCode.AUTH_GET_ACL: auth.acl,
        RequestCode.AUTH_LIST_ACL: auth.acls,
    }
