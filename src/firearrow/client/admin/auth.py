"""Administration of users and permissions, on one broker that keeps them."""

from __future__ import annotations

from firearrow.client.admin.calls import Calls, read_body
from firearrow.wire import fastjson, headers
from firearrow.wire.admin_bodies import AuthAcl, AuthUserInfo
from firearrow.wire.codes import RequestCode as Code


class Auth:
    """Users and permissions; an address is that of a broker."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def create_user(self, address: str, user: AuthUserInfo) -> None:
        """Make a user."""
        await self._put_user(address, Code.AUTH_CREATE_USER, user)

    async def update_user(self, address: str, user: AuthUserInfo) -> None:
        """Change a user: what is not None."""
        await self._put_user(address, Code.AUTH_UPDATE_USER, user)

    async def _put_user(self, address: str, code: Code, user: AuthUserInfo) -> None:
        header = headers.AuthUser(user.username or "")
        about = f"user {user.username!r}"
        await self._calls.call(address, code, header, fastjson.dumps(user), about=about)

    async def delete_user(self, address: str, username: str) -> None:
        """Delete a user."""
        header = headers.AuthUser(username)
        await self._calls.call(address, Code.AUTH_DELETE_USER, header, about=f"user {username!r}")

    async def user(self, address: str, username: str) -> AuthUserInfo | None:
        """A user; None if there is none."""
        header = headers.AuthUser(username)
        about = f"user {username!r}"
        answer = await self._calls.call(address, Code.AUTH_GET_USER, header, about=about)
        return read_body(answer, AuthUserInfo, about) if answer.body else None

    async def users(self, address: str, like: str | None = None) -> list[AuthUserInfo]:
        """The users, or those whose names have ``like`` in them."""
        header = headers.AuthUsers(like)
        answer = await self._calls.call(address, Code.AUTH_LIST_USER, header)
        return read_body(answer, list[AuthUserInfo], address) if answer.body else []

    async def create_acl(self, address: str, acl: AuthAcl) -> None:
        """Say what a subject may do that nothing is said of yet."""
        await self._put_acl(address, Code.AUTH_CREATE_ACL, acl)

    async def update_acl(self, address: str, acl: AuthAcl) -> None:
        """Change what a subject may do."""
        await self._put_acl(address, Code.AUTH_UPDATE_ACL, acl)

    async def _put_acl(self, address: str, code: Code, acl: AuthAcl) -> None:
        header = headers.AuthSubject(acl.subject or "")
        about = f"subject {acl.subject!r}"
        await self._calls.call(address, code, header, fastjson.dumps(acl), about=about)

    async def delete_acl(self, address: str, subject: str, resource: str | None = None) -> None:
        """Forget what a subject may do, with one resource or at all."""
        header = headers.AuthResource(subject, resource)
        await self._calls.call(address, Code.AUTH_DELETE_ACL, header, about=f"subject {subject!r}")

    async def acl(self, address: str, subject: str) -> AuthAcl | None:
        """Give the permissions of a subject; None if it has none."""
        header = headers.AuthSubject(subject)
        about = f"subject {subject!r}"
        answer = await self._calls.call(address, Code.AUTH_GET_ACL, header, about=about)
        return read_body(answer, AuthAcl, about) if answer.body else None

    async def acls(self, address: str, subject: str | None = None, resource: str | None = None) -> list[AuthAcl]:
        """Give the permissions of subjects; only of subjects, and only for resources, that have this in the name."""
        header = headers.AuthSubjects(subject, resource)
        answer = await self._calls.call(address, Code.AUTH_LIST_ACL, header)
        return read_body(answer, list[AuthAcl], address) if answer.body else []
