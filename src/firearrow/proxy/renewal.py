"""Renewal: messages of a client that lives stay invisible to others while it works on them.

A push consumer's messages are popped for a minute. Ten seconds before that ends the proxy extends the time: by 1, 3, 5,
10, 30 minutes, then by an hour each, until three hours after the pop. Then the retry policy of the group decides when
the message comes again. If the client is gone, its messages become visible within a second.

Source: RocketMQ's ``DefaultReceiptHandleManager``, ``RenewStrategyPolicy``.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from itertools import count
from typing import Final

from firearrow.clock import Clock
from firearrow.errors import BrokerError
from firearrow.logs import Log
from firearrow.net.replies import Reply, run
from firearrow.proxy.clients import Client
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.handles import Place, Receipt, Renewed, place_of
from firearrow.proxy.times import duration_ms
from firearrow.wire.codes import ResponseCode

log: Final = Log(__name__)

EXTENSIONS_MS: Final = tuple(minutes * 60_000 for minutes in (1, 3, 5, 10, 30, 60))
CHANGE_MS_MAX: Final = 3000
_GONE: Final = (ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL)
"""Codes for a message that is acknowledged already, or popped again."""


class _Renewed:
    """A message that is renewed, and the state of its renewal."""

    __slots__ = ("attempts", "changing", "client", "failures", "group", "popped_ms", "receipt", "times", "topic")

    def __init__(self, client: Client, group: str, topic: str, receipt: Receipt, attempts: int) -> None:
        self.client = client
        self.group = group
        self.topic = topic
        self.receipt = receipt
        self.attempts = attempts
        self.popped_ms = receipt.handle.pop_ms
        self.times = 0
        self.failures = 0
        self.changing: list[Reply[None]] | None = None  # the waiters for the renewal in progress


class Renewal:
    """The messages that are renewed, by their places."""

    def __init__(self, renewed: Renewed, config: ProxyConfig, clock: Clock) -> None:
        self._renewed = renewed
        self._config = config
        self._clock = clock
        self._messages: dict[Place, _Renewed] = {}
        self.in_progress: int = 0
        """Count of renewals that a broker has not answered yet."""
        self._due: list[tuple[int, int, Place]] = []  # a heap of times in ms; entries of dropped messages stay in it
        self._number = count()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, client: Client, group: str, topic: str, receipt: Receipt, attempts: int) -> None:
        """Renew a message for a client from now on; ``attempts`` is the count of its earlier deliveries."""
        place = place_of(group, topic, receipt)
        self._forget(place)
        self._messages[place] = _Renewed(client, group, topic, receipt, attempts)
        client.held.add(place)
        self._plan(place, receipt)

    def has(self, group: str, topic: str, receipt: Receipt) -> bool:
        """Tell whether a message is renewed here."""
        return place_of(group, topic, receipt) in self._messages

    def drop(self, group: str, topic: str, receipt: Receipt) -> None:
        """Renew a message no longer."""
        if self._messages:
            self._forget(place_of(group, topic, receipt))

    async def settled(self, group: str, topic: str, receipt: Receipt) -> None:
        """Wait for the end of a renewal in progress, which replaces the message's handle, but not for ever."""
        message = self._messages.get(place_of(group, topic, receipt)) if self.in_progress else None
        if message is None or message.changing is None:
            return
        reply: Reply[None] = Reply()
        message.changing.append(reply)
        seconds = self._config.lock_timeout_ms_in_handle_group / 1000
        timer = asyncio.get_running_loop().call_later(seconds, _settle, reply)
        try:
            await reply
        finally:
            timer.cancel()

    def _forget(self, place: Place) -> _Renewed | None:
        message = self._messages.pop(place, None)
        if message is not None:
            message.client.held.discard(place)
        return message

    def give_back(self, group: str, topic: str, receipts: Sequence[Receipt]) -> None:
        """Make messages visible soon that their client has not received after all; not those that it has settled."""
        for receipt in receipts:
            message = self._forget(place_of(group, topic, receipt))
            if message is not None:
                self._change(message, self._config.invisible_time_millis_when_clear)

    def client_left(self, client: Client) -> None:
        """Make the messages of a client that is gone visible soon."""
        for place in list(client.held):
            message = self._forget(place)
            assert message is not None, "a client holds only messages that are renewed"
            self._change(message, self._config.invisible_time_millis_when_clear)

    def stop(self) -> None:
        """Give all messages back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for place in list(self._messages):
            message = self._forget(place)
            assert message is not None, "nothing else forgets messages meanwhile"
            self._change(message, self._config.invisible_time_millis_when_clear)

    # --- time ---

    def _plan(self, place: Place, receipt: Receipt) -> None:
        due_ms = receipt.handle.visible_ms - self._config.renew_ahead_time_millis
        heapq.heappush(self._due, (due_ms, next(self._number), place))
        if self._timer is None:
            seconds = self._config.renew_schedule_period_millis / 1000
            self._timer = asyncio.get_running_loop().call_later(seconds, self._renew_due)

    def _renew_due(self) -> None:
        self._timer = None
        now_ms = self._clock.now_ms()
        while self._due and self._due[0][0] <= now_ms:
            _, _, place = heapq.heappop(self._due)
            message = self._messages.get(place)
            if message is not None:
                self._renew(place, message, now_ms)
        if self._due and self._timer is None:
            seconds = self._config.renew_schedule_period_millis / 1000
            self._timer = asyncio.get_running_loop().call_later(seconds, self._renew_due)

    def _renew(self, place: Place, message: _Renewed, now_ms: int) -> None:
        if now_ms - message.popped_ms >= self._config.renew_max_time_millis:
            self._forget(place)
            self._change(message, _redelivery_ms(message))
            return
        extension_ms = EXTENSIONS_MS[min(message.times, len(EXTENSIONS_MS) - 1)]
        message.times += 1
        self._change(message, extension_ms, place)

    def _change(self, message: _Renewed, invisible_ms: int, place: Place | None = None) -> None:
        link = message.client.link
        if link is None:
            return  # its broker has lost it, too: the invisible time ends by itself
        handle = message.receipt.handle
        command = message.receipt.change(message.group, message.topic, invisible_ms)
        if place is not None:
            message.changing = []
            self.in_progress += 1
        reply = link.call(handle.broker_name, command, CHANGE_MS_MAX)

        async def change() -> None:
            try:
                answer = await reply
            finally:
                self._note_answer(place, message)
            if answer.code == ResponseCode.SUCCESS:
                message.receipt = message.receipt.changed(answer.ext)
                self._renewed.note(message.group, message.topic, message.receipt)
                message.failures = 0
            elif answer.code in _GONE:
                message.failures = self._config.max_renew_retry_times + 1
            else:
                raise BrokerError.of(answer.code, answer.remark, handle.broker_name)
            if place is not None and self._messages.get(place) is message:
                self._go_on(place, message)

        run(change(), lambda _: None, lambda error: self._failed(place, message, error))

    def _note_answer(self, place: Place | None, message: _Renewed) -> None:
        if place is not None:
            self.in_progress -= 1
            waiting, message.changing = message.changing or [], None
            for reply in waiting:
                asyncio.get_running_loop().call_soon(_settle, reply)  # when the new handle is noted

    def _failed(self, place: Place | None, message: _Renewed, error: Exception) -> None:
        if place is None:
            if not isinstance(error, ConnectionError):  # by the end of the client's link: its requests are served
                log.warning("message is not given back", extra={"group": message.group, "error": error})
            return
        log.warning("invisible time can't be extended", extra={"group": message.group, "error": error})
        message.failures += 1
        if self._messages.get(place) is message:
            self._go_on(place, message)

    def _go_on(self, place: Place, message: _Renewed) -> None:
        """Plan the next renewal, unless too many have failed."""
        if message.failures > self._config.max_renew_retry_times:
            self._forget(place)
        else:
            self._plan(place, message.receipt)


def _redelivery_ms(message: _Renewed) -> int:
    """Time until a message comes again that its consumer has held for too long, by the retry policy of its group.

    Source: RocketMQ's ``CustomizedRetryPolicy``, ``ExponentialRetryPolicy``.
    """
    policy = message.client.settings.backoff_policy
    if policy.HasField("exponential_backoff"):
        backoff = policy.exponential_backoff
        longest_ms = duration_ms(backoff.max)
        return min(int(duration_ms(backoff.initial) * backoff.multiplier ** min(message.attempts, 32)), longest_ms)
    delays = policy.customized_backoff.next
    return duration_ms(delays[min(message.attempts + 2, len(delays) - 1)])


def _settle(reply: Reply[None]) -> None:
    if not reply.done():
        reply.set_result(None)
