"""Metrics of a controller, under RocketMQ's names.

Names, labels and bounds are as in a scrape of the original. These values differ in meaning:

* ``role`` is 1 for a candidate, 2 for a follower and 3 for the leader. Java: RoleChangeHandler adds up changes from 0
  on, so that a leader has 1, and 0 is a follower;
* ``request_latency`` ends when the answer is made, also if that waits for the agreement;
* ``dledger_op`` is an entry that the controllers agree on. ``failed`` says that this controller ceased to lead before
  it knew the result.

Source: RocketMQ's ``ControllerMetricsManager``, ``ControllerRequestProcessor``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Final, NamedTuple

from firearrow.controller.agreement import PEER_MESSAGES
from firearrow.controller.config import ControllerConfig
from firearrow.controller.heartbeats import Heartbeats
from firearrow.controller.state import AnyAgreement
from firearrow.errors import BrokerError
from firearrow.net.exposition import TARGET, Family, Labels, Metrics, MetricSample, Samples, common_labels, keyed
from firearrow.net.meter import Counts, Histograms
from firearrow.net.server import Answer, Handler, Peer
from firearrow.raft import Role
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.frame import AnyCommand

_STEPS: Final = (1, 3, 5)
BOUNDS_US: Final = (*(step * 10**power for power in range(7) for step in _STEPS), 10**7)
_RESULTS: Final[Mapping[int, str]] = {
    ResponseCode.SUCCESS: "new_master_elected",
    ResponseCode.CONTROLLER_MASTER_STILL_EXIST: "keep_current_master",
    ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE: "no_master_elected",
    ResponseCode.CONTROLLER_ELECT_MASTER_FAILED: "no_master_elected",
}
_ROLES: Final = {Role.TRIAL: 1, Role.CANDIDATE: 1, Role.FOLLOWER: 2, Role.LEADER: 3}
_PREFIX: Final = "CONTROLLER_"


class ControllerTally:
    """Counters of requests, entries and elections; ``monotonic`` returns seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.requests: Counts[tuple[int, bool]] = Counts()  # code, True if no fault happened
        self.latency: Histograms[int] = Histograms(BOUNDS_US)
        self.agreed: Counts[bool] = Counts()  # True if agreed on
        self.agreed_latency: Histograms[bool] = Histograms(BOUNDS_US)
        self.elections: Counts[tuple[str, str, str]] = Counts()  # cluster, name, result

    def now(self) -> float:
        """Return a start time for `answered` and `agreed_on`."""
        return self._monotonic()

    def answered(self, code: int, since: float) -> None:
        """Count a request that arrived at a time and is answered now."""
        self.requests.add((code, True))
        self.latency.add(code, self._took_us(since))

    def agreed_on(self, is_agreed: bool, since: float) -> None:
        """Count an entry that was proposed at a time and whose result is known now."""
        self.agreed.add(is_agreed)
        if is_agreed:
            self.agreed_latency.add(True, self._took_us(since))

    def elected(self, cluster: str, name: str, code: int) -> None:
        """Count an election by the code of its answer."""
        result = _RESULTS.get(code)
        if result is not None:
            self.elections.add((cluster, name, result))

    def _took_us(self, since: float) -> int:
        return int((self._monotonic() - since) * 1_000_000)

    def measured(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Wrap handlers so that they count immediate answers and refusals."""
        return {code: self._measured(int(code), handler) for code, handler in handlers.items()}

    def _measured(self, code: int, handler: Handler) -> Handler:
        if code == PEER_MESSAGES:  # among controllers, which RocketMQ does not count either
            return handler

        @wraps(handler)
        def handle(peer: Peer, request: AnyCommand) -> Answer:
            since = self._monotonic()
            try:
                answer = handler(peer, request)
            except BrokerError:  # a refusal is an answer
                self.answered(code, since)
                raise
            except BaseException:
                self.requests.add((code, False))
                raise
            if answer is not None:
                self.answered(code, since)
            return answer

        return handle


class ControllerSources(NamedTuple):
    """Sources of the metrics."""

    config: ControllerConfig
    tally: ControllerTally
    agreement: AnyAgreement
    heartbeats: Heartbeats


Reading = Callable[[ControllerSources], Iterator[MetricSample]]


def _role(sources: ControllerSources) -> Iterator[MetricSample]:
    yield MetricSample({}, _ROLES[sources.agreement.role])


def _disk(sources: ControllerSources) -> Iterator[MetricSample]:
    files = Path(sources.config.controller_store_path).rglob("*")
    yield MetricSample({}, sum(path.stat().st_size for path in files if path.is_file()))


def _set(_: ControllerSources, key: tuple[str, str]) -> Labels:
    return dict(zip(_SET, key, strict=True))


def _request(sources: ControllerSources, key: tuple[int, bool]) -> Labels:
    code, is_well = key
    return {**_type(sources, code), "request_handle_status": _STATUS[is_well]}


def _type(_: ControllerSources, code: int) -> Labels:
    return {"request_type": _PREFIX + RequestCode(code).name.removeprefix(_PREFIX)}


def _operation(_: ControllerSources, is_agreed: bool) -> Labels:
    return {"dledger_operation": "append", "dLedger_operation_status": _STATUS[is_agreed]}


def _election(_: ControllerSources, key: tuple[str, str, str]) -> Labels:
    return dict(zip((*_SET, "election_result"), key, strict=True))


_STATUS: Final = {True: "success", False: "failed"}
_TYPE: Final = ("request_type",)
_OPERATION: Final = ("dledger_operation", "dLedger_operation_status")
_SET: Final = ("cluster", "broker_set")
ROWS: Final[tuple[tuple[Family, Reading], ...]] = (
    (Family("role", "gauge", "1 candidate, 2 follower, 3 leader"), _role),
    (Family("dledger_disk_usage_bytes", "gauge", "Bytes of what was agreed on"), _disk),
    (Family("active_broker_num", "gauge", "Brokers that live", _SET), keyed(lambda it: it.heartbeats.counts(), _set)),
    (Family("request_total", "counter", "Requests", (*_TYPE, "request_handle_status")),
     keyed(lambda it: it.tally.requests.of, _request)),
    (Family("request_latency_microseconds", "histogram", "How long requests take", _TYPE),
     keyed(lambda it: it.tally.latency.of, _type)),
    (Family("dledger_op_total", "counter", "Entries to be agreed on", _OPERATION),
     keyed(lambda it: it.tally.agreed.of, _operation)),
    (Family("dledger_op_latency_microseconds", "histogram", "How long that takes", _OPERATION),
     keyed(lambda it: it.tally.agreed_latency.of, _operation)),
    (Family("election_total", "counter", "Elections", (*_SET, "election_result")),
     keyed(lambda it: it.tally.elections.of, _election)),
)  # fmt: skip


def metrics_of(sources: ControllerSources) -> Metrics:
    """Return the metrics of a controller."""
    config = sources.config
    labels = common_labels(
        config.metrics_label,
        [family for family, _ in ROWS],
        in_delta=config.metrics_in_delta,
        address=config.members()[config.controller_d_leger_self_id],
        group=config.controller_d_leger_group,
        peer_id=config.controller_d_leger_self_id,
        otel_scope_name="controller",
    )
    return Metrics(_samples(sources), labels)


def _samples(sources: ControllerSources) -> Samples:
    for family, read in ROWS:
        yield family, list(read(sources))
    yield TARGET, [MetricSample({}, 1)]
