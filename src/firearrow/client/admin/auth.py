"""Administration of users and permissions, on one broker that keeps them."""

from __future__ import annotations

from typing import Final

from firearrow.client.admin.calls import Part
from firearrow.errors import BrokerError
from firearrow.wire import fastjson, headers
from firearrow.wire.admin_bodies import AuthAcl, AuthUserInfo
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.codes import ResponseCode

PROBE: Final = "firearrow-probe"


class Auth(Part):
    """Users and permissions."""

    async def accepts(self, address: str) -> bool:
        """Tell whether a broker accepts the user of this administrator, or a request without any.

        The request ends a producer that does not exist. Every user may do that.
        """
        try:
            header = headers.UnregisterClient(PROBE, producer_group=PROBE)
            await self._calls.call(address, Code.UNREGISTER_CLIENT, header)
        except BrokerError as error:
            if error.code == ResponseCode.NO_PERMISSION:
                return False
            raise
        return True

    async def create_user(self, address: str, user: AuthUserInfo) -> None:
        """Create a user."""
        header = headers.AuthUser(user.username or "")
        await self._calls.call(address, Code.AUTH_CREATE_USER, header, fastjson.dumps(user))

    async def update_user(self, address: str, user: AuthUserInfo) -> None:
        """Change the fields of a user that are not None."""
        header = headers.AuthUser(user.username or "")
        await self._calls.call(address, Code.AUTH_UPDATE_USER, header, fastjson.dumps(user))

    async def delete_user(self, address: str, username: str) -> None:
        """Delete a user."""
        await self._calls.call(address, Code.AUTH_DELETE_USER, headers.AuthUser(username))

    async def user(self, address: str, username: str) -> AuthUserInfo | None:
        """Give a user; None if there is none."""
        return await self._calls.read_or_none(address, Code.AUTH_GET_USER, AuthUserInfo, headers.AuthUser(username))

    async def users(self, address: str, like: str | None = None) -> list[AuthUserInfo]:
        """List all users, or the users whose names contain ``like``."""
        header = headers.AuthUsers(like)
        return await self._calls.read_or_none(address, Code.AUTH_LIST_USER, list[AuthUserInfo], header) or []

    async def create_acl(self, address: str, acl: AuthAcl) -> None:
        """Set the permissions of a subject that has none yet."""
        header = headers.AuthSubject(acl.subject or "")
        await self._calls.call(address, Code.AUTH_CREATE_ACL, header, fastjson.dumps(acl))

    async def update_acl(self, address: str, acl: AuthAcl) -> None:
        """Change the permissions of a subject."""
        header = headers.AuthSubject(acl.subject or "")
        await self._calls.call(address, Code.AUTH_UPDATE_ACL, header, fastjson.dumps(acl))

    async def delete_acl(self, address: str, subject: str, resource: str | None = None) -> None:
        """Delete the permissions of a subject, for one resource or for all."""
        await self._calls.call(address, Code.AUTH_DELETE_ACL, headers.AuthResource(subject, resource))

    async def acl(self, address: str, subject: str) -> AuthAcl | None:
        """Give the permissions of a subject; None if it has none."""
        return await self._calls.read_or_none(address, Code.AUTH_GET_ACL, AuthAcl, headers.AuthSubject(subject))

    async def acls(self, address: str, subject: str | None = None, resource: str | None = None) -> list[AuthAcl]:
        """List the permissions of all subjects, or of subjects and for resources whose names contain these texts."""
        header = headers.AuthSubjects(subject, resource)
        return await self._calls.read_or_none(address, Code.AUTH_LIST_ACL, list[AuthAcl], header) or []
