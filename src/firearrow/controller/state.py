"""What a controller knows: what all have agreed on, and what this one has proposed beyond.

A request is decided by the state that will be once all that was proposed is agreed on: entries are
applied in the order in which they were proposed, so that it will be exactly this. Its answer waits
until all of it is: an election that others do not know of yet must not be told to anybody, as
another leader could elect another master for the same epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from firearrow.controller.agreement import Agreement
from firearrow.controller.decisions import Decision
from firearrow.controller.etcd import EtcdAgreement
from firearrow.controller.replicas import NO_SETS, ReplicaState, Sets, after_all, encode_events
from firearrow.wire.codes import ResponseCode

AnyAgreement = Agreement | EtcdAgreement
NOT_LEADER: Final = Decision(ResponseCode.CONTROLLER_NOT_LEADER, "The controller is not in leader state")


class Council:
    """Decides requests where this controller leads, and gives each its answer in time.

    ``on_known`` hears whether what was proposed at a time, by ``now``, is agreed on.
    """

    def __init__(
        self,
        state: ReplicaState,
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
        """Tell whether requests are decided here."""
        return self._agreement.leads

    @property
    def sets(self) -> Sets:
        """What is agreed on, and was proposed."""
        return self._ahead if self.leads else self._state.sets

    def begin(self) -> None:
        """This controller has begun, or ceased, to lead."""
        self._ahead = self._state.sets

    def decide(
        self, decide: Callable[[Sets], Decision], then: Callable[[Decision], None], *, is_agreed_on: bool = False
    ) -> None:
        """Decide a request, and call ``then`` once its answer may leave.

        What changes nothing is not agreed on by itself, unless it is to be.
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
