"""Knowledge of a controller: the agreed state, and its own pending proposals.

A decision uses the state as it will be once all pending proposals are agreed on. Entries are applied in the order of
the proposals, so that it will be exactly this. The answer waits until the agreement covers that state. An election that
other controllers do not know yet must not become public: another leader could elect another master for the same epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from firearrow.controller.agreement import Agreement
from firearrow.controller.decisions import ControllerResult
from firearrow.controller.etcd import EtcdAgreement
from firearrow.controller.replicas import NO_SETS, ReplicaStateMachine, Sets, after_all, encode_events
from firearrow.wire.codes import ResponseCode

AnyAgreement = Agreement | EtcdAgreement
NOT_LEADER: Final = ControllerResult(ResponseCode.CONTROLLER_NOT_LEADER, "The controller is not in leader state")


class Council:
    """Decides requests where this controller leads, and releases each answer when it may leave.

    ``on_known`` is called with the result of each proposal and its time by ``now``.
    """

    def __init__(
        self,
        state: ReplicaStateMachine,
        agreement: AnyAgreement,
        now: Callable[[], float] = lambda: 0.0,
        on_known: Callable[[bool, float], None] = lambda is_agreed, since: None,
    ) -> None:
        self._state = state
        self._agreement = agreement
        self._now = now
        self._on_known = on_known
        self._ahead: Sets = NO_SETS

    @property
    def leads(self) -> bool:
        """Tell whether this controller decides requests."""
        return self._agreement.leads

    @property
    def sets(self) -> Sets:
        """The agreed state, and on the leader its pending proposals."""
        return self._ahead if self.leads else self._state.sets

    def begin(self) -> None:
        """Start from the agreed state, because this controller has begun, or ceased, to lead."""
        self._ahead = self._state.sets

    def decide(
        self,
        decide: Callable[[Sets], ControllerResult],
        then: Callable[[ControllerResult], None],
        *,
        is_agreed_on: bool = False,
    ) -> None:
        """Decide a request, and call ``then`` once its answer may leave.

        A decision without events is agreed on only with ``is_agreed_on``.
        """
        if not self.leads:
            then(NOT_LEADER)
            return
        decision = decide(self._ahead)

        def answer(is_agreed: bool) -> None:
            then(decision if is_agreed else NOT_LEADER)

        if decision.events or is_agreed_on:
            self._ahead = after_all(self._ahead, decision.events)
            data = encode_events(list(decision.events)) if decision.events else b""
            since = self._now()

            def known(is_agreed: bool) -> None:
                self._on_known(is_agreed, since)
                answer(is_agreed)

            self._agreement.propose(data, known)
        else:
            self._agreement.when_agreed(answer)
