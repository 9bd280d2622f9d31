"""Requests of administrators about users and what they may do.

Source: upstream ``AdminBrokerProcessor#createUser`` and its neighbours.
"""

from __future__ import annotations

from typing import Final

from firearrow.auth.metadata import Metadata
from firearrow.auth.model import PolicyType, Resource, Subject, User, no_permission, policies_of
from firearrow.broker.state.clients import Channel
from firearrow.errors import BrokerError
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import AuthAcl, AuthUserInfo
from firearrow.wire.client_bodies import body_of
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import AuthResource, AuthSubject, AuthSubjects, AuthUser, AuthUsers
from firearrow.wire.signature import ACCESS_KEY

_SUPER_ONLY: Final = "The super user can only be update by super user"


class AuthProcessor:
    """3001 to 3010. Refusals have upstream's codes and words."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    # --- users ---

    def create_user(self, _: Channel, request: AnyCommand) -> Response:
        """3001."""
        user = _user_of(request)
        if user.is_super and not self._is_by_super(request):
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, "The super user can only be create by super user"
            )
        self._metadata.create_user(user)
        return Response()

    def update_user(self, _: Channel, request: AnyCommand) -> Response:
        """3002: change what is said of a user."""
        user = _user_of(request)
        if user.is_super and not self._is_by_super(request):
            raise BrokerError(ResponseCode.SYSTEM_ERROR, _SUPER_ONLY)
        self._check_may_change(user.username, request)
        self._metadata.update_user(user)
        return Response()

    def delete_user(self, _: Channel, request: AnyCommand) -> Response:
        """3003: a user and what it may do; one that is not there is no error."""
        username = fields_of(request, AuthUser).username
        self._check_may_change(username, request)
        self._metadata.delete_user(username)
        return Response()

    def user(self, _: Channel, request: AnyCommand) -> Response:
        """3004: a user, or an empty body."""
        username = fields_of(request, AuthUser).username
        if not username.strip():
            raise BrokerError(ResponseCode.INVALID_PARAMETER, "The username is blank")
        user = self._metadata.user(username)
        return Response(body=b"" if user is None else fastjson.dumps(user.info()))

    def users(self, _: Channel, request: AnyCommand) -> Response:
        """3005: users whose names have something in them, or an empty body. Passwords are told."""
        found = self._metadata.list_users(fields_of(request, AuthUsers).filter)
        infos = [user.info() for user in found]
        return Response(body=fastjson.dumps(infos) if infos else b"")

    def _check_may_change(self, username: str, request: AnyCommand) -> None:
        old = self._metadata.user(username)
        if old is not None and old.is_super and not self._is_by_super(request):
            raise no_permission(_SUPER_ONLY)

    def _is_by_super(self, request: AnyCommand) -> bool:
        """Whether a super user asks, or anybody may: then nobody need say who they are."""
        access_key = request.ext.get(ACCESS_KEY)
        if not access_key:
            return True
        user = self._metadata.users.get(access_key)
        if user is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"User:{access_key} is not found")
        return user.is_super

    # --- policies ---

    def put_acl(self, _: Channel, request: AnyCommand) -> Response:
        """3006, 3007: add to what a subject may do, or change it."""
        header = fields_of(request, AuthSubject)
        acl = body_of(request, AuthAcl) if request.body else AuthAcl()
        if not acl.policies:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "The body of acl is null")
        subject = Subject.of(acl.subject) or Subject.of(header.subject)
        self._metadata.put_policies(subject, policies_of(acl))
        return Response()

    def delete_acl(self, _: Channel, request: AnyCommand) -> Response:
        """3008: forget what a subject may do, at all or with one resource."""
        header = fields_of(request, AuthResource)
        self._metadata.delete_policies(
            Subject.of(header.subject),
            PolicyType.of(header.policy_type),
            Resource.of(header.resource),
        )
        return Response()

    def acl(self, _: Channel, request: AnyCommand) -> Response:
        """3009: what a subject may do, or an empty body."""
        acl = self._metadata.policies(Subject.of(fields_of(request, AuthSubject).subject))
        return Response(body=b"" if acl is None else fastjson.dumps(acl.info()))

    def acls(self, _: Channel, request: AnyCommand) -> Response:
        """3010: what subjects may do whose names, and with resources whose names have something in
        them, or an empty body."""
        header = fields_of(request, AuthSubjects)
        found = self._metadata.list_policies(header.subject_filter, header.resource_filter)
        infos = [acl.info() for acl in found]
        return Response(body=fastjson.dumps(infos) if infos else b"")


def _user_of(request: AnyCommand) -> User:
    username = fields_of(request, AuthUser).username
    if not username:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, "The username is blank")
    if not request.body:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "The body of user is null")
    info = body_of(request, AuthUserInfo)
    return User.of(AuthUserInfo(username, info.password, info.user_type, info.user_status))
