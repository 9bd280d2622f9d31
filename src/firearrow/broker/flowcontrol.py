"""Flow control: requests that are refused with code 2 because the broker is busy.

RocketMQ has a queue and a pool of threads for each kind of request; here one loop handles all. Its limits apply as
follows:

====================  ==============================================================================
RocketMQ              here
====================  ==============================================================================
a queue is full       more requests of a kind than ``...QueueCapacity`` have been read and wait: for
                      their turn, or for a peer that doesn't read its answers. One more: [OVERLOAD]
waited for too long   a request that is about to be handled came longer ago than
                      ``waitTimeMillsIn...Queue``: [TIMEOUT_CLEAN_QUEUE]
page cache busy       the loop was stalled for longer than ``osPageCacheBusyTimeOutMills`` while
                      messages were put: sends that came meanwhile: [PCBUSY_CLEAN_QUEUE], or
                      [REJECTREQUEST] if ``brokerFastFailureEnable`` is off
====================  ==============================================================================

A request that is handled in time costs nothing (``net.lateness``). During a stalled put no client gets an answer, since
the interpreter waits with it. Then all waiting requests are answered at once.

Source: RocketMQ's ``BrokerFastFailure``, ``NettyRemotingAbstract#processRequestCommand``,
``SendMessageProcessor#rejectRequest``, ``BrokerController#registerProcessor``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from firearrow.broker.config import BrokerConfig
from firearrow.broker.metrics.stats import Stalls
from firearrow.broker.state.settings import Settings
from firearrow.clock import Clock
from firearrow.logs import Log
from firearrow.net.lateness import FOR_EVER, Patience
from firearrow.store.config import StoreConfig
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Response

log: Final = Log(__name__)

LINE_SECONDS_MIN: Final = 60.0  # between two log lines
_BUSY: Final = "broker busy, start flow control for a while"
_OVERLOAD: Final = "[OVERLOAD]system busy, start flow control for a while"
REJECTED: Final = "[REJECTREQUEST]system busy, start flow control for a while"


class Line(NamedTuple):
    """Requests with a common limit (RocketMQ: the requests of one thread pool)."""

    name: str
    codes: frozenset[int]
    waiting_max: Callable[[BrokerConfig], int]
    wait_ms_max: Callable[[BrokerConfig], int]


def _line(
    name: str,
    codes: tuple[RequestCode, ...],
    waiting_max: Callable[[BrokerConfig], int],
    wait_ms_max: Callable[[BrokerConfig], int] = lambda _: FOR_EVER,
) -> Line:
    return Line(name, frozenset(map(int, codes)), waiting_max, wait_ms_max)


SENDS: Final = _line(
    "sends",
    (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.RECALL_MESSAGE,
    ),
    lambda config: config.send_thread_pool_queue_capacity,
    lambda config: config.wait_time_mills_in_send_queue,
)
ADMINISTRATION: Final = _line(
    "administration",
    (),  # all other codes
    lambda config: config.admin_broker_thread_pool_queue_capacity,
    lambda config: config.wait_time_mills_in_admin_broker_queue,
)
LINES: Final = (
    SENDS,
    _line(
        "pulls",
        (RequestCode.PULL_MESSAGE,),
        lambda config: config.pull_thread_pool_queue_capacity,
        lambda config: config.wait_time_mills_in_pull_queue,
    ),
    _line(
        "lite pulls",
        (RequestCode.LITE_PULL_MESSAGE,),
        lambda config: config.lite_pull_thread_pool_queue_capacity,
        lambda config: config.wait_time_mills_in_lite_pull_queue,
    ),
    _line(
        "heartbeats",
        (RequestCode.HEART_BEAT,),
        lambda config: config.heartbeat_thread_pool_queue_capacity,
        lambda config: config.wait_time_mills_in_heartbeat_queue,
    ),
    _line(
        "ends of transactions",
        (RequestCode.END_TRANSACTION,),
        lambda config: config.end_transaction_pool_queue_capacity,
        lambda config: config.wait_time_mills_in_transaction_queue,
    ),
    _line(
        "replies",
        (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2),
        lambda config: config.reply_thread_pool_queue_capacity,
    ),
    _line(
        "queries",
        (RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID),
        lambda config: config.query_thread_pool_queue_capacity,
    ),
    _line(
        "clients",
        (RequestCode.UNREGISTER_CLIENT, RequestCode.CHECK_CLIENT_CONFIG),
        lambda config: config.client_manager_thread_pool_queue_capacity,
    ),
    _line(
        "consumers",
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET),
        lambda config: config.consumer_manager_thread_pool_queue_capacity,
    ),
    ADMINISTRATION,
)
_LINE_OF: Final = {code: line for line in LINES for code in line.codes}


class FlowControl(Patience):
    """Decides by the present configuration. ``log_end`` returns the end of the CommitLog."""

    def __init__(self, settings: Callable[[], Settings], log_end: Callable[[], int], clock: Clock) -> None:
        self._settings = settings
        self._log_end = log_end
        self._clock = clock
        self.stalls: Final = Stalls()
        self._waiting: Counter[str] = Counter()
        self._least_by: tuple[BrokerConfig, StoreConfig] | None = None
        self._least_ms = 0
        self._log_end_in_time = 0
        self._refused = 0
        self._say_again_at = 0.0

    @property
    def least_ms(self) -> int:
        """Shortest wait after which any request is refused."""
        settings = self._settings()
        by = settings.broker, settings.store
        if by != self._least_by:  # each turn of an idle broker calls this
            self._least_by = by
            self._least_ms = settings.store.os_page_cache_busy_time_out_mills
            if settings.broker.broker_fast_failure_enable:
                waits_ms = (line.wait_ms_max(settings.broker) for line in LINES)
                self._least_ms = min(self._least_ms, *waits_ms)
        return self._least_ms

    @property
    def waiting(self) -> dict[str, int]:
        """Counts of the pending requests in the server, by line."""
        return {line.name: self._waiting[line.name] for line in LINES}

    def in_time(self) -> None:
        """Note the end of the log: a put from now on is part of a stall, if one comes."""
        self._log_end_in_time = self._log_end()

    def held_up(self, stalled_ms: int) -> None:
        """Count a stall, as a put's if the log has grown meanwhile."""
        self.stalls.add(stalled_ms, by_put=self._log_end() > self._log_end_in_time)

    def refusal(self, code: int, waited_ms: int, stalled_ms: int) -> Response | None:
        """Refuse a request that has waited for too long, or that came during a slow put."""
        line = _LINE_OF.get(code, ADMINISTRATION)
        settings = self._settings()
        is_fast = settings.broker.broker_fast_failure_enable
        if line is SENDS and waited_ms > 0 and self._was_busy(stalled_ms):
            if is_fast:
                return self._refuse(self._remark("PCBUSY", line, waited_ms), waited_ms)
            return self._refuse(REJECTED, waited_ms)
        if is_fast and waited_ms >= line.wait_ms_max(settings.broker):
            return self._refuse(self._remark("TIMEOUT", line, waited_ms), waited_ms)
        return None

    def _was_busy(self, stalled_ms: int) -> bool:
        """Tell whether a put has stalled the loop.

        Java: DefaultMessageStore#isOSPageCacheBusy reads how long the lock of a put is held. Here the loop is the lock,
        and reading the clock before and after each put would cost each message.
        """
        busy_ms = self._settings().store.os_page_cache_busy_time_out_mills
        return stalled_ms > busy_ms and self._log_end() > self._log_end_in_time

    def enter(self, code: int, *, must: bool = False) -> Response | None:
        """Count a request that waits; refuse it if too many of its kind wait."""
        line = _LINE_OF.get(code, ADMINISTRATION)
        if not must and self._waiting[line.name] >= line.waiting_max(self._settings().broker):
            return self._refuse(_OVERLOAD, 0)
        self._waiting[line.name] += 1
        return None

    def leave(self, code: int) -> None:
        """Count a request that no longer waits."""
        line = _LINE_OF.get(code, ADMINISTRATION)
        self._waiting[line.name] -= 1
        assert self._waiting[line.name] >= 0, "a request that leaves has entered"

    def _remark(self, why: str, line: Line, waited_ms: int) -> str:
        size = self._waiting[line.name]
        period = f"period in queue: {waited_ms}ms, size of queue: {size}"
        return f"[{why}_CLEAN_QUEUE]{_BUSY}, {period}"

    def _refuse(self, remark: str, waited_ms: int) -> Response:
        self._refused += 1
        now = self._clock.monotonic()
        if now >= self._say_again_at:
            self._say_again_at = now + LINE_SECONDS_MIN
            log.warning(
                "requests are refused: the broker is busy",
                extra={"count": self._refused, "reason": remark, "waited_ms": waited_ms},
            )
            self._refused = 0
        return Response(ResponseCode.SYSTEM_BUSY, remark)
