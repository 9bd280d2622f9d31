"""Calls against a model of them: answers in any order, twice, late, to nobody; numbers that begin
again; a limit, deadlines, and an end."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import BrokerError, LocalProtocolError
from firearrow.wire import calls as module
from firearrow.wire.calls import OPAQUE_MAX, Answering, ClientEnd, PendingCalls
from firearrow.wire.codes import FLAG_ONEWAY, FLAG_RESPONSE
from firearrow.wire.command import Command, Response, request
from firearrow.wire.frame import HEADER_BYTES_MAX, AnyCommand, Connection, encode_request, encode_response


@dataclass(eq=False)
class Waiter:
    """Who waits for an answer, and what became of it."""

    outcomes: list[AnyCommand | OSError] = field(default_factory=list)
    gave_up: bool = False

    def done(self) -> bool:
        return self.gave_up or bool(self.outcomes)

    def set_result(self, answer: AnyCommand) -> None:
        self.outcomes.append(answer)

    def set_exception(self, error: OSError) -> None:
        self.outcomes.append(error)


def sent(frame: bytes) -> AnyCommand:
    """The request in a frame."""
    [command] = Connection().receive(frame)
    return command


def answer_to(opaque: int, body: bytes = b"") -> AnyCommand:
    return Command(0, {}, FLAG_RESPONSE, opaque=opaque, body=body)


class Model:
    """What ought to be: who waits, under which number, until when."""

    CALLS_MAX = 5

    def __init__(self) -> None:
        self.calls: PendingCalls[Waiter] = PendingCalls("server", self.CALLS_MAX)
        self.waiting: dict[int, tuple[Waiter, int]] = {}
        self.now = 100
        self.expected: dict[Waiter, list[str]] = {}
        self.has_ended = False

    def begin(self, seconds: int) -> None:
        waiter = Waiter()
        command = request(1, {"n": len(self.expected)})
        if self.has_ended or len(self.waiting) == self.CALLS_MAX:
            why = "is lost: gone" if self.has_ended else "5 calls to server wait"
            with pytest.raises(ConnectionError, match=why):
                self.calls.begin(command, waiter, self.now, seconds)
            return
        opaque = sent(self.calls.begin(command, waiter, self.now, seconds)).opaque
        assert 0 < opaque <= module.OPAQUE_MAX
        assert opaque not in self.waiting
        self.waiting[opaque] = waiter, self.now + seconds
        self.expected[waiter] = []

    def answer(self, opaque: int) -> None:
        waiter, _ = self.waiting.pop(opaque, (None, 0))
        self._expect(waiter, "answer")
        self.calls.take(answer_to(opaque))

    def forget(self, opaque: int) -> None:
        command = request(1, opaque=opaque)
        self.waiting.pop(opaque, None)
        self.calls.forget(command)

    def give_up(self, opaque: int) -> None:
        if opaque in self.waiting:
            self.waiting[opaque][0].gave_up = True

    def pass_time(self, seconds: int) -> None:
        self.now += seconds
        overdue = [opaque for opaque, (_, at) in self.waiting.items() if at <= self.now]
        for opaque in overdue:
            self._expect(self.waiting.pop(opaque)[0], "TimeoutError")
        assert (self.calls.expire(self.now) is not None) is bool(overdue)

    def tell(self, _: int) -> None:
        assert sent(self.calls.one_way(request(1, oneway=True))).opaque not in self.waiting

    def end(self, _: int) -> None:
        self.has_ended = True
        for waiter, _ in self.waiting.values():
            self._expect(waiter, "ConnectionError")
        self.waiting.clear()
        self.calls.end("gone")

    def _expect(self, waiter: Waiter | None, outcome: str) -> None:
        if waiter is not None and not waiter.gave_up:
            self.expected[waiter].append(outcome)

    def check(self) -> None:
        assert len(self.calls) == len(self.waiting)
        assert self.calls.is_full is (len(self.waiting) == self.CALLS_MAX)
        assert self.calls.next_deadline == min((at for _, at in self.waiting.values()), default=None)
        for waiter, expected in self.expected.items():
            kinds = [type(it).__name__ if isinstance(it, OSError) else "answer" for it in waiter.outcomes]
            assert kinds == expected


STEPS = st.one_of(
    st.tuples(st.just(Model.begin), st.integers(1, 4)),
    st.tuples(st.just(Model.answer), st.integers(0, 8)),
    st.tuples(st.sampled_from([Model.forget, Model.give_up]), st.integers(1, 7)),
    st.tuples(st.just(Model.pass_time), st.integers(0, 3)),
    st.tuples(st.just(Model.tell), st.just(0)),
)


@given(st.lists(STEPS, max_size=60), st.booleans(), st.lists(STEPS, max_size=4))
def test_calls_end_as_in_the_model(steps: list[tuple[object, int]], ends: bool, more: list[tuple[object, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "OPAQUE_MAX", 7)
        model = Model()
        for step, number in [*steps, *([(Model.end, 0), *more] if ends else [])]:
            step(model, number)  # type: ignore[operator]
            model.check()


def test_numbers_have_31_bits() -> None:
    calls: PendingCalls[Waiter] = PendingCalls("server", last_opaque=OPAQUE_MAX - 1)
    numbers = [sent(calls.one_way(request(1))).opaque for _ in range(3)]
    assert numbers == [2**31 - 1, 1, 2]


def test_each_waiter_gets_its_own_answer_and_what_is_said_names_the_peer() -> None:
    calls: PendingCalls[Waiter] = PendingCalls("10.0.0.1:9876")
    one, two, three = Waiter(), Waiter(), Waiter()
    opaques = [
        sent(calls.begin(request(1), waiter, 0.0, seconds)).opaque
        for waiter, seconds in ((one, 3), (two, 0.5), (three, 9))
    ]
    calls.take(answer_to(opaques[0], b"one"))
    assert calls.expire(1.0) == "10.0.0.1:9876 did not answer in 0.5 s"
    calls.end("it was reset")
    assert [it.body for it in one.outcomes if isinstance(it, Command)] == [b"one"]
    assert repr(two.outcomes) == "[TimeoutError('10.0.0.1:9876 did not answer in 0.5 s')]"
    lost = "the connection to 10.0.0.1:9876 is lost: it was reset"
    assert repr(three.outcomes) == f"[ConnectionError('{lost}')]"


def test_what_can_not_be_sent_is_not_waited_for() -> None:
    calls: PendingCalls[Waiter] = PendingCalls("server")
    with pytest.raises(LocalProtocolError, match="a header of"):
        calls.begin(request(1, {"x": "x" * HEADER_BYTES_MAX}), Waiter(), 0.0, 1)
    assert len(calls) == 0


# --- a client's end of a connection ---


def refuse(_: AnyCommand) -> Response:
    raise BrokerError(16, "not you")


HANDLERS: dict[int, Answering] = {
    1: lambda asked: Response(fields=asked.ext, body=asked.body),
    2: refuse,
    3: lambda _: None,
}


def received(data: bytes) -> list[tuple[int, int, str | None, bytes]]:
    """Code, number, remark and body of the answers that a line gives to what the server sends."""
    line: ClientEnd[Waiter] = ClientEnd("server", HANDLERS)
    answers = Connection().receive(line.receive(data))
    assert all(answer.is_response for answer in answers)
    return [(it.code, it.opaque, it.remark, it.body) for it in answers]


@pytest.mark.parametrize("binary", [False, True])
def test_a_client_answers_what_the_server_asks(binary: bool) -> None:
    asked: list[AnyCommand] = [Command(code, {}, opaque=code + 10, body=b"x", binary=binary) for code in range(1, 5)]
    asked += [Command(code, {}, FLAG_ONEWAY, opaque=9, binary=binary) for code in range(1, 5)]
    assert received(b"".join(map(encode_request, asked))) == [
        (0, 11, None, b"x"),
        (16, 12, "not you", b""),
        (3, 14, " request type 4 not supported", b""),
    ]


def test_a_line_tells_answers_and_requests_of_one_number_apart() -> None:
    line: ClientEnd[Waiter] = ClientEnd("server", HANDLERS)
    waiter = Waiter()
    opaque = sent(line.calls.begin(request(7), waiter, 0.0, 1)).opaque
    asked = encode_request(Command(1, {}, opaque=opaque))
    assert line.receive(asked) == encode_response(Response(), opaque)
    assert not waiter.done()
    assert line.receive(encode_response(Response(5), opaque)) == b""
    assert [it.code for it in waiter.outcomes if isinstance(it, Command)] == [5]


def test_a_line_says_what_the_server_did_wrong() -> None:
    line: ClientEnd[Waiter] = ClientEnd("server")
    assert line.violation is None
    assert line.receive(b"\xff" * 8) == b""
    assert line.violation == "a frame of 4294967295 bytes is above the limit of 16777216"
