"""Questions of the Admin service to brokers.

Each is a remoting request on behalf of the calling client. So a broker refuses a request that the client's user may
not send.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from firearrow.auth.model import Action
from firearrow.client.session.answers import read_body
from firearrow.errors import BrokerError
from firearrow.net.replies import Reply
from firearrow.proxy.access import Users
from firearrow.proxy.brokers import Brokers
from firearrow.proxy.calls import Context
from firearrow.proxy.validation import check_topic
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import typed_request, with_text
from firearrow.wire.frame import AnyCommand

CALL_MS_MAX: Final = 10_000
Body = TypeVar("Body")
NO_CODES: Final[tuple[int, ...]] = ()


class Asking(NamedTuple):
    """The brokers, asked for one call of the Admin service."""

    context: Context
    brokers: Brokers
    users: Users

    async def brokers_of(self, topic: str) -> Sequence[str]:
        """Return the names of a topic's brokers; ProxyError for a bad or unknown topic, or without any right to it."""
        check_topic(topic)
        rights = Action.GET, Action.SUB, Action.PUB
        self.users.check_topic(self.context.user, self.context.address, topic, *rights)
        return [group.broker for group in (await self.brokers.route(topic)).groups]

    async def brokers_of_all(self, topics: Iterable[str]) -> Sequence[str]:
        """Return the names of the brokers of several topics; without topics of all brokers."""
        found = [name for topic in topics for name in await self.brokers_of(topic)]
        return sorted(set(found)) or await self.brokers.names()

    def send(
        self, broker: str, code: RequestCode, header: msgspec.Struct, timeout_ms: int = CALL_MS_MAX
    ) -> Reply[AnyCommand]:
        """Send a request; the reply is the answer with any code."""
        return self.context.link.call(broker, with_text(typed_request(code, header)), timeout_ms)

    async def answer(
        self, broker: str, code: RequestCode, header: msgspec.Struct, absent: Container[int] = NO_CODES
    ) -> AnyCommand | None:
        """Return a broker's answer, None for a code in ``absent``; BrokerError for another code than success."""
        return _checked(broker, await self.send(broker, code, header), absent)

    async def answers(
        self, brokers: Iterable[str], code: RequestCode, header: msgspec.Struct, absent: Container[int] = NO_CODES
    ) -> dict[str, AnyCommand]:
        """Return the answers of brokers by their names, without those with a code in ``absent``.

        BrokerError for another code than success.
        """
        sent = [(broker, self.send(broker, code, header)) for broker in brokers]
        found: dict[str, AnyCommand] = {}
        for broker, reply in sent:
            answer = _checked(broker, await reply, absent)
            if answer is not None:
                found[broker] = answer
        return found

    async def bodies(
        self,
        brokers: Iterable[str],
        code: RequestCode,
        header: msgspec.Struct,
        kind: type[Body],
        absent: Container[int] = NO_CODES,
    ) -> dict[str, Body]:
        """Return the bodies of brokers' answers by their names, as `answers` does."""
        found = await self.answers(brokers, code, header, absent)
        return {broker: read_body(answer, kind, kind.__name__) for broker, answer in found.items()}


def _checked(broker: str, answer: AnyCommand, absent: Container[int]) -> AnyCommand | None:
    if answer.code == 0:
        return answer
    if answer.code in absent:
        return None
    raise BrokerError.of(answer.code, answer.remark, broker)
