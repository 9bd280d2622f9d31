"""Who asks for what is not there is told why."""

from pathlib import Path

from firearrow.broker.admission import NOT_YET
from tests.broker.serving import Caller, Serving, calling


def test_answers_say_why(tmp_path: Path) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        for code, reason in NOT_YET.items():
            answer = await caller.call(code, {})
            remark = f" request type {code} not supported: {reason}"
            assert (answer.code, answer.remark) == (3, remark)

    calling(tmp_path, main)
