"""Requests of administrators about users and their permissions.

Source: RocketMQ's ``AdminBrokerProcessor#createUser`` and its neighbours.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec.structs import replace

from firearrow.auth.metadata import Metadata
from firearrow.auth.model import Acl, PolicyType, Resource, Subject, User, UserStatus, policies_of
from firearrow.auth.rights import Rights, gained
from firearrow.broker.config import BrokerConfig
from firearrow.broker.groups.clients import ClientChannel
from firearrow.errors import BrokerError
from firearrow.net.refusals import admitted_by
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import AuthAcl, AuthUserInfo
from firearrow.wire.client_bodies import body_of
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import AuthResource, AuthSubject, AuthSubjects, AuthUser, AuthUsers
from firearrow.wire.signature import ACCESS_KEY

_SUPER_ONLY: Final = "The super user can only be update by super user"
_ONLY_SUPERS: Final = "Users and policies are changed by super users only, as authorizationEnabled=false"


class AuthProcessor:
    """Handlers of 3001 to 3010. Refusals have RocketMQ's codes and words.

    Where users must sign, one that is no super user can't give permissions that it lacks, and with authentication alone
    it has none to give. Only super users get passwords. Java: every user that may send the requests gets passwords and
    may give any permission.

    A slave ``follows``: ``mqadmin`` changes users at the master and then at the slave, which already has the change
    from its master.
    """

    def __init__(self, metadata: Metadata, config: BrokerConfig, *, follows: bool = False) -> None:
        self._metadata = metadata
        self._follows = follows
        self._must_sign = config.authentication_enabled
        self._have_rights = config.authorization_enabled

    # --- users ---

    def create_user(self, _: ClientChannel, request: AnyCommand) -> Response:
        """Create a user (3001)."""
        user = _user_of(request)
        if user.is_super and not self._is_by_super(request):
            raise self._refusal(request, "The super user can only be create by super user", ResponseCode.SYSTEM_ERROR)
        self._check_may_change(request, user.username)
        self._check_may_be(request, user.username)  # policies that were left of a user of that name
        if not (self._follows and self._metadata.is_made(user)):
            self._metadata.create_user(user)
        return Response()

    def update_user(self, _: ClientChannel, request: AnyCommand) -> Response:
        """Change the data of a user (3002)."""
        user = _user_of(request)
        if user.is_super and not self._is_by_super(request):
            raise self._refusal(request, _SUPER_ONLY, ResponseCode.SYSTEM_ERROR)
        self._check_may_change(request, user.username)
        if user.password or user.user_status == UserStatus.ENABLE:
            self._check_may_be(request, user.username)
        self._metadata.update_user(user)
        return Response()

    def delete_user(self, _: ClientChannel, request: AnyCommand) -> Response:
        """Delete a user and its policies (3003); a missing user is no error."""
        username = fields_of(request, AuthUser).username
        self._check_may_change(request, username)
        self._metadata.delete_user(username)
        return Response()

    def user(self, _: ClientChannel, request: AnyCommand) -> Response:
        """Return a user, or an empty body (3004)."""
        username = fields_of(request, AuthUser).username
        if not username.strip():
            raise BrokerError(ResponseCode.INVALID_PARAMETER, "The username is blank")
        user = self._metadata.user(username)
        return Response(body=b"" if user is None else fastjson.dumps(self._told(request, user)))

    def users(self, _: ClientChannel, request: AnyCommand) -> Response:
        """Return users whose names contain a text, or an empty body (3005)."""
        found = self._metadata.list_users(fields_of(request, AuthUsers).filter)
        infos = [self._told(request, user) for user in found]
        return Response(body=fastjson.dumps(infos) if infos else b"")

    def _told(self, request: AnyCommand, user: User) -> AuthUserInfo:
        """Return the data of a user, without the password for other users than super users."""
        by_super = self._is_by_super(request)
        return (user if by_super else replace(user, password=None)).info()

    # --- the sender ---

    def _check_may_change(self, request: AnyCommand, username: str) -> None:
        """Refuse changes of a super user by others, and all changes by users that have no permissions to give."""
        old = self._metadata.user(username)
        is_by_super = self._is_by_super(request)
        if old is not None and old.is_super and not is_by_super:
            raise self._refusal(request, _SUPER_ONLY)
        if self._must_sign and not self._have_rights and not is_by_super:
            raise self._refusal(request, _ONLY_SUPERS)

    def _check_may_be(self, request: AnyCommand, username: str) -> None:
        """Refuse a sender that could act as a user through the change, and has fewer permissions."""
        acl = self._metadata.acl_of(username)
        if self._giver_of(request) != username:
            self._check_gain(request, username, None, acl)

    def _check_may_give(self, request: AnyCommand, username: str, acl: Acl | None) -> None:
        """Refuse a sender that gives a user permissions that it lacks."""
        self._check_may_change(request, username)
        self._check_gain(request, username, self._metadata.acl_of(username), acl)

    def _check_gain(self, request: AnyCommand, username: str, before: Acl | None, after: Acl | None) -> None:
        giver = self._giver_of(request)
        if giver is None:
            return
        gain = gained(Rights(before), Rights(after), Rights(self._metadata.acl_of(giver)))
        if gain is not None:
            raise self._refusal(
                request, f"User:{giver} can't give User:{username} permissions that it lacks: {gain.text}."
            )

    def _giver_of(self, request: AnyCommand) -> str | None:
        """Return the sender, if it can only give its own permissions; None if it can give any."""
        if not self._must_sign or self._is_by_super(request):
            return None
        admitted = admitted_by(request)
        return "" if admitted is None else admitted.username

    def _is_by_super(self, request: AnyCommand) -> bool:
        """Tell whether the sender is a super user, or may do everything because authorization is off."""
        if self._must_sign and admitted_by(request) is None:
            return False  # its code is exempt from signatures
        access_key = request.ext.get(ACCESS_KEY)
        if not access_key:
            return True
        user = self._metadata.users.get(access_key)
        if user is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"User:{access_key} is not found")
        return user.is_super

    @staticmethod
    def _refusal(request: AnyCommand, remark: str, code: ResponseCode = ResponseCode.NO_PERMISSION) -> BrokerError:
        """Return the error for a sender that lacks permissions, and write it to the audit log."""
        error = BrokerError(code, remark)
        admitted = admitted_by(request)
        if admitted is not None:
            admitted.note_refusal(request, error)
        return error

    # --- policies ---

    def put_acl(self, _: ClientChannel, request: AnyCommand) -> Response:
        """Add to the permissions of a subject, or change them (3006, 3007)."""
        header = fields_of(request, AuthSubject)
        acl = body_of(request, AuthAcl) if request.body else AuthAcl()
        if not acl.policies:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "The body of acl is null")
        subject = Subject.of(acl.subject) or Subject.of(header.subject)
        may = partial(self._check_may_give, request)
        self._metadata.put_policies(subject, policies_of(acl), may)
        return Response()

    def delete_acl(self, _: ClientChannel, request: AnyCommand) -> Response:
        """Delete the permissions of a subject, all of them or those on one resource (3008)."""
        header = fields_of(request, AuthResource)
        resource = Resource.of(header.resource)
        if header.resource and header.resource.strip() and resource is None:
            # Java: AclConverter#convertResource makes this delete all policies.
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"The resource {header.resource!r} is illegal.")
        subject = Subject.of(header.subject)
        if self._follows and subject is not None and self._metadata.policies(subject) is None:
            return Response()
        self._metadata.delete_policies(
            subject, PolicyType.of(header.policy_type), resource, partial(self._check_may_give, request)
        )
        return Response()

    def acl(self, _: ClientChannel, request: AnyCommand) -> Response:
        """Return the permissions of a subject, or an empty body (3009)."""
        acl = self._metadata.policies(Subject.of(fields_of(request, AuthSubject).subject))
        return Response(body=b"" if acl is None else fastjson.dumps(acl.info()))

    def acls(self, _: ClientChannel, request: AnyCommand) -> Response:
        """Return the permissions of subjects whose names, and on resources whose names, contain a text, or an empty
        body (3010).
        """
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
